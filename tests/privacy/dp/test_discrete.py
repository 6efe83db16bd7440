import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from hansa.privacy.dp.discrete import (
    SecretSource,
    SeededSource,
    conditional_rounding,
    randomised_rounding,
    rounded_norm,
)


@settings(max_examples=100, deadline=None)
@given(arrays(np.float64, st.integers(1, 200), elements=st.floats(-1e6, 1e6)), st.integers(0, 2**60))
def test_rounding_goes_to_a_neighbour_and_keeps_integers(values: NDArray[np.float64], seed: int) -> None:
    rounded = randomised_rounding(values, SeededSource(seed))
    assert rounded.dtype == np.int64
    assert (np.abs(rounded - values) < 1).all()
    assert np.array_equal(randomised_rounding(np.rint(values), SeededSource(seed)), np.rint(values))


def test_rounding_has_the_value_as_its_expectation() -> None:
    values = np.array([0.25, -0.25, 3.9, -7.5])
    mean = np.mean([randomised_rounding(values, SeededSource(n)) for n in range(20_000)], axis=0)
    assert mean == pytest.approx(values, abs=0.02)


@settings(max_examples=100, deadline=None)
@given(
    arrays(np.float64, st.integers(1, 300), elements=st.floats(-1, 1)), st.floats(0.01, 300.0), st.integers(0, 2**60)
)
def test_the_norm_after_rounding_is_bounded(values: NDArray[np.float64], clip: float, seed: int) -> None:
    length = float(np.linalg.norm(values))
    clipped = values * min(1.0, clip / length) if length else values
    bound = rounded_norm(clip, values.size)
    assert np.linalg.norm(conditional_rounding(clipped, bound, SeededSource(seed))) <= bound


def test_without_the_condition_the_bound_is_exceeded() -> None:
    # 100 values of 0.5: the number that is rounded up varies, and with it the norm
    values = np.full(100, 0.5)
    norms = [float(np.linalg.norm(randomised_rounding(values, SeededSource(n)))) for n in range(2000)]
    tight = float(np.sqrt(50))  # half of the roundings exceed their mean
    assert sum(norm > tight for norm in norms) > 500
    for n in range(200):
        assert np.linalg.norm(conditional_rounding(values, tight, SeededSource(n))) <= tight


def test_values_that_were_not_clipped_are_refused() -> None:
    with pytest.raises(ValueError, match="clip them first"):
        conditional_rounding(np.array([10.0]), 9.0, SecretSource())
