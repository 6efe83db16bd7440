"""Retention: what is deleted of runs that have ended.

| what | where | holds |
|---|---|---|
| spool | RUN/server | uploads of silos, the broker's store, the journal: updates in clear |
| checkpoints | RUN/checkpoints | models of earlier rounds |
| inputs | RUN/inputs | text of a run whose data was given in memory |
| everything | RUN | also the final model, the ledger, the audit log and the report |
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import time

from hansa.deploy.lock_file import LOCK, is_locked

PARTS = ("server", "checkpoints", "inputs")
DAY = 86400.0


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
                yield Deletion(run.name, folder, sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()))


def prune(runs: Path, days: float, whole: bool = False) -> list[Deletion]:
    """Delete what `old_parts` lists; return it."""
    found = list(old_parts(runs, days, whole))
    for one in found:
        shutil.rmtree(one.folder)
    return found


def _in_use(run: Path) -> bool:
    return (run / "server" / LOCK).exists() and is_locked(run / "server")
