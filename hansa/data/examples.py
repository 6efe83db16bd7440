"""A silo's samples as arrays of token ids: tokenised once, cached by content, memory-mapped by every worker."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hansa.core.errors import DataError
from hansa.data.cache import cache_folder
from hansa.data.readers import ANNOTATION, READERS, data_files, split_paths
from hansa.data.rows import UNUSABLE, Problems, Row
from hansa.data.settings import Data
from hansa.data.source import Source
from hansa.data.splits import rows

FORMAT = 8  # version of the cached arrays
ARRAYS = ("ids", "offsets", "labels", "tags", "texts", "text_offsets", "units", "rows")


class Encoded(NamedTuple):
    """A sample as the model sees it: token ids, and what the task predicts.

    ``label``: the class of the sample, or −1. ``tags``: one number per token; causal language models store the number
    of bytes that a token stands for. ``text``: the reference that a generated text is compared with. ``row``: which of
    the encoded rows it comes from, where a row can give several samples; None: the sample is a row of its own.
    ``shortened``: a part of the prompt was left out, because it did not fit into a sample.
    """

    ids: Sequence[int]
    label: int = -1
    tags: Sequence[int] = ()
    text: str = ""
    row: int | None = None
    shortened: bool = False


class Unusable(NamedTuple):
    """A sample that cannot be used because it is contradictory or too long; it is counted and reported.

    ``derived``: the sample is not annotated but follows from annotations (a pair of entities without a relation), so
    that it does not count as a bad row.
    """

    place: str
    reason: str
    derived: bool = False
    kind: str = UNUSABLE  # one of the kinds of `hansa.data.rows`: it leaves the silo, unlike place and reason


Encoder = Callable[[list[Row], Source], Iterable[Encoded | Unusable]]


@dataclass(frozen=True)
class Texts:
    """Strings concatenated as UTF-8, with their offsets; empty where the task has none."""

    bytes: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))

    def __getitem__(self, index: int) -> str:
        return self.bytes[self.offsets[index] : self.offsets[index + 1]].tobytes().decode("utf-8")

    @staticmethod
    def of(texts: Sequence[str]) -> "Texts":
        """Concatenate strings."""
        encoded = [text.encode("utf-8") for text in texts]
        offsets = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
        return Texts(np.frombuffer(b"".join(encoded), np.uint8), offsets)

    @staticmethod
    def joined(parts: Sequence["Texts"]) -> "Texts":
        """Concatenate several `Texts`."""
        starts = np.cumsum([0, *(len(p.bytes) for p in parts[:-1])])
        offsets = [p.offsets[1:] + start for p, start in zip(parts, starts, strict=True)]
        return Texts(np.concatenate([p.bytes for p in parts]), np.concatenate([[0], *offsets]))


@dataclass(frozen=True)
class Examples:
    """The encoded samples of one split; ``examples[i]`` is the token ids of sample ``i``."""

    ids: NDArray[np.int32]  # all samples, concatenated
    offsets: NDArray[np.int64]
    labels: NDArray[np.int32]
    group: NDArray[np.int32]  # of each sample, the index into `groups`
    groups: tuple[str, ...]  # languages or domains
    tags: NDArray[np.int32]  # one per token id; empty if the task has none
    problems: tuple[str, ...] = ()  # rows that could not be used, where and why
    texts: Texts = field(default_factory=Texts)
    units: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # whose each sample is, if asked
    rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # which row each sample comes from
    released_problems: tuple[str, ...] = ()  # the problems as kinds and counts, which may leave the silo

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The number of token ids of each sample."""
        return np.diff(self.offsets)

    def rows_behind(self, indices: NDArray[np.int64]) -> int:
        """How many different rows some samples come from: windows of one text are one row."""
        return len(np.unique(self.rows[indices] if len(self.rows) else indices))

    def counts(self) -> dict[str, int]:
        """The number of samples of each group."""
        found = np.bincount(self.group, minlength=len(self.groups))
        return {name: int(n) for name, n in zip(self.groups, found, strict=True)}


def load(
    sources: Sequence[Source],
    split: str,
    data: Data,
    names: Sequence[str],
    encode: Encoder,
    fingerprint: str,
    unit: str = "",
) -> Examples:
    """The samples of all sources; they come from the cache if the same content was tokenised before.

    ``names`` gives each source its group; ``fingerprint`` identifies everything else that token ids depend on (task,
    tokenizer). ``unit``: the field of a row that names its patient or document, if samples must be told apart by it.
    Raises `DataError` if more rows than `data.max_bad_rows` cannot be used.
    """
    parts = [_load_one(source, split, data, encode, fingerprint, unit) for source in sources]
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
        released_problems=tuple(problem for p in parts for problem in p.released_problems),
        texts=Texts.joined([p.texts for p in parts]),
        units=np.concatenate([p.units for p in parts]),
        rows=np.concatenate([p.rows + (number << 40) for number, p in enumerate(parts)]),
    )


def _load_one(source: Source, split: str, data: Data, encode: Encoder, fingerprint: str, unit: str) -> Examples:
    folder = (
        cache_folder() / "examples" / _key(source, split, data, f"{fingerprint}\x1f{unit}" if unit else fingerprint)
    )
    if not folder.exists():
        _write(folder, source, split, data, encode, unit)
    meta = json.loads((folder / "meta.json").read_text())
    # Plain views of the mapped memory: indexing an np.memmap costs more than the reads.
    ids, offsets, labels, tags, text, text_offsets, units, origins = (
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
        released_problems=tuple(meta["released"]),
        texts=Texts(text, text_offsets),
        units=units,
        rows=origins,
    )


def _write(folder: Path, source: Source, split: str, data: Data, encode: Encoder, unit: str) -> None:
    """Tokenise a split and store it in the cache."""
    problems = Problems()
    ids: list[NDArray[np.int32]] = []
    tags: list[NDArray[np.int32]] = []
    labels: list[int] = []
    texts: list[str] = []
    units: list[int] = []
    origins: list[int] = []  # even numbers: rows that may give several samples; odd ones: rows of one sample
    read = 0
    for whose, some in of_units(rows(source, split, data, problems), unit, problems):
        before, read = read, read + len(some)
        for sample in encode(some, source):
            if isinstance(sample, Unusable):
                note_sample(problems, sample)
                continue
            problems.shortened += sample.shortened
            units += [whose] if unit else []
            origins.append(2 * len(labels) + 1 if sample.row is None else 2 * (before + sample.row))
            ids.append(np.asarray(sample.ids, np.int32))
            tags.append(np.asarray(sample.tags, np.int32))
            labels.append(sample.label)
            texts.append(sample.text)
    problems.check(data.max_bad_rows, source.files().get(split, source.train))
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".draft-"))
    references = Texts.of(texts)
    arrays: tuple[NDArray[Any], ...] = (
        np.concatenate(ids) if ids else np.zeros(0, np.int32),
        np.cumsum([0, *map(len, ids)]).astype(np.int64),
        np.asarray(labels, np.int32),
        np.concatenate(tags) if tags else np.zeros(0, np.int32),
        references.bytes,
        references.offsets,
        np.asarray(units, np.int64),
        np.asarray(origins, np.int64),
    )
    for name, array in zip(ARRAYS, arrays, strict=True):
        np.save(draft / f"{name}.npy", array)
    (draft / "meta.json").write_text(json.dumps({"problems": problems.summary(), "released": problems.released()}))
    try:
        draft.rename(folder)
    except OSError:  # another process has stored the same content
        shutil.rmtree(draft)


def note_sample(problems: Problems, sample: Unusable) -> None:
    """Count a sample that cannot be used."""
    if sample.derived:
        problems.derived[sample.reason] += 1
    else:
        problems.note(sample.place, sample.reason, sample.kind)


def of_units(read: Iterator[Row], unit: str, problems: Problems) -> Iterator[tuple[int, list[Row]]]:
    """The rows in lists; with a field ``unit``, each list has rows of one patient or document, with its number.

    The number is a hash of the field, so that a patient is the same in all files of a silo. A row without the field is
    left out and counted. Raises `DataError` if no row has it.
    """
    if not unit:
        yield from ((0, some) for some in in_batches(read, 2000))
        return
    seen = named = 0
    first = ""
    for value, group in groupby(read, lambda row: row.get(unit)):
        some = list(group)
        seen += len(some)
        first = first or some[0].place
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            named += len(some)
            digest = hashlib.blake2b(str(value).strip().encode("utf-8", "replace"), digest_size=8).digest()
            yield int.from_bytes(digest, "big", signed=True), some
        else:
            for row in some:
                problems.note(row.place, f"field '{unit}' (named by 'privacy.field') is missing, empty or not a name")
    if seen and not named:
        raise DataError(
            f"{first}: no row has the field '{unit}' that 'privacy.field' names; name the field that tells patients "
            "or documents apart"
        )


def in_batches(items: Iterator[Row], size: int) -> Iterator[list[Row]]:
    """The rows in lists of at most ``size``."""
    while some := list(islice(items, size)):
        yield some


def content_digest(sources: Sequence[Source], split: str) -> str:
    """A hash of the files of a split and of nothing else: settings cannot change it."""
    digest = hashlib.blake2b(digest_size=16)
    for source in sources:
        for file in (file for path in split_paths(source, split) for file in data_files(path)):
            stat = file.stat()
            digest.update(_content(str(file), stat.st_mtime_ns, stat.st_size))
    return digest.hexdigest()


def _key(source: Source, split: str, data: Data, fingerprint: str) -> str:
    """A hash of everything that the cached arrays depend on; paths are not part of it."""
    digest = hashlib.blake2b(digest_size=16)
    for text in (file for path in split_paths(source, split) for file in data_files(path)):
        digest.update(READERS.plugin_of(text).encode())
        for file in (text, text.with_suffix(ANNOTATION)):
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
    """A hash of a file's content, computed again only if its time or size changes."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).digest()
