"""Retention: what is deleted of runs that have ended, at the coordinator and at a silo.

| what | where | holds |
|---|---|---|
| spool | RUN/server | uploads of silos, the broker's store, the journal: updates in clear |
| checkpoints | RUN/checkpoints | models of earlier rounds |
| inputs | RUN/inputs | text of a run whose data was given in memory |
| everything | RUN | also the final model, the ledger, the audit log and the report |
| a silo's files of a run | HOME/runs/RUN | settings, start, state, replies, personal models |
| a silo's cache | $HANSA_CACHE/examples | token ids of its texts: patient text |

A silo's audit log, budget and approvals lie beside HOME/runs and are never deleted.
"""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time

from hansa.data.cache import cache_folder
from hansa.deploy.lock_file import LOCK, is_locked

PARTS = ("server", "checkpoints", "inputs")
DAY = 86400.0
HOUR = 3600.0
CACHE = "token ids in the cache"


@dataclass(frozen=True)
class Deletion:
    """A folder to delete: of which run, and how many bytes it has."""

    run: str
    folder: Path
    size: int


def old_parts(runs: Path, days: float, whole: bool = False) -> Iterator[Deletion]:
    """What to delete of the runs below a folder whose ledger has not changed for so many days.

    ``whole``: the run directories themselves; by default only spools, checkpoints and inputs. A run that a process
    works on is left alone.
    """
    for run in sorted(runs.iterdir()) if runs.is_dir() else ():
        ledger = run / "ledger.sqlite"
        if run.is_symlink() or not ledger.is_file() or time() - ledger.stat().st_mtime < days * DAY or _in_use(run):
            continue
        for folder in [run] if whole else [run / part for part in PARTS]:
            if folder.is_dir():
                yield Deletion(run.name, folder, _size(folder))


def old_files_of_silo(home: Path, days: float) -> Iterator[Deletion]:
    """What to delete at a silo: its files of runs, and cached token ids, that were not written for so many days.

    Token ids that a run still needs are made again. ``home``: the folder of `hansa join` for the silo's own files.
    """
    for run in _folders(home / "runs"):
        if _newest(run) < time() - days * DAY:
            yield Deletion(run.name, run, _size(run))
    for cached in _folders(cache_folder() / "examples"):
        if _newest(cached) < time() - days * DAY:
            yield Deletion(CACHE, cached, _size(cached))


def delete(found: Iterator[Deletion]) -> list[Deletion]:
    """Delete what `old_parts` or `old_files_of_silo` lists; return it."""
    deleted = list(found)
    for one in deleted:
        shutil.rmtree(one.folder, ignore_errors=True)
    return deleted


@contextmanager
def deleting(find: Callable[[], Iterator[Deletion]], log: Callable[[str], None]) -> Iterator[None]:
    """Delete what ``find`` lists now and every hour until the context ends; ``log`` gets a line for each folder."""
    ended = threading.Event()

    def work() -> None:
        """Delete, then wait for an hour or the end; an error of the disk is logged and tried again."""
        while True:
            try:
                for one in delete(find()):
                    log(f"{one.run}: deleted {one.folder} after the time for which it is kept")
            except OSError as error:
                log(f"old files cannot be deleted ({error}); it is tried again in an hour")
            if ended.wait(HOUR):
                return

    thread = threading.Thread(target=work, name="hansa-retention", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _folders(folder: Path) -> list[Path]:
    return [one for one in sorted(folder.iterdir()) if one.is_dir() and not one.is_symlink()] if folder.is_dir() else []


def _newest(folder: Path) -> float:
    """When the folder, or a file in it, was last written."""
    return max(one.lstat().st_mtime for one in (folder, *folder.rglob("*")))


def _size(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())


def _in_use(run: Path) -> bool:
    return (run / "server" / LOCK).exists() and is_locked(run / "server")
