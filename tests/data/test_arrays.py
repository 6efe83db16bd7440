"""Arrays in files and in blocks equal numpy's, whatever the size of a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.core.seeds import stream
from hansa.data import arrays

sizes = st.sampled_from([1, 2, 7, 1000])
numbers = st.lists(st.integers(0, 40), max_size=60)


@contextmanager
def in_files(block: int) -> Iterator[None]:
    """Every array is in a file, and computed in blocks of this size."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(arrays, "BLOCK", block)
        patch.setattr(arrays, "IN_MEMORY", 0)
        patch.setenv("HANSA_CACHE", folder)
        yield


@given(sizes, numbers, st.integers(0, 99))
@settings(deadline=None)
def test_they_equal_numpy(block: int, values: list[int], seed: int) -> None:
    given = np.array(values, np.int64)
    chosen = stream(seed).integers(0, max(1, len(given)), len(given) // 2)
    some = np.unique(chosen)
    with in_files(block):
        equal = np.testing.assert_array_equal
        equal(arrays.counted(len(given)), np.arange(len(given)))
        equal(arrays.differences(np.append(0, given)), np.diff(np.append(0, given)))
        equal(arrays.places(given, 3), np.flatnonzero(given == 3))
        equal(arrays.concatenated([given, chosen]), np.concatenate([given, chosen]))
        equal(arrays.ordered(chosen, given), chosen[np.argsort(given[chosen], kind="stable")])
        equal(arrays.without(np.arange(len(given)), some), np.setdiff1d(np.arange(len(given)), some))
        assert arrays.distinct(given) == len(np.unique(given))
        assert arrays.distinct(given, chosen) == len(np.unique(given[chosen]))


@given(sizes, st.integers(0, 80), st.integers(0, 99), st.sampled_from([1, 3, 1000, 2**33]))
@settings(deadline=None)
def test_draws_are_those_of_numpy_and_leave_the_generator_in_the_same_state(
    block: int, length: int, seed: int, high: int
) -> None:
    ours, theirs = stream(seed), stream(seed)
    with in_files(block):
        np.testing.assert_array_equal(arrays.permuted(ours, length), theirs.permutation(length))
        np.testing.assert_array_equal(arrays.drawn(ours, high, length), theirs.integers(0, high, length))
    assert ours.random() == theirs.random()


def test_equal_values_keep_their_order_and_an_unstable_sort_does_not() -> None:
    values = np.tile([1, 0], 500)
    found = arrays.ordered(np.arange(1000), values)
    np.testing.assert_array_equal(found, np.concatenate([np.arange(1, 1000, 2), np.arange(0, 1000, 2)]))
    assert not np.array_equal(found, arrays.ordered(np.arange(1000)[::-1], values))


@pytest.mark.parametrize("pieces", [[], [[]], [[1], [2, 3], []], [list(range(5000))] * 3])
def test_a_file_that_is_written_in_pieces_is_numpys_own(tmp_path: Path, pieces: list[list[int]]) -> None:
    whole = np.array([x for piece in pieces for x in piece], np.int32)
    file = arrays.ArrayFile(tmp_path / "ours.npy", np.int32)
    for piece in pieces:
        file.append(piece)
    file.close()
    np.save(tmp_path / "theirs.npy", whole)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()
    np.testing.assert_array_equal(arrays.mapped(tmp_path / "ours.npy"), whole)


def test_large_arrays_are_in_files_that_have_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    large, small = arrays.scratch(arrays.IN_MEMORY, np.int64), arrays.scratch(10)
    assert isinstance(large.base, np.memmap)
    assert small.base is None
    assert not list((tmp_path / "cache").iterdir())
    large[:] = 1
    assert int(large.sum()) == len(large)
