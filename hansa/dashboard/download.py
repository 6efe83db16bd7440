"""A folder as a zip file that is sent while it is made, so that a model of any size needs little memory."""

from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

CHUNK = 1 << 20
FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # the same for every file: equal folders give equal zip files


class _Pipe(RawIOBase):
    """Keeps what was written until it is taken."""

    def __init__(self) -> None:
        self._held = bytearray()

    def writable(self) -> bool:
        """Always true: `ZipFile` needs it of the file that it writes to."""
        return True

    def write(self, data: Any) -> int:
        """Append bytes to those held; return their number."""
        self._held += data
        return len(data)

    def take(self) -> bytes:
        """What was written since the last call."""
        data = bytes(self._held)
        self._held.clear()
        return data


def zip_stream(folder: Path, inside: str) -> Iterator[bytes]:
    """The regular files of a folder as a zip file, below a folder ``inside``; symbolic links are left out."""
    pipe = _Pipe()
    with ZipFile(pipe, "w", ZIP_STORED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_symlink() or not file.is_file():
                continue
            info = ZipInfo(f"{inside}/{file.relative_to(folder).as_posix()}", FIRST_DATE)
            info.external_attr = 0o644 << 16
            with file.open("rb") as source, archive.open(info, "w", force_zip64=True) as target:
                while chunk := source.read(CHUNK):
                    target.write(chunk)
                    yield pipe.take()
    yield pipe.take()
