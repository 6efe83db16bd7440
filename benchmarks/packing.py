"""Tokens per second of training on questions and answers: packed batches against padded ones.

The peer is padded batches in random order, as transformers' Trainer makes them. Hansa's batches have samples of similar
length (`hansa/data/batching.py`), so that they have little padding to begin with: the benchmark also prints what
sorting alone gives, and what packing adds to batches in random order. All arms see the same samples in batches of 8 and
take the same kind of step on one thread; tokens without padding are counted, and processor time, so that other programs
on the machine matter little. The texts are made up and as long as those of medquad (median 146 words, quartiles 80 and
262); HANSA_BENCH_TEXTS=FILE.jsonl[.gz] measures rows with the fields question and answer.
"""

import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time

import numpy as np
import torch
from _federations import federation, words
from _figures import Figures
from diloco import model_of

from hansa.client.host import SiloHost
from hansa.client.packing import pack
from hansa.client.resident import ResidentSilo
from hansa.client.runtime import Runtime
from hansa.client.training import backward
from hansa.core.batch import Batch
from hansa.core.learner import Work
from hansa.core.seeds import stream
from hansa.links.local import LocalLink
from hansa.methods.fedavg import PlainObjective
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.start import begin

BATCH, WINDOW, ROWS = 8, 512, 96  # a window of 512 tokens is the default of task `instruct`


def texts(vocabulary: list[str], count: int) -> Iterator[str]:
    """Questions with their answers, of a file or made up."""
    if named := os.environ.get("HANSA_BENCH_TEXTS"):
        opened = gzip.open if named.endswith(".gz") else open
        with opened(named, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        for i in stream(0, "rows").permutation(len(rows))[:count]:
            yield f"{rows[i]['question']} {rows[i]['answer']}"
        return
    rng = stream(0, "lengths")
    for length in np.exp(rng.normal(np.log(146), 0.87, count)).astype(int):
        yield " ".join(vocabulary[i] for i in rng.integers(0, len(vocabulary), max(8, int(length))))


def shuffled(resident: ResidentSilo, packed: bool) -> Iterator[Batch]:
    """Batches in random order, padded or packed."""
    held, runtime = resident.examples("train"), resident.runtime
    rng = stream(0, "order")
    order = rng.permutation(len(held))
    for start in range(0, len(order), BATCH):
        batch = runtime.task.batch(held, order[start : start + BATCH], rng, runtime.vocabulary)
        yield pack(batch, WINDOW) if packed else batch


def rate(resident: ResidentSilo, batches: list[Batch]) -> float:
    """Tokens per second of processor time, without padding."""
    runtime, learner = resident.runtime, resident.runtime.learner
    training = runtime.federation.train
    learner.model.train()
    work = Work(learner, learner.state, 1)
    held = int(resident.examples("train").lengths.sum())
    began = process_time()
    for work.batch in batches:
        backward(work, runtime.task, PlainObjective(), training, len(work.batch.targets))
    return held / (process_time() - began)


def main() -> None:
    torch.set_num_threads(1)
    figures = Figures.from_arguments()
    count, width, layers, runs = (24, 32, 1, 1) if figures.smoke else (ROWS, 256, 4, 3)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ["HANSA_CACHE"] = str(place / "cache")
        vocabulary = words(400)
        file = place / "texts.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(vocabulary, count)))
        training = {"batch": BATCH, "samples": {"epochs": 1, "replace": False}}
        model = model_of(place / "model", vocabulary, width, layers, WINDOW)
        settings = federation({"s0": str(file)}, model, WINDOW, task="causal-lm", train=training)
        directory = RunDirectory.create(settings, place / "run", False)
        ledger = Ledger(directory.path)
        host = SiloHost(Runtime(settings, directory.path))
        begin(settings, directory, LocalLink(host.answer), ledger, RunEvents())
        ledger.close()
        resident = host.silo("s0").resident
        ordinary, packing = settings.train, settings.train.model_copy(update={"packing": True})
        arms: dict[str, Callable[[], list[Batch]]] = {
            "padded, random order": lambda: list(shuffled(resident, False)),
            "packed, random order": lambda: list(shuffled(resident, True)),
            "padded, similar length": lambda: [part for parts in resident.batches(1, ordinary) for part in parts],
            "packed, similar length": lambda: [part for parts in resident.batches(1, packing) for part in parts],
        }
        made = {name: make() for name, make in arms.items()}
        best = dict.fromkeys(arms, 0.0)
        for _ in range(runs):
            for name, batches in made.items():
                best[name] = max(best[name], rate(resident, batches))
    for name, found in best.items():
        cells = sum(one.inputs["input_ids"].numel() for one in made[name])
        print(f"{name}: {found:,.0f} tokens per second, {cells:,} positions", flush=True)
    peer = best["padded, random order"]
    what = "tokens per second with `train.packing` against padded batches in random order"
    figures.add("packing_tokens", what, best["packed, similar length"] / peer, "times", ">=", 1.3)
    alone = best["padded, similar length"] / peer
    figures.add("sorting_tokens", "those of Hansa's batches without packing", alone, "times", ">=", 1.3)
    figures.end()


if __name__ == "__main__":
    main()
