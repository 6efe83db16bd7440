"""Atomic writes: a folder or file is there whole, or not at all; and errors that mean a full or read-only disk."""

import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from hansa.core.errors import RunFailed

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SQLITE_FULL = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")


def disk_problem(error: BaseException) -> str:
    """What a disk that takes no more said; empty if the error has another cause."""
    if isinstance(error, sqlite3.Error):
        name = getattr(error, "sqlite_errorname", "")
        return f"SQLite: {error}" if str(name).startswith(SQLITE_FULL) else ""
    if isinstance(error, OSError) and error.errno in FULL:
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return ""


@contextmanager
def atomically(folder: Path) -> Iterator[Path]:
    """Write a folder under another name, then rename it: it is there whole, or not at all."""
    draft: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".draft-"))
        yield draft
        for file in draft.rglob("*"):
            if file.is_file():
                _sync(file)
        if folder.exists():
            shutil.rmtree(folder)
        draft.chmod(0o755)
        draft.rename(folder)
        _sync(folder.parent)
    except (OSError, SafetensorError) as error:
        raise RunFailed(
            f"{folder} could not be written ({error}); what was written before is intact: "
            "make room, or the disk writable, then continue with --resume"
        ) from None
    finally:
        if draft is not None:  # nothing is there any more if all went well
            shutil.rmtree(draft, ignore_errors=True)


def write_file(file: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file under another name, sync it, then rename it; raises `OSError` if it cannot be written."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.draft")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(file)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
