"""Noise on centroids: as much as the price says, no less; and its price."""

from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from hansa.core.grid import Grid
from hansa.core.noise import SeededSource
from hansa.methods.centroid_noise import Noise, bounded
from hansa.privacy.dp.accounting import epsilon
from hansa.privacy.dp.prices import exchange_price
from tests.conftest import Build

NOISE = Noise(multiplier=0.5, clip=2.0, seeded=True)


@settings(max_examples=30, deadline=None)
@given(some.integers(0, 10**6), some.floats(0.01, 100.0))
def test_one_sample_moves_a_mean_by_no_more_than_the_noise_is_made_for(seed: int, size: Any) -> None:
    """Replace one member by any other: in units of the noise, the released mean moves by at most 1/z."""
    rng = np.random.default_rng(seed)
    members = torch.from_numpy(rng.normal(0, size, (6, 4, 8)).astype(np.float32))  # texts × positions × width
    other = members.clone()
    other[2] = torch.from_numpy(rng.normal(0, size, (4, 8)).astype(np.float32))
    apart = [bounded(texts, NOISE).mean(dim=0, keepdim=True) for texts in (members, other)]
    counts, lengths = torch.full((1, 4), 6.0), torch.tensor([4.0])
    silent = NOISE.blur(torch.zeros(1, 4, 8), counts, lengths, np.random.default_rng(0))
    drawn = np.zeros(32, np.int64)
    grid = Grid(1.0, 32, NOISE.multiplier)
    grid.add_noise(drawn, SeededSource(int(np.random.default_rng(0).integers(2**63)), "centroids"))
    standard = torch.from_numpy(drawn * (grid.cell / NOISE.multiplier)).view(1, 4, 8)
    deviation = float((silent / standard).median())
    assert float((apart[0] - apart[1]).norm()) <= deviation / NOISE.multiplier * 1.0001


def test_the_deviation_is_the_formulas_and_half_of_it_would_be_noticed() -> None:
    means, counts = torch.zeros(2, 3, 2000), torch.tensor([[10.0, 5.0, 5.0], [40.0, 40.0, 40.0]])
    found = NOISE.blur(means, counts, torch.tensor([3.0, 3.0]), np.random.default_rng(1)).std(dim=-1)
    expected = 0.5 * 2 * 2.0 * sqrt(3 * 2000) / counts
    assert torch.allclose(found, expected, rtol=0.1)
    assert not torch.allclose(found, expected / 2, rtol=0.1)


def test_vectors_within_the_bound_are_not_touched_and_none_is_without_noise() -> None:
    vectors = torch.tensor([[0.1, -0.1], [300.0, 400.0]])
    assert torch.equal(bounded(vectors, NOISE)[0], vectors[0])
    assert bounded(vectors, NOISE)[1].norm() == pytest.approx(2.0 * sqrt(2))
    assert torch.equal(bounded(vectors, None), vectors)


def test_predictions_stay_distributions() -> None:
    means = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]])
    found = NOISE.blur_predictions(means, torch.tensor([2.0, 1e9]), np.random.default_rng(0))
    assert torch.allclose(found.sum(dim=1), torch.ones(2))
    assert (found > 0).all()
    assert torch.allclose(found[1], means[1], atol=1e-4), "of many members little has to be hidden"
    assert not torch.allclose(found[0], means[0], atol=1e-2)


def test_noise_repeats_with_the_seed_unless_it_must_not() -> None:
    means, ones = torch.zeros(1, 4), torch.ones(1)
    twice = [NOISE.blur(means, ones, ones, np.random.default_rng(3)) for _ in range(2)]
    assert torch.equal(*twice)
    secret = Noise(multiplier=0.5)
    assert not torch.equal(*[secret.blur(means, ones, ones, np.random.default_rng(3)) for _ in range(2)])


def test_the_price_counts_two_releases_a_round(federation: Build) -> None:
    method = {"name": "fedkc", "noise": {"multiplier": 2.0, "delta": 1e-6}}
    cost = exchange_price(federation(task="classify", method=method), 5)
    assert cost is not None
    assert cost.epsilon == pytest.approx(epsilon(2.0, 10, 1e-6), rel=1e-4)
    assert "one training sample" in cost.line
    assert exchange_price(federation(task="classify", method="fedkc"), 5) is None
