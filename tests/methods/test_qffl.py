"""Li et al. (2020), q-FedAvg: θ ← θ − Σ Δᵢ/Σ hᵢ."""

from typing import Any

import numpy as np
import pytest

from hansa.methods.fedavg import Mean
from hansa.methods.qffl import QFairMean, QFfl
from tests.toys import update

LOSSES = [0.5, 2.0, 1.0]
UPDATES = [update([1.0, 0.0], 5, LOSSES[0]), update([0.0, 1.0], 500, LOSSES[1]), update([-1.0, 2.0], 50, LOSSES[2])]


def combined(q: float, lipschitz: float = 10.0) -> np.ndarray:
    return QFairMean(q, lipschitz).combine(UPDATES[0].gradient.layout, ((u, 1.0) for u in UPDATES)).flat.numpy()


@pytest.mark.parametrize("q", [0.3, 1.0, 2.5])
def test_is_algorithm_2_written_out(q: Any) -> None:
    lipschitz, delta, h = 10.0, np.zeros(2), 0.0
    for u, loss in zip(UPDATES, LOSSES, strict=True):
        step = lipschitz * u.gradient.flat.numpy()
        delta += loss**q * step
        h += q * loss ** (q - 1) * float(step @ step) + lipschitz * loss**q
    np.testing.assert_allclose(combined(q), delta / h, rtol=1e-5)


def test_at_q_zero_it_is_the_uniform_mean() -> None:
    uniform = Mean().combine(UPDATES[0].gradient.layout, ((u, 1.0) for u in UPDATES)).flat.numpy()
    np.testing.assert_allclose(combined(0.0), uniform, rtol=1e-5)


def test_the_worst_silo_pulls_hardest() -> None:
    """As q grows, the step turns towards the silo with the highest loss (and away from the one that fits)."""
    losses = {5: 3.0, 500: 0.1, 50: 0.1}
    updates = [update(v, n, losses[n]) for v, n in (([1.0, 0.0], 5), ([0.0, 1.0], 500), ([0.0, 1.0], 50))]

    def angle(q: float) -> float:
        step = QFairMean(q, 10.0).combine(updates[0].gradient.layout, ((u, 1.0) for u in updates)).flat.numpy()
        return float(step[0] / np.linalg.norm(step))

    assert angle(0.0) < 0.5 < angle(1.0) < angle(2.0)
    assert angle(4.0) > 0.999


def test_it_must_see_each_update() -> None:
    assert not QFfl().build().aggregator.linear
