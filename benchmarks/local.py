"""One round over nine silos on the worker pool, against a plain PyTorch loop.

Encoder 4 × 256, sequences of 64. The peer takes the same steps on all cores with transformers' BertForMaskedLM and its
own loss.
"""

import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from _federations import federation, model_folder, silos, tokenizer_of, words
from _figures import Figures
from transformers import AutoModelForMaskedLM

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.core.messages import Train
from hansa.core.round import Record, admit
from hansa.core.tensors import Tensors
from hansa.links.pool import PoolLink
from hansa.methods.fedavg import Mean
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.start import begin, describe

SILOS, STEPS, BATCH, LENGTH, ROUNDS = 9, 2, 16, 64, 5


class PlainLoop:
    """The same local steps, silo after silo, as an engineer would write them with transformers."""

    def __init__(self, host: SiloHost, cores: int) -> None:
        self.host, self.cores = host, cores
        self.model = AutoModelForMaskedLM.from_pretrained(host.runtime.folder / "start")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.start = {name: value.clone() for name, value in self.model.state_dict().items()}

    def round(self, number: int) -> float:
        work = []
        training = self.host.runtime.federation.train
        for silo in range(SILOS):
            for parts in self.host.silo(f"s{silo}").resident.batches(number, training):
                for batch in parts:
                    labels = np.full(batch.inputs["input_ids"].shape, -100)
                    assert batch.rows is not None
                    labels.reshape(-1)[batch.rows.numpy()] = batch.targets.numpy()
                    work.append((silo, batch.inputs, torch.from_numpy(labels)))
        torch.set_num_threads(self.cores)
        began, last = perf_counter(), -1
        for silo, inputs, targets in work:
            if silo != last:
                self.model.load_state_dict(self.start)
                last = silo
            self.optimizer.zero_grad()
            self.model(**inputs, labels=targets).loss.backward()
            self.optimizer.step()
        seconds = perf_counter() - began
        torch.set_num_threads(1)
        return seconds


def hansa_round(settings: Federation, link: PoolLink, model: Tensors, number: int) -> tuple[float, float]:
    """A round, and the training steps of all silos in it, in seconds."""
    began = perf_counter()
    record = Record(number, list(settings.silos))
    answers = link.ask(dict.fromkeys(settings.silos, Train(number, model)), None)
    updates = (update for answer in answers if (update := admit(answer, model.layout, record)) is not None)
    Mean().combine(model.layout, ((u, float(u.samples)) for u in updates))
    seconds = perf_counter() - began
    assert len(record.updates) == SILOS, record.failures
    return seconds, sum(u.seconds for u in record.updates.values())


def measure(figures: Figures, size: int, target: float, cores: int) -> None:
    rounds = 1 if figures.smoke else ROUNDS
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
            begin(settings, directory, link, ledger, RunEvents())
            describe(settings, directory, link, ledger, RunEvents())
        ledger.close()
        host = SiloHost(Runtime(settings, directory.path))
        start, plain = host.runtime.start, PlainLoop(host, cores)
        theirs, ours, alone = list[float](), list[float](), list[tuple[float, float]]()
        with PoolLink(settings, directory.path, cores) as pool, PoolLink(settings, directory.path, 1) as single:
            for number in range(1, rounds + 2):  # in turns: what disturbs one disturbs the others
                theirs.append(plain.round(number))
                ours.append(hansa_round(settings, pool, start, number)[0])
                alone.append(hansa_round(settings, single, start, number))
        their_round, our_round = min(theirs[1:]), min(ours[1:])  # the first round warms everything up
        one_worker, steps = min(alone[1:], key=lambda pair: 1 - pair[1] / pair[0])
        print(
            f"vocabulary {len(tokenizer):,}: plain loop on {cores} cores {their_round:.2f} s, Hansa with {cores} "
            f"workers {our_round:.2f} s, with one worker {one_worker:.2f} s of which steps {steps:.2f} s"
        )
        name = f"{size // 1000}k"
        what = f"a round over nine silos (encoder 4 × 256, {name} vocabulary) against a plain PyTorch loop on all cores"
        figures.add(f"round_time_vs_plain_pytorch_{name}", what, our_round / their_round, "ratio", "<=", target)
        outside = 100 * (1 - steps / one_worker)
        figures.add(f"time_outside_steps_{name}", f"time outside training steps, {name}", outside, "percent", "<=", 2.5)


def main() -> None:
    figures = Figures.from_arguments()
    cores = torch.get_num_threads()
    for size, target in ((500, 0.62),) if figures.smoke else ((8000, 0.62), (32000, 0.35)):
        measure(figures, size, target, cores)
    figures.end()


if __name__ == "__main__":
    main()
