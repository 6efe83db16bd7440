"""The arrays of encoded samples in a folder of the cache: written piece by piece, joined, mapped."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import time
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hansa.data.arrays import ArrayFile, blocks, mapped
from hansa.data.rows import Problems

ARRAYS = {
    "ids": np.int32,
    "offsets": np.int64,
    "labels": np.int32,
    "tags": np.int32,
    "texts": np.uint8,
    "text_offsets": np.int64,
    "units": np.int64,
    "rows": np.int64,
}
GROUP = "group"  # only where several sources are joined
HELD = 1 << 16  # token ids that are held in memory before they are written
DRAFT = ".draft-"
ABANDONED = 24 * 3600.0  # seconds without a write after which a draft belongs to a process that was killed


class SampleFiles:
    """Samples that are appended to the arrays in a folder."""

    def __init__(self, folder: Path) -> None:
        self._files = {name: ArrayFile(folder / f"{name}.npy", dtype) for name, dtype in ARRAYS.items()}
        self._files["offsets"].append([0])
        self._files["text_offsets"].append([0])
        self._ends = {"offsets": 0, "text_offsets": 0}
        self._held: dict[str, list[int]] = {name: [] for name in ARRAYS if name != "texts"}
        self._texts: list[bytes] = []
        self.count = 0

    def __enter__(self) -> "SampleFiles":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._write()
        for file in self._files.values():
            if kind is None:
                file.close()
            else:
                file.abandon()

    def add(
        self, ids: Sequence[int], label: int, tags: Sequence[int], text: str, row: int, unit: int | None = None
    ) -> None:
        """Append a sample; see `hansa.data.examples.Encoded`. ``row``: which row it comes from."""
        held = self._held
        held["ids"] += ids
        held["offsets"].append(len(ids))
        held["labels"].append(label)
        held["tags"] += tags
        held["text_offsets"].append(0)
        if text:
            self._texts.append(text.encode("utf-8"))
            held["text_offsets"][-1] = len(self._texts[-1])
        held["rows"].append(row)
        if unit is not None:
            held["units"].append(unit)
        self.count += 1
        if len(held["ids"]) >= HELD or len(held["labels"]) >= HELD:
            self._write()

    def _write(self) -> None:
        for name, values in self._held.items():
            if name in self._ends:  # lengths so far
                ends = np.cumsum(np.asarray(values, np.int64)) + self._ends[name]
                self._ends[name] = int(ends[-1]) if len(ends) else self._ends[name]
                self._files[name].append(ends)
            else:
                self._files[name].append(values)
            values.clear()
        self._files["texts"].append(np.frombuffer(b"".join(self._texts), np.uint8))
        self._texts.clear()


@contextmanager
def draft_of(folder: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name when all is written: it is there whole, or not at all.

    If another process has stored the same content meanwhile, that stays. Drafts of processes that were killed are
    deleted after a day.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for old in folder.parent.glob(f"{DRAFT}*"):
        if _abandoned(old):
            shutil.rmtree(old, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=DRAFT))
    try:
        yield draft
        if not folder.exists():
            draft.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # nothing is there any more if all went well


def _abandoned(draft: Path) -> bool:
    try:
        return time() - max(file.stat().st_mtime for file in (draft, *draft.iterdir())) > ABANDONED
    except FileNotFoundError:  # it has got its name meanwhile
        return False


def write_problems(folder: Path, problems: Problems) -> None:
    """Store what was left out, in words for the operator, and as kinds and counts."""
    _write_meta(folder, {"problems": problems.summary(), "released": problems.released()})


def _write_meta(folder: Path, meta: dict[str, list[str]]) -> None:
    (folder / "meta.json").write_text(json.dumps(meta))


def read_problems(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What `write_problems` stored."""
    meta = json.loads((folder / "meta.json").read_text())
    return tuple(meta["problems"]), tuple(meta["released"])


def arrays_of(folder: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a folder, mapped; with the group of each sample if there are several sources."""
    names = [*ARRAYS, *([GROUP] if (folder / f"{GROUP}.npy").exists() else [])]
    return {name: mapped(folder / f"{name}.npy") for name in names}


def join(folders: Sequence[Path], groups: Sequence[int], joined: Path) -> None:
    """Append the samples of several sources to the arrays in a new folder; ``groups``: the group of each source."""
    parts = [arrays_of(folder) for folder in folders]
    with draft_of(joined) as draft:
        for name, dtype in ARRAYS.items():
            file, start = ArrayFile(draft / f"{name}.npy", dtype), 0
            if name.endswith("offsets"):
                file.append([0])
            for part in parts:
                values = part[name][1:] if name.endswith("offsets") else part[name]
                for some in blocks(len(values)):
                    file.append(values[some] + dtype(start))
                start += _step(name, part)
            file.close()
        file = ArrayFile(draft / f"{GROUP}.npy", np.int32)
        for group, part in zip(groups, parts, strict=True):
            for some in blocks(len(part["labels"])):
                file.append(np.full(some.stop - some.start, group, np.int32))
        file.close()
        told = [read_problems(folder) for folder in folders]
        _write_meta(draft, {"problems": [x for p, _ in told for x in p], "released": [x for _, r in told for x in r]})


def _step(name: str, part: dict[str, NDArray[Any]]) -> int:
    """By how much the values of the sources after this one are higher: offsets go on, and rows are others."""
    if name.endswith("offsets"):
        return int(part[name][-1])
    if name == "rows" and len(part[name]):
        return 1 + max(int(part[name][some].max()) for some in blocks(len(part[name])))
    return 0
