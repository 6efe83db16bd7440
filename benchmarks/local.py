"""One round over nine silos (encoder 4 × 256, sequences of 64) on the worker pool, against the same steps in a plain
PyTorch loop that uses all cores and the library's own masked-LM loss (transformers' BertForMaskedLM).
"""

import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from _federations import federation, model_folder, silos, tokenizer_of, words
from _figures import Figures
from transformers import AutoModelForMaskedLM

from hansa.client.runtime import Runtime
from hansa.core.messages import Train
from hansa.core.round import Record, screen
from hansa.links.pool import PoolLink
from hansa.methods.fedavg import Mean
from hansa.runs.callbacks import NoCallbacks
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.start import begin, describe

SILOS, STEPS, BATCH, LENGTH, ROUNDS = 9, 2, 16, 64, 3


class PlainLoop:
    """The same local steps, silo after silo, as anybody would write them."""

    def __init__(self, runtime: Runtime, cores: int) -> None:
        self.runtime, self.cores = runtime, cores
        self.model = AutoModelForMaskedLM.from_pretrained(runtime.folder / "start")
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.start = {name: value.clone() for name, value in self.model.state_dict().items()}

    def round(self, number: int) -> float:
        work = []
        for silo in range(SILOS):
            for batch in self.runtime.silo(f"s{silo}")._batches(number):
                labels = np.full(batch.inputs["input_ids"].shape, -100)
                labels.reshape(-1)[batch.rows.numpy()] = batch.targets.numpy()
                work.append((silo, batch.inputs, torch.from_numpy(labels)))
        torch.set_num_threads(self.cores)
        began, last = perf_counter(), -1
        for silo, inputs, labels in work:
            if silo != last:
                self.model.load_state_dict(self.start)
                last = silo
            self.optimiser.zero_grad()
            self.model(**inputs, labels=labels).loss.backward()
            self.optimiser.step()
        seconds = perf_counter() - began
        torch.set_num_threads(1)
        return seconds


def hansa_round(settings, link: PoolLink, model, number: int) -> tuple[float, float]:
    """A round, and the training steps of all silos in it, in seconds."""
    began = perf_counter()
    record = Record(number, list(settings.silos))
    answers = link.ask(dict.fromkeys(settings.silos, Train(number, model)), None)
    updates = screen(answers, model.layout, record)
    Mean().combine(model.layout, ((u, float(u.samples)) for u in updates))
    seconds = perf_counter() - began
    assert len(record.updates) == SILOS
    return seconds, sum(u.seconds for u in record.updates.values())


def measure(figures: Figures, size: int, target: float, cores: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        vocabulary = words(size)
        tokenizer = tokenizer_of(vocabulary, size)
        model = model_folder(root / "model", tokenizer, layers=4, width=256, heads=4, positions=LENGTH + 2)
        files = silos(root / "data", SILOS, STEPS * BATCH, 70, vocabulary)
        training = {"lr": 0.1, "batch": BATCH, "samples": {"floor": STEPS * BATCH}}
        settings = federation(files, model, LENGTH, train=training)
        directory = RunDirectory.create(settings, root / "run", False)
        ledger = Ledger(directory.path)
        with PoolLink(settings, directory.path, cores) as link:
            begin(settings, directory, link, ledger, NoCallbacks())
            describe(settings, directory, link, ledger, NoCallbacks())
        ledger.close()
        runtime = Runtime(settings, directory.path)
        start, plain = runtime.start, PlainLoop(runtime, cores)
        theirs, ours, alone, steps = [], [], [], []
        with PoolLink(settings, directory.path, cores) as pool, PoolLink(settings, directory.path, 1) as single:
            for number in range(1, ROUNDS + 2):  # in turns: what disturbs one disturbs the others
                theirs.append(plain.round(number))
                ours.append(hansa_round(settings, pool, start, number)[0])
                seconds, in_steps = hansa_round(settings, single, start, number)
                alone.append(seconds)
                steps.append(in_steps)
        # The first round warms everything up.
        theirs, ours = min(theirs[1:]), min(ours[1:])
        alone, steps = min(zip(alone[1:], steps[1:], strict=True))
        print(
            f"vocabulary {len(tokenizer):,}: plain loop on {cores} cores {theirs:.2f} s, Hansa with {cores} workers "
            f"{ours:.2f} s, with one worker {alone:.2f} s of which steps {steps:.2f} s"
        )
        figures.add(f"round_time_vs_plain_pytorch_{size // 1000}k", ours / theirs, "ratio", "<=", target)
        figures.add(f"time_outside_steps_{size // 1000}k", 100 * (1 - steps / alone), "percent", "<=", 5.0)


def main() -> None:
    figures = Figures()
    cores = torch.get_num_threads()
    measure(figures, 8000, 0.65, cores)
    measure(figures, 32000, 0.40, cores)
    figures.end()


if __name__ == "__main__":
    main()
