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
from hansa.experiments.reproduce.cells import Cell, Cells, settings_digest
from hansa.experiments.reproduce.sources import imported
from hansa.runs.inference import Scored, every_model, on_silos
from hansa.runs.result import Result
from hansa.runs.run import run


class Jobs:
    """Runs that are started in order and whose outcomes are collected by name.

    ``side_by_side``: in several processes; otherwise in this one. A run whose directory exists is resumed. ``cells``:
    where the result of every finished run is kept.
    """

    def __init__(self, folder: Path, say: Say, side_by_side: bool, cells: Cells | None = None) -> None:
        self._folder, self._say, self.side_by_side, self._cells = folder, say, side_by_side, cells
        self.kept: list[Cell] = []  # of the runs that are finished
        # Loading models is not safe in several threads of one process.
        self._threads = ThreadPoolExecutor(cores() if side_by_side else 1)
        self._processes = ProcessPoolExecutor(cores(), get_context("spawn"), torch.set_num_threads, (1,))
        self._futures: dict[str, Future[Result]] = {}
        self._matrices: dict[str, dict[str, Scored]] = {}

    def start(
        self,
        name: str,
        federation: Federation,
        workers: int | None = 0,
        matrix: float = 0.0,
        scores_only: bool = False,
    ) -> None:
        """Start a run; ``matrix``: then score every model of it on this share of every silo's test data.

        ``scores_only``: nothing but the final scores is needed, so that a run whose cell is kept is not repeated when
        its directory is gone.
        """
        self._futures[name] = self._threads.submit(
            self._run, name, federation, self._home(name), workers, matrix, scores_only
        )

    def _home(self, name: str) -> Path:
        return self._folder / name.replace(" ", "-")

    def _run(
        self,
        name: str,
        federation: Federation,
        folder: Path,
        workers: int | None,
        matrix: float,
        scores_only: bool,
    ) -> Result:
        again = (folder / "federation.yaml").is_file()  # a finished run is resumed and ends at once
        known = self._cells.find(name, federation.seed, settings_digest(federation)) if self._cells else None
        if known is not None and scores_only and not again:
            self._say(f"{name}: finished before")
            self.kept.append(known)
            return Result(folder, known.scores, known.own)
        self._say(f"{name}: {'resumed' if again else 'started'}")
        if not self.side_by_side:
            outcome, files = _here(federation, folder, again)
        elif workers == 0:
            outcome, files = self._processes.submit(_here, federation, folder, again).result()
        else:
            outcome = run_in_process(federation, folder, lambda line: self._say(f"{name}: {line}"), workers, again)
            files = imported()  # of this process, which has imported what makes a run
        if matrix:
            here = not self.side_by_side
            self._matrices[name] = (
                _matrix(folder, matrix) if here else self._processes.submit(_matrix, folder, matrix).result()
            )
        if self._cells is not None:
            digest = settings_digest(federation)
            cell = known or self._cells.from_run(name, federation.seed, digest, folder, files)
            self.kept.append(cell)
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


def _here(federation: Federation, folder: Path, again: bool) -> tuple[Result, dict[str, str]]:
    """Run in this process; return the outcome and the source files that the process has imported."""
    return run(federation, folder, again, workers=0), imported()


def _matrix(folder: Path, share: float) -> dict[str, Scored]:
    return every_model(folder, lambda runtime, model: on_silos(runtime, model, share))
