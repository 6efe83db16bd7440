"""Arrays that may be larger than memory: written piece by piece, computed in blocks, kept in files that are mapped.

A mapped file does not count as memory of the process: the system writes its pages back and drops them when memory is
short. Arrays of less than `IN_MEMORY` bytes stay in memory, where they are faster.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hansa.data.cache import cache_folder

Indices = NDArray[np.int64]
IN_MEMORY = 4 << 20  # bytes of an intermediate array above which it is kept in a file
BLOCK = 1 << 17  # elements that are computed together


class ArrayFile:
    """A ``.npy`` file with one dimension, written piece by piece; the file is complete after `close`."""

    def __init__(self, file: Path, dtype: DTypeLike) -> None:
        self.dtype, self.length = np.dtype(dtype), 0
        self._stream = file.open("wb")
        self._header()
        self._begin = self._stream.tell()

    def append(self, values: NDArray[Any] | list[int]) -> None:
        """Add values at the end; raises `OSError` if the disk takes no more."""
        array = np.ascontiguousarray(values, self.dtype)
        self._stream.write(array.tobytes())
        self.length += len(array)

    def close(self) -> None:
        """Write the length into the header."""
        self._stream.seek(0)
        self._header()
        assert self._stream.tell() == self._begin, "numpy reserves room for the length in the header"
        self._stream.close()

    def abandon(self) -> None:
        """Close the file as it is: it will be deleted."""
        self._stream.close()

    def _header(self) -> None:
        described = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._stream, described)


def mapped(file: Path) -> NDArray[Any]:
    """The array of a ``.npy`` file, read from the disk where it is looked at."""
    return np.asarray(np.load(file, mmap_mode="r"))


def scratch(length: int, dtype: DTypeLike = np.int64) -> NDArray[Any]:
    """An array for intermediate results, all zeros: in memory or, if it is large, in a mapped file without a name."""
    size = length * np.dtype(dtype).itemsize
    if size <= IN_MEMORY:
        return np.zeros(length, dtype)
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(size)
        return np.asarray(np.memmap(file, dtype, "r+", shape=(length,)))


def blocks(length: int) -> Iterator[slice]:
    """The parts of an array of some length that are computed together."""
    for start in range(0, length, BLOCK):
        yield slice(start, min(start + BLOCK, length))


def counted(length: int) -> Indices:
    """The numbers from 0 to ``length`` − 1, as of `numpy.arange`."""
    found = scratch(length)
    for part in blocks(length):
        found[part] = np.arange(part.start, part.stop)
    return found


def permuted(rng: np.random.Generator, length: int) -> Indices:
    """The numbers from 0 to ``length`` − 1 in the order of ``rng.permutation(length)``."""
    found = counted(length)
    rng.shuffle(found)  # which is what `permutation` does
    return found


def drawn(rng: np.random.Generator, high: int, length: int) -> Indices:
    """``length`` numbers below ``high``, as of ``rng.integers(0, high, length)``."""
    found = scratch(length)
    for part in blocks(length):
        found[part] = rng.integers(0, high, part.stop - part.start)
    return found


def differences(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each value less the one before it, as of `numpy.diff`."""
    found = scratch(len(values) - 1)
    for part in blocks(len(found)):
        np.subtract(values[part.start + 1 : part.stop + 1], values[part], out=found[part])
    return found


def places(values: NDArray[Any], wanted: int) -> Indices:
    """The indices at which ``values`` has a value, in ascending order."""
    found = scratch(sum(int(np.count_nonzero(values[part] == wanted)) for part in blocks(len(values))))
    end = 0
    for part in blocks(len(values)):
        here = np.flatnonzero(values[part] == wanted) + part.start
        found[end : end + len(here)] = here
        end += len(here)
    return found


def concatenated(parts: Sequence[Indices]) -> Indices:
    """The arrays one after the other, as of `numpy.concatenate`."""
    if len(parts) == 1:
        return parts[0]
    found, end = scratch(sum(map(len, parts))), 0
    for some in parts:
        for part in blocks(len(some)):
            found[end + part.start : end + part.stop] = some[part]
        end += len(some)
    return found


def ordered(indices: Indices, values: NDArray[Any]) -> Indices:
    """The indices in ascending order of ``values`` there; equal values keep their order (a stable counting sort).

    ``values`` must not be negative, and the largest one small: a count is kept for each.
    """
    counts = np.zeros(1, np.int64)
    for part in blocks(len(indices)):
        here = np.bincount(values[indices[part]], minlength=len(counts))
        here[: len(counts)] += counts
        counts = here
    found = scratch(len(indices))
    free = np.cumsum(counts) - counts  # of each value, the next free place
    for part in blocks(len(indices)):
        some = indices[part]
        there = values[some]
        order = np.argsort(there, kind="stable")
        sorted_values = there[order]
        here = np.bincount(there, minlength=len(counts))
        rank = np.arange(len(some)) - (np.cumsum(here) - here)[sorted_values]
        found[free[sorted_values] + rank] = some[order]
        free += here
    return found


def without(indices: Indices, some: Indices) -> Indices:
    """The indices that are not among ``some``; both are in ascending order and have each index once."""
    found, end = scratch(len(indices)), 0
    for part in blocks(len(indices)):
        here = indices[part]
        first, last = np.searchsorted(some, here[[0, -1]])
        rest = here[~np.isin(here, some[first : last + 1], assume_unique=True)]
        found[end : end + len(rest)] = rest
        end += len(rest)
    return found[:end]


def distinct(values: NDArray[np.int64], indices: Indices | None = None) -> int:
    """How many different values there are, at all or some indices.

    Values must not be negative; there is a byte for each number up to the largest one.
    """
    length = len(values) if indices is None else len(indices)

    def parts() -> Iterator[NDArray[np.int64]]:
        """The values, or those at ``indices``, one block at a time."""
        for part in blocks(length):
            yield values[part] if indices is None else values[indices[part]]

    seen = scratch(1 + max((int(some.max()) for some in parts()), default=-1), np.bool_)
    for some in parts():
        seen[some] = True
    return sum(int(np.count_nonzero(seen[part])) for part in blocks(len(seen)))
