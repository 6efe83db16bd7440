"""Dimitriadis et al. (2021): wᵢ = softmax(−β·Lᵢ)."""

import numpy as np
import pytest

from hansa.methods.dga import ByLoss
from hansa.methods.fedavg import Mean
from tests.toys import update

LOSSES = [0.5, 2.0, 1.0]
UPDATES = [update([1.0, 0.0], 5, LOSSES[0]), update([0.0, 1.0], 500, LOSSES[1]), update([-1.0, 2.0], 50, LOSSES[2])]


def combined(temperature: float) -> np.ndarray:
    weighting = ByLoss(temperature)
    return Mean().combine(UPDATES[0].gradient.layout, ((u, weighting.weight(u)) for u in UPDATES)).flat.numpy()


def test_weights_are_a_softmax_of_minus_loss() -> None:
    w = np.exp(-1.5 * np.array(LOSSES))
    w /= w.sum()
    expected = sum(wi * u.gradient.flat.numpy() for wi, u in zip(w, UPDATES, strict=True))
    np.testing.assert_allclose(combined(1.5), expected, rtol=1e-5)


def test_at_zero_temperature_all_count_the_same() -> None:
    np.testing.assert_allclose(combined(0.0), [0.0, 1.0], atol=1e-6)


def test_the_sign_matters() -> None:
    assert ByLoss(1.0).weight(UPDATES[0]) > ByLoss(1.0).weight(UPDATES[1])
    assert combined(50.0) == pytest.approx(UPDATES[0].gradient.flat.numpy(), abs=1e-6)
