"""A silo's samples as arrays of token ids: tokenised once, cached by content, memory-mapped by every worker."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hansa.data.arrays import blocks, differences, distinct
from hansa.data.cache import cache_folder
from hansa.data.chunks import Progress, all_cores, chunks, prefetched
from hansa.data.readers import ANNOTATION, READERS, data_files, split_paths
from hansa.data.rows import UNUSABLE, Problems, Row
from hansa.data.sample_files import GROUP, SampleFiles, arrays_of, draft_of, join, read_problems, write_problems
from hansa.data.settings import Data
from hansa.data.source import Source

FORMAT = 8  # version of the cached arrays


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
    stands_for: int = 1  # derived samples, where their number is an estimate


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
        return differences(self.offsets)

    def rows_behind(self, indices: NDArray[np.int64] | None = None) -> int:
        """How many different rows some samples, or all of them, come from: windows of one text are one row."""
        if len(self.rows):
            return distinct(self.rows, indices)
        return len(self) if indices is None else distinct(indices)

    def counts(self) -> dict[str, int]:
        """The number of samples of each group."""
        found = np.zeros(len(self.groups), np.int64)
        for part in blocks(len(self)):
            found += np.bincount(self.group[part], minlength=len(self.groups))
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
    folders = [_prepared(source, split, data, encode, fingerprint, unit) for source in sources]
    groups = tuple(dict.fromkeys(names))
    folder = folders[0] if len(folders) == 1 else _joined(folders, [groups.index(name) for name in names])
    arrays, (problems, released) = arrays_of(folder), read_problems(folder)
    first = np.broadcast_to(np.int32(0), len(arrays["labels"]))  # the group of all samples of a single source
    return Examples(
        ids=arrays["ids"],
        offsets=arrays["offsets"],
        labels=arrays["labels"],
        group=arrays.get(GROUP, first),
        groups=groups,
        tags=arrays["tags"],
        problems=problems,
        released_problems=released,
        texts=Texts(arrays["texts"], arrays["text_offsets"]),
        units=arrays["units"],
        rows=arrays["rows"],
    )


def _prepared(source: Source, split: str, data: Data, encode: Encoder, fingerprint: str, unit: str) -> Path:
    """The folder of the cache with the samples of one source."""
    folder = _stored(_key(source, split, data, f"{fingerprint}\x1f{unit}" if unit else fingerprint))
    if not folder.exists():
        _write(folder, source, split, data, encode, unit)
    return folder


def _joined(folders: Sequence[Path], groups: Sequence[int]) -> Path:
    """The folder of the cache with the samples of several sources."""
    key = json.dumps([FORMAT, [folder.name for folder in folders], list(groups)]).encode()
    folder = _stored(hashlib.blake2b(key, digest_size=16).hexdigest())
    if not folder.exists():
        join(folders, groups, folder)
    return folder


def _stored(key: str) -> Path:
    return cache_folder() / "examples" / key


def _write(folder: Path, source: Source, split: str, data: Data, encode: Encoder, unit: str) -> None:
    """Tokenise a split chunk by chunk and store it in the cache."""
    path = source.files().get(split, source.train)
    problems, progress, read = Problems(), Progress(f"{path} ({split})"), 0
    with draft_of(folder) as draft, all_cores():
        with SampleFiles(draft) as files, closing(prefetched(chunks(source, split, data, unit))) as coming:
            for chunk in coming:
                problems.add(chunk.problems)
                for sample in encode(chunk.rows, source) if chunk.rows else ():
                    if isinstance(sample, Unusable):
                        note_sample(problems, sample)
                        continue
                    problems.shortened += sample.shortened
                    # Even numbers: rows that may give several samples; odd ones: rows of one sample.
                    row = 2 * files.count + 1 if sample.row is None else 2 * (read + sample.row)
                    files.add(sample.ids, sample.label, sample.tags, sample.text, row, chunk.unit if unit else None)
                read += len(chunk.rows)
                progress.tell(read)
        problems.check(data.max_bad_rows, path)
        write_problems(draft, problems)


def note_sample(problems: Problems, sample: Unusable) -> None:
    """Count a sample that cannot be used."""
    if sample.derived:
        problems.derived[sample.reason] += sample.stands_for
    else:
        problems.note(sample.place, sample.reason, sample.kind)


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
