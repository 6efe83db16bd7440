"""Runs of an experiment: small ones here, one after another; long ones in processes of their own, as many side by side
as there are cores."""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import sleep
from types import TracebackType

from hansa.config import Federation
from hansa.processes import in_a_process
from hansa.reproduce import Say
from hansa.run import Outcome, run


class Jobs:
    """Jobs begin in the order in which they are given."""

    def __init__(self, folder: Path, say: Say, side_by_side: bool) -> None:
        self._folder, self._say, self.side_by_side = folder, say, side_by_side
        # Loading models is not safe in several threads of one process.
        self._threads = ThreadPoolExecutor((os.cpu_count() or 1) if side_by_side else 1)
        self._futures: dict[str, Future[Outcome]] = {}

    def start(self, name: str, federation: Federation, workers: int | None = 0) -> None:
        self._futures[name] = self._threads.submit(self._run, name, federation, self._home(name), workers)

    def _home(self, name: str) -> Path:
        return self._folder / name.replace(" ", "-")

    def _run(self, name: str, federation: Federation, folder: Path, workers: int | None) -> Outcome:
        self._say(f"{name}: begins")
        if self.side_by_side:
            outcome = in_a_process(federation, folder, lambda line: self._say(f"{name}: {line}"), workers)
        else:
            outcome = run(federation, folder, workers=0)
        self._say(f"{name}: done")
        return outcome

    def result(self, name: str) -> Outcome:
        """Wait for a job."""
        return self._futures[name].result()

    def begun(self, name: str) -> Path:
        """Wait until a job has agreed on its tokeniser and first weights; where they are."""
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
