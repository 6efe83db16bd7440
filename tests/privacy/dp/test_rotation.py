"""The rotation keeps norms, is undone, spreads values, and is the one that its definition says."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.privacy.dp.rotation import BLOCK, Rotation, block_size


@given(st.integers(1, 12_000), st.integers(0, 2**31), st.floats(1e-6, 1e6))
def test_it_is_an_isometry_and_is_undone(size: int, seed: int, scale: float) -> None:
    values = (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)
    rotation = Rotation(size, seed, 3)
    turned = rotation.forward(values.copy())
    assert np.linalg.norm(turned) == pytest.approx(float(np.linalg.norm(values)), rel=1e-5)
    np.testing.assert_allclose(rotation.inverse(turned), values, atol=1e-5 * float(np.abs(values).max()))


@given(st.integers(1, 80), st.integers(0, 100))
def test_it_is_linear_and_orthogonal(size: int, seed: int) -> None:
    rotation = Rotation(size, seed, 1)
    matrix = np.stack([rotation.forward(row) for row in np.eye(size, dtype=np.float32)])
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(size), atol=1e-5)


def test_a_single_block_is_the_hadamard_matrix_with_random_signs() -> None:
    """The definition, written independently: entry (i, j) is (−1)^(bits of i & j) over √B, times a sign of column j."""
    size = 64
    rows = np.array([[(-1.0) ** bin(i & j).count("1") for j in range(size)] for i in range(size)]) / 8.0
    rotation = Rotation(size, 5, 1)
    columns = np.stack([rotation.forward(row) for row in np.eye(size, dtype=np.float32)], axis=1)
    signs = np.sign(columns[0])
    np.testing.assert_allclose(columns, rows * signs, atol=1e-6)
    assert {*signs} == {-1.0, 1.0}


def test_one_large_value_is_spread_over_a_block_also_at_the_end() -> None:
    size = 3 * BLOCK + 17
    for place in (0, BLOCK, size - 1):
        values = np.zeros(size, np.float32)
        values[place] = 1.0
        turned = Rotation(size, 1, 1).forward(values)
        assert np.abs(turned).max() <= 8 / np.sqrt(BLOCK), "without the rotation it would be 1"


def test_other_rounds_and_seeds_have_other_signs() -> None:
    values = np.arange(100, dtype=np.float32)
    found = [Rotation(100, seed, round).forward(values.copy()) for seed, round in ((1, 1), (1, 2), (2, 1))]
    assert not np.allclose(found[0], found[1])
    assert not np.allclose(found[0], found[2])


@pytest.mark.parametrize(("size", "block"), [(1, 1), (2, 2), (3, 2), (4096, 4096), (5000, 4096), (10**9, 4096)])
def test_blocks_are_powers_of_two_that_fit(size: Any, block: Any) -> None:
    assert block_size(size) == block
