"""One process at a time in a folder: two would do everything twice."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hansa.core.errors import UserError


@contextmanager
def lock_folder(folder: Path, command: str) -> Iterator[None]:
    """While it lasts nobody else may; whoever is killed lets go."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{folder} is in use by another '{command}'; stop that one first") from None
        yield
    finally:
        os.close(handle)
