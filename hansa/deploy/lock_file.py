"""A lock file: at most one process works in a folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hansa.core.errors import UserError

LOCK = "lock"


@contextmanager
def lock_folder(folder: Path, command: str) -> Iterator[None]:
    """Hold the lock of a folder, which ends with the process; raises `UserError` if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{folder} is in use by another '{command}'; stop that one first") from None
        yield
    finally:
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of a folder."""
    with (folder / LOCK).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
