"""Li et al. (2020): ∇h = ∇F + μ·(w − w^t)."""

from typing import Any

import numpy as np
import pytest
import torch

from hansa.methods.fedavg import PlainObjective
from hansa.methods.fedprox import Proximal, fedprox
from tests.toys import local_training

START, TARGETS = [1.0, -2.0, 0.5], [[3.0, 1.0, -4.0]] * 5


def reference(mu: float, lr: float) -> np.ndarray:
    w = w_t = np.array(START)
    for target in TARGETS:
        w = w - lr * ((w - np.array(target)) + mu * (w - w_t))
    return w


def test_without_the_pull_it_is_fedavg_bit_for_bit() -> None:
    plain, _ = local_training(START, TARGETS, PlainObjective(), lr=0.1)
    limit, _ = local_training(START, TARGETS, Proximal(0.0), lr=0.1)
    assert torch.equal(plain.flat, limit.flat)


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
def test_steps_equal_the_formula(mu: Any) -> None:
    learner, done = local_training(START, TARGETS, Proximal(mu), lr=0.1)
    np.testing.assert_allclose(learner.flat.numpy(), reference(mu, 0.1), rtol=1e-5)
    assert done.steps == 5


def test_the_pull_has_the_right_sign() -> None:
    """Both signs of the move are held back: dropping the term, or μ·|w − w^t|, fails here."""
    free, _ = local_training(START, TARGETS, PlainObjective(), lr=0.1)
    held, _ = local_training(START, TARGETS, Proximal(2.0), lr=0.1)
    start = torch.tensor(START)
    assert bool(((held.flat - start).abs() < (free.flat - start).abs()).all())
    assert bool((torch.sign(held.flat - start) == torch.sign(free.flat - start)).all())


def test_it_composes_with_any_server() -> None:
    from dataclasses import replace

    from hansa.methods.fedopt import Adaptive

    method = replace(fedprox(0.1), server=Adaptive("adam", 0.01))
    assert isinstance(method.objective, Proximal)
    assert isinstance(method.server, Adaptive)
