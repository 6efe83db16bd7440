"""What a node has answered, on its own disk, before the first byte of it leaves.

A node that is started again, or asked again, gives the very same answer: nothing is computed twice, and nothing
different is released for the same question.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from torch import Tensor

from hansa.links.nats import as_bytes
from hansa.runs.directory import atomically


@dataclass(frozen=True)
class Packed:
    """A reply, ready to be brought."""

    kind: str
    text: memoryview
    vectors: dict[str, memoryview]


class Spool:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, request: str) -> Packed | None:
        folder = self._folder / request
        if not folder.is_dir():
            return None
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        vectors = {name: _look(folder / f"vector-{i}") for i, name in enumerate(about["vectors"])}
        return Packed(about["kind"], _look(folder / "text"), vectors)

    def keep(self, request: str, round: int, kind: str, text: str, vectors: Mapping[str, Tensor]) -> Packed:
        with atomically(self._folder / request) as draft:
            (draft / "text").write_text(text, encoding="utf-8")
            for i, vector in enumerate(vectors.values()):
                (draft / f"vector-{i}").write_bytes(as_bytes(vector))
            about = {"kind": kind, "round": round, "vectors": list(vectors)}
            (draft / "about.json").write_text(json.dumps(about), encoding="utf-8")
        found = self.find(request)
        assert found is not None
        return found

    def forget(self, durable: int) -> None:
        """Answers for rounds that the asker has on disk are not asked for again."""
        for folder in self._folder.glob("*/about.json"):
            if json.loads(folder.read_text(encoding="utf-8"))["round"] <= durable:
                shutil.rmtree(folder.parent)


def _look(file: Path) -> memoryview:
    if not file.stat().st_size:
        return memoryview(b"")
    with file.open("rb") as stream:
        return memoryview(mmap(stream.fileno(), 0, access=ACCESS_READ))
