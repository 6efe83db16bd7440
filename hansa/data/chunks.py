"""The rows of a split in chunks, which is how they are read, tokenised and stored: memory holds a few chunks only."""

import hashlib
import logging
import os
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from time import monotonic
from typing import NamedTuple, TypeVar

from hansa.core.errors import DataError
from hansa.data.rows import Problems, Row
from hansa.data.settings import Data
from hansa.data.source import Source
from hansa.data.splits import rows

T = TypeVar("T")
ROWS = 2000  # of a chunk, at most
CHARACTERS = 4_000_000  # of a chunk's texts after which it ends: documents may be long
TOLD_EVERY = 10.0  # seconds between two lines on the progress
PARALLEL = "TOKENIZERS_PARALLELISM"

log = logging.getLogger("hansa.data")


class Chunk(NamedTuple):
    """Some rows of one patient or document, or of any; ``problems``: what was left out since the chunk before."""

    unit: int
    rows: list[Row]
    problems: Problems


def chunks(source: Source, split: str, data: Data, unit: str = "") -> Iterator[Chunk]:
    """The usable rows of a split; the last chunk may have no row.

    With a field ``unit``, each chunk has rows of one patient or document, with its number: a hash of the field, so that
    a patient is the same in all files of a silo. A row without the field is left out and counted. Raises `DataError` if
    no row has it.
    """
    problems = Problems()
    read = rows(source, split, data, problems)
    for whose, some in _of_units(read, source, unit, problems) if unit else ((0, x) for x in _cut(read, source)):
        yield Chunk(whose, some, problems.take())
    yield Chunk(0, [], problems.take())


def _of_units(read: Iterator[Row], source: Source, unit: str, problems: Problems) -> Iterator[tuple[int, list[Row]]]:
    seen = named = 0
    first = ""
    for value, group in groupby(read, lambda row: row.get(unit)):
        for some in _cut(group, source):
            seen += len(some)
            first = first or some[0].place
            if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
                named += len(some)
                digest = hashlib.blake2b(str(value).strip().encode("utf-8", "replace"), digest_size=8).digest()
                yield int.from_bytes(digest, "big", signed=True), some
            else:
                for row in some:
                    reason = f"field '{unit}' (named by 'privacy.field') is missing, empty or not a name"
                    problems.note(row.place, reason)
    if seen and not named:
        raise DataError(
            f"{first}: no row has the field '{unit}' that 'privacy.field' names; name the field that tells patients "
            "or documents apart"
        )


def _cut(read: Iterator[Row], source: Source) -> Iterator[list[Row]]:
    """The rows in lists of at most `ROWS`, which end after `CHARACTERS`."""
    some: list[Row] = []
    size = 0
    for row in read:
        some.append(row)
        size += len(row[source.text])
        if len(some) >= ROWS or size >= CHARACTERS:
            yield some
            some, size = [], 0
    if some:
        yield some


def prefetched(items: Iterator[T]) -> Generator[T, None, None]:
    """The items; a thread reads the next one while the caller works on this one."""
    with ThreadPoolExecutor(1, "hansa-reader") as reader:
        coming = reader.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = reader.submit(next, items, None)
            yield item


@contextmanager
def all_cores() -> Iterator[None]:
    """Let the tokenizers library use all cores inside.

    Afterwards it is as before: a process that is forked while it may use threads would wait for them for ever.
    """
    before = os.environ.get(PARALLEL)
    os.environ[PARALLEL] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PARALLEL]
        else:
            os.environ[PARALLEL] = before


@dataclass
class Progress:
    """Tells the operator how far the preparation of a split is: a log line from time to time, none if it is short."""

    what: str
    began: float = 0.0
    told: float = 0.0

    def __post_init__(self) -> None:
        self.began = self.told = monotonic()

    def tell(self, count: int) -> None:
        """``count``: rows that are prepared so far."""
        now = monotonic()
        if now - self.told >= TOLD_EVERY:
            self.told = now
            log.info(
                "preparing %s: %s rows so far, %.0f per second", self.what, f"{count:,}", count / (now - self.began)
            )


def show_progress() -> None:
    """Write the lines on progress to standard error, unless this process has configured logging otherwise."""
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
