"""A node's replies on its own disk, written before their first byte leaves.

A node that is restarted, or receives a request again, sends the same reply: nothing is computed twice, and nothing
different is released for the same request. That matters for noise: two noisy versions of one update reveal more than
one. A reply is synced to the disk before it is sent, so that after a power failure there is either the same reply, or
one that no byte of left before. A file that is damaged later is detected by its digest.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from torch import Tensor

from hansa.core.wire import as_bytes
from hansa.deploy.network.blob_protocol import digest

TEXT = ""  # the name of the part that is not a vector


@dataclass(frozen=True)
class PackedReply:
    """A reply that is ready for upload: its text and its vectors by name, each with its digest."""

    kind: str
    parts: dict[str, tuple[str, memoryview]]


class ReplyStore:
    """The stored replies of one run, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, request: str) -> PackedReply | None:
        """The reply to a request; None if there is none, or it is damaged."""
        folder = self._folder / request
        try:
            about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
            parts = {name: (ref, _mapped(folder / str(i))) for i, (name, ref) in enumerate(about["parts"].items())}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        if any(digest(view) != ref for ref, view in parts.values()):
            return None
        return PackedReply(about["kind"], parts)

    def keep(self, request: str, round: int, kind: str, text: str, vectors: Mapping[str, Tensor]) -> PackedReply:
        """Store the reply to a request and return it."""
        shutil.rmtree(self._folder / request, ignore_errors=True)
        draft = self._folder / f".{request}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        views = {TEXT: memoryview(text.encode()), **{name: as_bytes(vector) for name, vector in vectors.items()}}
        refs = {name: digest(view) for name, view in views.items()}
        for i, view in enumerate(views.values()):
            _write(draft / str(i), view)
        about = {"kind": kind, "round": round, "parts": refs}
        _write(draft / "about.json", json.dumps(about).encode())
        draft.rename(self._folder / request)
        _sync(self._folder / request)
        _sync(self._folder)
        return PackedReply(
            kind, {name: (refs[name], _mapped(self._folder / request / str(i))) for i, name in enumerate(views)}
        )

    def forget(self, durable: int) -> None:
        """Delete replies for rounds up to the parent's newest checkpoint, and damaged ones."""
        for file in self._folder.glob("*/about.json"):
            try:
                old = json.loads(file.read_text(encoding="utf-8"))["round"] <= durable
            except (ValueError, KeyError, TypeError):
                old = True
            if old:
                shutil.rmtree(file.parent)


def unstored_reply(kind: str, text: str) -> PackedReply:
    """A reply that is not stored, such as a failure: if the request is repeated, the node tries again."""
    view = memoryview(text.encode())
    return PackedReply(kind, {TEXT: (digest(view), view)})


def _write(file: Path, data: bytes | memoryview) -> None:
    with file.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    """Sync the entries of a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _mapped(file: Path) -> memoryview:
    if not file.stat().st_size:
        return memoryview(b"")
    with file.open("rb") as stream:
        return memoryview(mmap(stream.fileno(), 0, access=ACCESS_READ))
