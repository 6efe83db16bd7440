import copy
import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hansa.core import noise
from hansa.core.noise import SecretSource, SeededSource, discrete_gaussian, uniform


def deviation(drawn: NDArray[np.int64], sigma: float) -> float:
    """Pearson's χ² against the exact probabilities, in its standard deviations; cells of 20 expected draws at least."""
    span = np.arange(-int(9 * sigma) - 3, int(9 * sigma) + 4)
    mass = np.exp(-(span.astype(float) ** 2) / (2 * sigma**2))
    group = np.minimum((np.cumsum(mass / mass.sum()) * 400).astype(int), 399)  # cells of equal mass where σ is large
    expected = np.bincount(group, mass / mass.sum(), 400) * drawn.size
    seen = np.bincount(group[drawn + int(9 * sigma) + 3], minlength=400)
    keep = expected > 20
    statistic = float(((seen - expected)[keep] ** 2 / expected[keep]).sum())
    freedom = int(keep.sum()) - 1
    return (statistic - freedom) / float(np.sqrt(2 * max(freedom, 1)))


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.7, 31.9, 64.0, 777.7, 40_000.0])
def test_the_draws_follow_the_discrete_gaussian_and_not_another_scale(sigma: float) -> None:
    drawn = discrete_gaussian(sigma, 1_000_000, SeededSource(7, "chi"))
    assert abs(deviation(drawn, sigma)) < 5
    assert deviation(drawn, sigma * 1.03) > 20
    exact = np.arange(-int(12 * sigma) - 2, int(12 * sigma) + 3).astype(float)
    mass = np.exp(-(exact**2) / (2 * sigma**2))
    assert np.mean(drawn.astype(float) ** 2) == pytest.approx((mass @ exact**2) / mass.sum(), rel=0.01)
    assert np.mean(drawn.astype(float) ** 4) == pytest.approx((mass @ exact**4) / mass.sum(), rel=0.03)


def test_a_rounded_continuous_gaussian_is_told_apart() -> None:
    # rounding N(0, σ²) adds 1/12 to the variance: the test sees the difference at a small scale
    rounded = np.rint(np.random.default_rng(0).normal(0, 1.0, 1_000_000)).astype(np.int64)
    assert deviation(rounded, 1.0) > 20


def test_the_largest_scale_keeps_all_its_bits() -> None:
    drawn = discrete_gaussian(2.0**50, 200_000, SecretSource()).astype(float)
    assert drawn.std() == pytest.approx(2.0**50, rel=0.01)
    assert len(np.unique(drawn)) > 199_000
    low = discrete_gaussian(2.0**40, 200_000, SecretSource()) & 0xFF
    counts = np.bincount(low.astype(int), minlength=256)  # the low bits are uniform
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 256 + 5 * np.sqrt(512)


def test_the_exact_decisions_agree_with_the_fast_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every acceptance is decided by `decimal`: the distribution stays, so the slow path is the same sampler."""
    monkeypatch.setattr(noise, "UNCERTAIN", 2.0)
    drawn = discrete_gaussian(100.0, 20_000, SeededSource(3))
    assert abs(deviation(drawn, 100.0)) < 5
    assert deviation(drawn, 110.0) > 5


def test_alias_tables_hold_the_exact_probabilities() -> None:
    for sigma in (0.3, 5.0, 63.9, 64.0, 1000.3):
        table = noise._table(sigma)
        whole = 2 ** (noise.PICK_BITS + 64)
        mass = [0] * len(table.rest)
        for slot, (keep, rest, other) in enumerate(zip(table.keep, table.rest, table.other, strict=True)):
            own = (int(keep) << 64) + rest
            mass[slot] += own
            mass[int(other)] += whole - own
        width = 2**table.bits
        weights = [np.exp(-((block * width) ** 2) / (2 * sigma**2)) for block in range(int(12 * sigma) // width + 2)]
        shares = np.array(mass, dtype=float) / (whole * len(mass))
        assert shares[: len(weights)] == pytest.approx(np.array(weights) / np.sum(weights), rel=1e-12, abs=1e-30)
        assert sum(mass) == whole * len(mass)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.05, 1e12), st.integers(0, 3000), st.integers(0, 2**62))
def test_a_seed_repeats_and_another_purpose_does_not(sigma: float, count: int, seed: int) -> None:
    first = discrete_gaussian(sigma, count, SeededSource(seed, 1, "lyon"))
    assert first.shape == (count,)
    assert np.array_equal(first, discrete_gaussian(sigma, count, SeededSource(seed, 1, "lyon")))
    assert np.abs(first).max(initial=0) <= 12 * sigma + sigma / 32 + 1
    if count > 500 and sigma > 1:
        assert not np.array_equal(first, discrete_gaussian(sigma, count, SeededSource(seed, 2, "lyon")))
        assert not np.array_equal(first, discrete_gaussian(sigma, count, SeededSource(seed + 1, 1, "lyon")))


def test_streams_of_different_purposes_are_not_correlated() -> None:
    one, two = (discrete_gaussian(50.0, 400_000, SeededSource(1, n)).astype(float) for n in (1, 2))
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / np.sqrt(400_000)
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 5 / np.sqrt(400_000)


def test_secret_bits_are_never_given_twice() -> None:
    source = SecretSource()
    words = np.concatenate([source.words(5000), source.words(5000), SecretSource().words(5000)])
    assert len(np.unique(words)) == len(words)
    assert len(source.bytes(3_000_001)) == 3_000_001
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="used twice"):
            copying(source)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # other tests may have started threads
def test_a_forked_child_draws_its_own_bits() -> None:
    source = SecretSource()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, source.bytes(32))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 32) != source.bytes(32)
    os.close(reader)
    os.close(writer)


def test_a_scale_out_of_range_is_refused_and_zero_draws_nothing() -> None:
    for wrong in (-1.0, float("nan"), float("inf"), 2.0**51):
        with pytest.raises(ValueError, match="sigma"):
            discrete_gaussian(wrong, 3, SecretSource())
    assert not discrete_gaussian(0.0, 5, SecretSource()).any()
    assert 0 <= uniform(1000, SecretSource()).min() < 0.02
