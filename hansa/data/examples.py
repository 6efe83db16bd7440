"""A silo's samples as arrays of token ids: tokenised once, cached by content, mapped into memory by every worker."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hansa.data.readers import Problems, Row, files, origins, rows
from hansa.data.settings import Data
from hansa.data.source import Source

FORMAT = 5  # of the cached arrays
ARRAYS = ("ids", "offsets", "labels", "tags", "texts", "text_offsets")


class Encoded(NamedTuple):
    """A sample as the model sees it: token ids; its class, or a tag per token, where the task has them (else −1).
    Causal language models tag a token with the bytes it stands for."""

    ids: Sequence[int]
    label: int = -1
    tags: Sequence[int] = ()
    text: str = ""  # what answers are compared with, where the task generates text


class Unusable(NamedTuple):
    """A sample that contradicts itself, or does not fit: counted and reported, never dropped in silence."""

    place: str
    reason: str
    implied: bool = False  # nobody annotated it, it only follows from what is annotated: no fault of the data


Encoder = Callable[[list[Row], Source], Iterable[Encoded | Unusable]]


@dataclass(frozen=True)
class Texts:
    """Strings end to end, as UTF-8; empty where the task has none."""

    bytes: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))

    def __getitem__(self, index: int) -> str:
        return self.bytes[self.offsets[index] : self.offsets[index + 1]].tobytes().decode("utf-8")

    @staticmethod
    def of(texts: Sequence[str]) -> "Texts":
        encoded = [text.encode("utf-8") for text in texts]
        offsets = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
        return Texts(np.frombuffer(b"".join(encoded), np.uint8), offsets)

    @staticmethod
    def joined(parts: Sequence["Texts"]) -> "Texts":
        starts = np.cumsum([0, *(len(p.bytes) for p in parts[:-1])])
        offsets = [p.offsets[1:] + start for p, start in zip(parts, starts, strict=True)]
        return Texts(np.concatenate([p.bytes for p in parts]), np.concatenate([[0], *offsets]))


@dataclass(frozen=True)
class Examples:
    ids: NDArray[np.int32]  # all samples, end to end
    offsets: NDArray[np.int64]
    labels: NDArray[np.int32]
    group: NDArray[np.int32]  # index into `groups`
    groups: tuple[str, ...]  # languages or domains
    tags: NDArray[np.int32]  # one per token id, where the task has them; else empty
    problems: tuple[str, ...] = ()
    texts: Texts = field(default_factory=Texts)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def counts(self) -> dict[str, int]:
        found = np.bincount(self.group, minlength=len(self.groups))
        return {name: int(n) for name, n in zip(self.groups, found, strict=True)}


def load(
    sources: Sequence[Source], split: str, data: Data, names: Sequence[str], encode: Encoder, fingerprint: str
) -> Examples:
    """The samples of all sources, from the cache where this very content was tokenised before.

    ``names`` gives each source its group; ``fingerprint`` stands for whatever else the token ids depend on.
    """
    parts = [_load_one(source, split, data, encode, fingerprint) for source in sources]
    groups = tuple(dict.fromkeys(names))
    if len(parts) == 1:
        return replace(parts[0], groups=groups)
    starts = np.cumsum([0, *(len(p.ids) for p in parts[:-1])])
    return Examples(
        ids=np.concatenate([p.ids for p in parts]),
        offsets=np.concatenate([[0], *(p.offsets[1:] + s for p, s in zip(parts, starts, strict=True))]),
        labels=np.concatenate([p.labels for p in parts]),
        group=np.concatenate([np.full(len(p), groups.index(n), np.int32) for p, n in zip(parts, names, strict=True)]),
        groups=groups,
        tags=np.concatenate([p.tags for p in parts]),
        problems=tuple(problem for p in parts for problem in p.problems),
        texts=Texts.joined([p.texts for p in parts]),
    )


def cache_folder() -> Path:
    root = os.environ.get("HANSA_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hansa"
    return Path(root)


def _load_one(source: Source, split: str, data: Data, encode: Encoder, fingerprint: str) -> Examples:
    folder = cache_folder() / "examples" / _key(source, split, data, fingerprint)
    if not folder.exists():
        _write(folder, source, split, data, encode)
    meta = json.loads((folder / "meta.json").read_text())
    # Plain views of the mapped memory: np.memmap's own bookkeeping costs more than the reads.
    ids, offsets, labels, tags, text, text_offsets = (
        np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in ARRAYS
    )
    return Examples(
        ids=ids,
        offsets=offsets,
        labels=labels,
        group=np.zeros(len(labels), np.int32),
        groups=("",),
        tags=tags,
        problems=tuple(meta["problems"]),
        texts=Texts(text, text_offsets),
    )


def _write(folder: Path, source: Source, split: str, data: Data, encode: Encoder) -> None:
    problems = Problems()
    ids: list[NDArray[np.int32]] = []
    tags: list[NDArray[np.int32]] = []
    labels: list[int] = []
    texts: list[str] = []
    for some in in_batches(rows(source, split, data, problems), 2000):
        for sample in encode(some, source):
            if isinstance(sample, Unusable):
                note_sample(problems, sample)
                continue
            ids.append(np.asarray(sample.ids, np.int32))
            tags.append(np.asarray(sample.tags, np.int32))
            labels.append(sample.label)
            texts.append(sample.text)
    problems.check(data.max_bad_rows, source.files().get(split, source.train))
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".draft-"))
    said = Texts.of(texts)
    arrays: tuple[NDArray[Any], ...] = (
        np.concatenate(ids) if ids else np.zeros(0, np.int32),
        np.cumsum([0, *map(len, ids)]).astype(np.int64),
        np.asarray(labels, np.int32),
        np.concatenate(tags) if tags else np.zeros(0, np.int32),
        said.bytes,
        said.offsets,
    )
    for name, array in zip(ARRAYS, arrays, strict=True):
        np.save(draft / f"{name}.npy", array)
    (draft / "meta.json").write_text(json.dumps({"problems": problems.summary()}))
    try:
        draft.rename(folder)
    except OSError:  # another worker was faster with the same content
        shutil.rmtree(draft)


def note_sample(problems: Problems, sample: Unusable) -> None:
    if sample.implied:
        problems.implied[sample.reason] += 1
    else:
        problems.note(sample.place, sample.reason)


def in_batches(items: Iterator[Row], size: int) -> Iterator[list[Row]]:
    while some := list(islice(items, size)):
        yield some


def _key(source: Source, split: str, data: Data, fingerprint: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for text in (file for origin in origins(source, split) for file in files(origin)):
        for file in (text, text.with_suffix(".ann")):  # BRAT keeps annotation beside the text
            if file.is_file():
                stat = file.stat()
                digest.update(_content(str(file), stat.st_mtime_ns, stat.st_size))
    settings = source.model_dump(mode="json", exclude={"aligned", "domain"}) | {
        "train": "",
        "valid": source.valid is None,
        "test": source.test is None,
    }
    digest.update(json.dumps([FORMAT, settings, split, data.model_dump(mode="json"), fingerprint]).encode())
    return digest.hexdigest()


@lru_cache(maxsize=100_000)
def _content(file: str, _modified: int, _size: int) -> bytes:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).digest()
