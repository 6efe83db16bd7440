"""The queue of a standing coordinator: federation files that wait for their turn, and what became of each.

``RUNS/.queue/0007.yaml`` is a federation file as it was submitted, ``0007.json`` its state, and ``RUNS/NAME-0007`` the
run directory. All of it survives a restart: runs that were under way are continued first. Silos approve every run as if
it were the only one. `queue_worker.py` works on the runs.
"""

import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fcntl import LOCK_EX, flock
from pathlib import Path

from hansa.config.federation import Federation
from hansa.config.file import dump
from hansa.core.errors import UserError, printable
from hansa.files import write_file

FOLDER = ".queue"
QUEUED, WAITING, RUNNING, FINISHED, FAILED, STOPPED = "queued", "waiting", "running", "finished", "failed", "stopped"
BEGUN = (WAITING, RUNNING)  # waiting: its silos are asked, and the first round has not begun
ENDED = (FINISHED, FAILED, STOPPED)
ID = re.compile(r"\d{4,9}")
OPERATOR = "the operator"


@dataclass(frozen=True)
class QueuedRun:
    """A submitted run. ``at`` and ``ended``: when it was submitted and when it ended; ``reason``: why it failed."""

    id: str
    name: str
    by: str
    at: str
    state: str = QUEUED
    ended: str = ""
    reason: str = ""


class RunQueue:
    """The queue below a folder of runs."""

    def __init__(self, runs: Path) -> None:
        self.runs, self.folder = runs, runs / FOLDER

    def add(self, federation: Federation, by: str) -> QueuedRun:
        """Put a federation file at the end of the queue; paths in it stay valid, since they are absolute."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number = max((int(one.id) for one in self.all()), default=0)
        while True:
            number += 1
            file = self.folder / f"{number:04d}.yaml"
            try:
                os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                break
            except FileExistsError:
                continue
        write_file(file, dump(federation).encode(), mode=0o600)
        one = QueuedRun(f"{number:04d}", federation.name, by, _now())
        self._write(one)
        return one

    def all(self) -> list[QueuedRun]:
        """All submitted runs in the order of submission; files that cannot be read are left out."""
        found = (self._read(file) for file in sorted(self.folder.glob("*.json"), key=lambda file: file.stem.zfill(9)))
        return [one for one in found if one is not None]

    def find(self, id: str) -> QueuedRun:
        """The run with an id; raises `UserError` if there is none."""
        found = self._read(self.folder / f"{id}.json") if ID.fullmatch(id) else None
        if found is None:
            raise UserError(f"{self.runs} has no submitted run {id!r}; 'hansa runs {self.runs}' lists them")
        return found

    def next(self, besides: Collection[str] = ()) -> QueuedRun | None:
        """The run to work on: one that was under way when the coordinator stopped, else the first in the queue.

        ``besides``: the ids of runs that are worked on already.
        """
        open = [one for one in self.all() if one.state not in ENDED and one.id not in besides]
        return min(open, key=lambda one: (one.state == QUEUED, int(one.id)), default=None)

    def begin(self, besides: Collection[str] = ()) -> QueuedRun | None:
        """The run that `next` returns, noted as under way."""
        with self._changing():
            one = self.next(besides)
            if one is not None:
                self.mark(one, RUNNING)
            return one

    def file(self, one: QueuedRun) -> Path:
        """The federation file of a run."""
        return self.folder / f"{one.id}.yaml"

    def directory(self, one: QueuedRun) -> Path:
        """The run directory."""
        return self.runs / f"{one.name}-{one.id}"

    def mark(self, one: QueuedRun, state: str, reason: str = "") -> None:
        """Note the state of a run."""
        self._write(replace(one, state=state, reason=reason, ended=_now() if state in ENDED else ""))

    def stop(self, id: str, by: str = OPERATOR) -> QueuedRun:
        """End a run after its current round, or before the first one; ``by``: who does it.

        Raises `UserError` if it has ended.
        """
        self.find(id)
        with self._changing():
            one = self.find(id)
            if one.state in ENDED:
                raise UserError(f"run {id} has {one.state} already")
            if one.state == QUEUED:
                self.mark(one, STOPPED, _stopped(by))
            else:
                write_file(self.folder / f"{id}.stop", by.encode(), mode=0o600)
            return self.find(id)

    def retry(self, id: str) -> QueuedRun:
        """Put a run that failed or was stopped into the queue again; it continues from its newest checkpoint."""
        self.find(id)
        with self._changing():
            one = self.find(id)
            if one.state not in (FAILED, STOPPED):
                raise UserError(f"run {id} is {one.state}; only a run that failed or was stopped can be tried again")
            self.mark(one, QUEUED)
            return self.find(id)

    def stop_requested(self, one: QueuedRun) -> str:
        """Who called `stop` for a run that is under way, as the reason of its end; empty if nobody did."""
        file = self.folder / f"{one.id}.stop"
        try:
            return _stopped(file.read_text(encoding="utf-8") or OPERATOR)
        except (OSError, ValueError):
            return _stopped(OPERATOR) if file.exists() else ""

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Let one process at a time decide on a state by the one before: a run that begins is not taken out."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".changes").open("wb") as lock:
            flock(lock, LOCK_EX)
            yield

    def _read(self, file: Path) -> QueuedRun | None:
        try:
            return QueuedRun(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def _write(self, one: QueuedRun) -> None:
        if one.state in ENDED or one.state == QUEUED:
            (self.folder / f"{one.id}.stop").unlink(missing_ok=True)
        write_file(self.folder / f"{one.id}.json", json.dumps(asdict(one), ensure_ascii=False).encode(), mode=0o600)


def _stopped(by: str) -> str:
    return f"stopped by {printable(by)}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
