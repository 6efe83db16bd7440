"""A round over 1,000 silos on the worker pool, against the same steps bare.

0.16M parameters, one step each. The peer has as many processes, one resident model each, batches made beforehand, and
no federation. pfl-research, the fastest simulator we measured, adds 0.7 to 1.05 ms per silo.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import psutil
import torch
from _federations import federation, model_folder, silos, tokenizer_of, words
from _figures import Figures, best_of

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.client.training import Optimizer
from hansa.config.file import read
from hansa.links.pool import PoolLink
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.start import begin, describe
from hansa.runs.topology import build_topology

BATCH, LENGTH, ROUNDS = 8, 32, 5


def bare_steps(folder: Path, names: list[str]) -> None:
    """Forward, backward and step for every silo's batches; once for every line on standard input."""
    torch.set_num_threads(1)
    runtime = Runtime(read(folder / "federation.yaml"), folder)
    host, learner, task, training = SiloHost(runtime), runtime.learner, runtime.task, runtime.federation.train
    batches = [b for name in names for parts in host.silo(name).resident.batches(1, training) for b in parts]
    optimizer = Optimizer(learner, training)
    learner.model.train()
    print("ready", flush=True)
    for _ in sys.stdin:
        for batch in batches:
            learner.grad.zero_()
            task.loss(learner.model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        print("done", flush=True)


class Bare:
    """The bare steps on ``workers`` processes that wait between runs."""

    def __init__(self, folder: Path, names: list[str], workers: int) -> None:
        command = [sys.executable, __file__, "bare", str(folder)]
        self.running = [
            subprocess.Popen([*command, *names[i::workers]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for i in range(workers)
        ]
        self._all_say("ready")

    def _all_say(self, word: str) -> None:
        for process in self.running:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == word

    def run(self) -> None:
        for process in self.running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        self._all_say("done")

    def close(self) -> None:
        for process in self.running:
            process.communicate()


def measure(count: int, workers: int) -> dict[str, float]:
    """The shortest round and the shortest bare run, taken in turns: what disturbs one disturbs the other."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        os.environ["HANSA_CACHE"] = str(root / "cache")
        model = model_folder(root / "model", tokenizer_of([], 0), layers=3, width=60, heads=2, positions=LENGTH + 2)
        files = silos(root / "data", count, BATCH, 12, words(500))
        training = {"lr": 0.01, "batch": BATCH, "samples": {"floor": BATCH}}
        settings = federation(files, model, LENGTH, train=training)
        directory = RunDirectory.create(settings, root / "run", False)
        ledger = Ledger(directory.path)
        with PoolLink(settings, directory.path, workers) as link:
            begin(settings, directory, link, ledger, RunEvents())
            cards = describe(settings, directory, link, ledger, RunEvents())
            runtime = Runtime(settings, directory.path)
            node = build_topology(SiloHost(runtime), link, cards)
            state = node.begin(runtime.start.copy())
            bare = Bare(directory.path, list(settings.silos), workers)
            round_seconds = bare_seconds = float("inf")
            for _ in range(ROUNDS):
                began = perf_counter()
                record = node.root_round(state, 0)
                round_seconds = min(round_seconds, perf_counter() - began)
                assert len(record.updates) == count, record.failures
                bare_seconds = min(bare_seconds, best_of(1, bare.run))
            memory = sum(map(peak, [os.getpid(), *(worker.process.pid for worker in link._workers)]))
            bare.close()
        ledger.close()
    return {"round": round_seconds, "bare": bare_seconds, "memory": memory, "parameters": state.model.layout.size}


def peak(process: int) -> int:
    """The largest resident size so far, in bytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def main() -> None:
    figures = Figures.from_arguments()
    workers = psutil.cpu_count() or 1
    silos_many, silos_few = (12, 3) if figures.smoke else (1000, 9)

    def fresh(count: int) -> dict[str, float]:
        """In a process of its own, so that peaks of memory are its own too."""
        command = [sys.executable, __file__, "measure", str(count), str(workers)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    many, few = fresh(silos_many), fresh(silos_few)
    print(
        f"{many['parameters']:,.0f} parameters, {silos_many:,} silos, {workers} workers: bare steps "
        f"{many['bare']:.2f} s, round {many['round']:.2f} s; memory {many['memory'] / 1e6:.0f} MB, with {silos_few} "
        f"silos {few['memory'] / 1e6:.0f} MB"
    )
    overhead = 1000 * (many["round"] - many["bare"]) / silos_many
    figures.add("overhead_per_silo", "overhead per silo, 1,000 silos with 0.16M parameters", overhead, "ms", "<=", 0.5)
    memory = many["memory"] / few["memory"]
    figures.add("memory_1000_silos_vs_9", "memory with 1,000 silos against 9", memory, "ratio", "<=", 1.2)
    figures.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["bare"]:
        bare_steps(Path(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1:2] == ["measure"]:
        print(json.dumps(measure(int(sys.argv[2]), int(sys.argv[3]))))
    else:
        main()
