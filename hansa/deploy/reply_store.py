"""What a node has answered, on its own disk, before the first byte of it leaves.

A node that is started again, or asked again, gives the very same answer: nothing is computed twice, and nothing
different is released for the same question. What a power cut left half written is found by its digest, and forgotten.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from torch import Tensor

from hansa.core.wire import as_bytes
from hansa.deploy.network.blob_server import digest

TEXT = ""  # the part that is not a vector


@dataclass(frozen=True)
class Packed:
    """A reply, ready to be brought: its text and its vectors by name, each with its digest."""

    kind: str
    parts: dict[str, tuple[str, memoryview]]


class ReplyStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, request: str) -> Packed | None:
        folder = self._folder / request
        try:
            about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
            parts = {name: (ref, _look(folder / str(i))) for i, (name, ref) in enumerate(about["parts"].items())}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        if any(digest(view) != ref for ref, view in parts.values()):
            return None
        return Packed(about["kind"], parts)

    def keep(self, request: str, round: int, kind: str, text: str, vectors: Mapping[str, Tensor]) -> Packed:
        shutil.rmtree(self._folder / request, ignore_errors=True)
        draft = self._folder / f".{request}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        views = {TEXT: memoryview(text.encode()), **{name: as_bytes(vector) for name, vector in vectors.items()}}
        refs = {name: digest(view) for name, view in views.items()}
        for i, view in enumerate(views.values()):
            (draft / str(i)).write_bytes(view)
        about = {"kind": kind, "round": round, "parts": refs}
        (draft / "about.json").write_text(json.dumps(about), encoding="utf-8")
        draft.rename(self._folder / request)
        return Packed(
            kind, {name: (refs[name], _look(self._folder / request / str(i))) for i, name in enumerate(views)}
        )

    def forget(self, durable: int) -> None:
        """Answers for rounds that the asker has on disk are not asked for again; nor is what a power cut damaged."""
        for file in self._folder.glob("*/about.json"):
            try:
                old = json.loads(file.read_text(encoding="utf-8"))["round"] <= durable
            except (ValueError, KeyError, TypeError):
                old = True
            if old:
                shutil.rmtree(file.parent)


def loose(kind: str, text: str) -> Packed:
    """A reply that is not kept: asked again, the node looks again."""
    view = memoryview(text.encode())
    return Packed(kind, {TEXT: (digest(view), view)})


def _look(file: Path) -> memoryview:
    if not file.stat().st_size:
        return memoryview(b"")
    with file.open("rb") as stream:
        return memoryview(mmap(stream.fileno(), 0, access=ACCESS_READ))
