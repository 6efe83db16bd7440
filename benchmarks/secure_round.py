"""A round with secure aggregation and distributed noise against the plain round, in one run on the worker pool.

Ten silos, a model of ten million parameters, 20 local steps. Both federations have the same data and the same starting
model, and their rounds are taken in turns: what disturbs one disturbs the other.
"""

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
import torch
from _federations import federation, model_folder, silos, tokenizer_of, words
from _figures import Figures

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.core.inner_node import InnerNode
from hansa.core.state import ServerState
from hansa.links.pool import PoolLink
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.start import begin, describe
from hansa.runs.topology import build_topology

STEPS, BATCH, LENGTH = 20, 8, 32
SECURE = {"secure_aggregation": {"noise": {"multiplier": 1.0, "clip": 1.0}, "metrics": True}}


class Side:
    """One of the two federations, ready to run rounds."""

    def __init__(self, stack: ExitStack, root: Path, workers: int, name: str, settings: dict[str, Any]) -> None:
        given = federation(**settings)
        directory = RunDirectory.create(given, root / name, False)
        ledger = Ledger(directory.path)
        stack.callback(ledger.close)
        link = stack.enter_context(PoolLink(given, directory.path, workers))
        begin(given, directory, link, ledger, RunEvents())
        cards = describe(given, directory, link, ledger, RunEvents())
        runtime = Runtime(given, directory.path)
        self.node: InnerNode = build_topology(SiloHost(runtime), link, cards)
        self.state: ServerState = self.node.begin(runtime.start.copy())
        self.seconds, self.computing, self.parameters = float("inf"), float("inf"), runtime.start.layout.size

    def round(self, number: int) -> None:
        """Run one round and keep the time of the shortest."""
        began, before = perf_counter(), processor_seconds()
        record = self.node.root_round(self.state, number)
        self.seconds = min(self.seconds, perf_counter() - began)
        self.computing = min(self.computing, processor_seconds() - before)
        assert not record.failed, record.failed
        assert not record.failures, record.failures


def processor_seconds() -> float:
    """What this process and its workers have computed so far."""
    here = psutil.Process()
    times = [process.cpu_times() for process in (here, *here.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def main() -> None:
    torch.set_num_threads(1)
    figures, workers = Figures.from_arguments(), psutil.cpu_count() or 1
    count, layers, width, entries, rounds = (3, 1, 32, 300, 1) if figures.smoke else (10, 10, 256, 8000, 2)
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        root = Path(place)
        os.environ["HANSA_CACHE"] = str(root / "cache")
        vocabulary = words(entries)
        tokenizer = tokenizer_of(vocabulary, entries)
        settings = {
            "files": silos(root / "data", count, STEPS * BATCH, LENGTH, vocabulary),
            "model": model_folder(root / "model", tokenizer, layers, width, 4, LENGTH),
            "length": LENGTH,
            "rounds": 100,
            "train": {"optimizer": "adamw", "lr": 1e-3, "batch": BATCH, "samples": {"floor": STEPS * BATCH}},
            "aggregate": {"weights": "uniform"},
        }
        plain = Side(stack, root, workers, "plain", settings)
        secure = Side(stack, root, workers, "secure", settings | SECURE)
        for number in range(rounds):
            plain.round(number)
            secure.round(number)
        ratio = secure.seconds / plain.seconds
        print(
            f"{count} silos, {plain.parameters:,} parameters, {workers} workers: plain round {plain.seconds:.2f} s, "
            f"secure round {secure.seconds:.2f} s; processor time {plain.computing:.1f} s and {secure.computing:.1f} s"
        )
    what = (
        f"a round of {STEPS} steps with secure aggregation and distributed noise, {count} silos, against the plain one"
    )
    figures.add("secure_round_vs_plain", what, ratio, "ratio", "<=", 1.5)
    figures.end()


if __name__ == "__main__":
    main()
