"""The runs of an experiment: one after another in this process, or several at a time in other processes.

As many run at the same time as there are cores. Runs without workers share a pool of processes, because the start of a
process takes as long as many training steps.
"""

from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import sleep
from types import TracebackType

import torch

from hansa.config.federation import Federation
from hansa.core.device import cores
from hansa.experiments.processes import run_in_process
from hansa.experiments.reproduce import Say
from hansa.runs.inference import Scored, every_model, on_silos
from hansa.runs.result import Result
from hansa.runs.run import run


class Jobs:
    """Runs that are started in order and whose outcomes are collected by name.

    ``side_by_side``: in several processes; otherwise in this one. A run whose directory exists is resumed.
    """

    def __init__(self, folder: Path, say: Say, side_by_side: bool) -> None:
        self._folder, self._say, self.side_by_side = folder, say, side_by_side
        # Loading models is not safe in several threads of one process.
        self._threads = ThreadPoolExecutor(cores() if side_by_side else 1)
        self._processes = ProcessPoolExecutor(cores(), get_context("spawn"), torch.set_num_threads, (1,))
        self._futures: dict[str, Future[Result]] = {}
        self._matrices: dict[str, dict[str, Scored]] = {}

    def start(self, name: str, federation: Federation, workers: int | None = 0, matrix: float = 0.0) -> None:
        """Start a run; ``matrix``: then score every model of it on this share of every silo's test data."""
        self._futures[name] = self._threads.submit(self._run, name, federation, self._home(name), workers, matrix)

    def _home(self, name: str) -> Path:
        return self._folder / name.replace(" ", "-")

    def _run(self, name: str, federation: Federation, folder: Path, workers: int | None, matrix: float) -> Result:
        again = (folder / "federation.yaml").is_file()  # a finished run is resumed and ends at once
        self._say(f"{name}: {'resumed' if again else 'started'}")
        if not self.side_by_side:
            outcome = run(federation, folder, again, workers=0)
        elif workers == 0:
            outcome = self._processes.submit(run, federation, folder, again, workers=0).result()
        else:
            outcome = run_in_process(federation, folder, lambda line: self._say(f"{name}: {line}"), workers, again)
        if matrix:
            here = not self.side_by_side
            self._matrices[name] = (
                _matrix(folder, matrix) if here else self._processes.submit(_matrix, folder, matrix).result()
            )
        self._say(f"{name}: done")
        return outcome

    def result(self, name: str) -> Result:
        """Wait for a job and return its outcome."""
        return self._futures[name].result()

    def matrix(self, name: str) -> dict[str, Scored]:
        """Model → silo → metrics, of a job that was started with ``matrix``."""
        self.result(name)
        return self._matrices[name]

    def start_folder(self, name: str) -> Path:
        """Wait until a job has written its tokenizer and initial weights; return their folder."""
        start = self._home(name) / "start"
        while not start.exists():
            if self._futures[name].done():
                self.result(name)
            sleep(0.2)
        return start

    def __enter__(self) -> "Jobs":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=kind is not None)
        self._processes.shutdown(wait=True, cancel_futures=kind is not None)


def _matrix(folder: Path, share: float) -> dict[str, Scored]:
    return every_model(folder, lambda runtime, model: on_silos(runtime, model, share))
