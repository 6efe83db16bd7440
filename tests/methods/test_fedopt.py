"""Reddi et al. (2021), Algorithm 2, against the formulas in numpy, and Adam against torch's own."""

from typing import Any

import numpy as np
import pytest
import torch

from hansa.config.method import server_optimizer
from hansa.config.sections import Server
from hansa.core.schedules import Schedule, schedule_factor
from hansa.core.tensors import Layout, Tensors
from hansa.methods.fedavg import ServerSgd
from hansa.methods.fedopt import Adaptive, Momentum, Nesterov

LAYOUT = Layout(("w",), ((4,),))
START = np.array([1.0, -1.0, 0.5, 2.0])
GRADIENTS = [np.array([0.3, -0.2, 0.0, 1.5]), np.array([-0.1, -0.4, 0.2, 0.7]), np.array([0.2, 0.1, -0.3, -2.0])]


def moved(optimiser: Any, gradients: Any = GRADIENTS) -> np.ndarray:
    model, state = Tensors(LAYOUT, torch.tensor(START, dtype=torch.float32)), optimiser.begin(LAYOUT)
    for round, gradient in enumerate(gradients, 1):
        optimiser.step(model, Tensors(LAYOUT, torch.tensor(gradient, dtype=torch.float32)), state, round, 1.0)
    return model.flat.numpy()


def reference(rule: str, lr: float, beta1: float, beta2: float, tau: float) -> np.ndarray:
    theta, m, v = START.copy(), np.zeros(4), np.zeros(4)
    for g in GRADIENTS:
        m = beta1 * m + (1 - beta1) * g
        if rule == "adagrad":
            v = v + g**2
        elif rule == "yogi":
            v = v - (1 - beta2) * g**2 * np.sign(v - g**2)
        else:
            v = beta2 * v + (1 - beta2) * g**2
        theta = theta - lr * m / (np.sqrt(v) + tau)
    return theta


@pytest.mark.parametrize("rule", ["adam", "adagrad", "yogi"])
def test_steps_equal_the_paper(rule: Any) -> None:
    optimiser = Adaptive(rule, 0.1, (0.9, 0.99), 1e-3, bias_correction=False)
    np.testing.assert_allclose(moved(optimiser), reference(rule, 0.1, 0.9, 0.99, 1e-3), rtol=1e-5)


def test_the_three_rules_differ() -> None:
    results = [moved(Adaptive(rule, 0.1, bias_correction=False, eps=1e-3)) for rule in ("adam", "adagrad", "yogi")]
    assert not np.allclose(results[0], results[1])
    assert not np.allclose(results[0], results[2])


def test_nesterov_is_torchs_nesterov_and_not_plain_momentum() -> None:
    parameter = torch.nn.Parameter(torch.tensor(START, dtype=torch.float32))
    theirs = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for g in GRADIENTS:
        parameter.grad = torch.tensor(g, dtype=torch.float32)
        theirs.step()
    ours = moved(server_optimizer(Server(optimizer="nesterov", lr=0.7, momentum=0.9)))
    np.testing.assert_allclose(ours, parameter.detach().numpy(), rtol=1e-5)
    assert not np.allclose(ours, moved(Momentum(0.7, 0.9)))
    np.testing.assert_array_equal(moved(Nesterov(0.7, 0.0)), moved(ServerSgd(0.7)))


def test_with_bias_correction_adam_is_torchs_adam() -> None:
    parameter = torch.nn.Parameter(torch.tensor(START, dtype=torch.float32))
    theirs = torch.optim.Adam([parameter], lr=0.05, betas=(0.9, 0.99), eps=1e-8)
    for g in GRADIENTS:
        parameter.grad = torch.tensor(g, dtype=torch.float32)
        theirs.step()
    np.testing.assert_allclose(moved(Adaptive("adam", 0.05)), parameter.detach().numpy(), rtol=1e-5)


def test_momentum_zero_is_sgd() -> None:
    np.testing.assert_array_equal(moved(Momentum(0.3, 0.0)), moved(ServerSgd(0.3)))
    assert not np.allclose(moved(Momentum(0.3, 0.9)), moved(ServerSgd(0.3)))


def test_momentum_equals_the_formula() -> None:
    theta, m = START.copy(), np.zeros(4)
    for g in GRADIENTS:
        m = 0.9 * m + g
        theta = theta - 0.2 * m
    np.testing.assert_allclose(moved(Momentum(0.2, 0.9)), theta, rtol=1e-5)


def test_schedules() -> None:
    paper = Schedule(kind="linear", decay=1e-3)
    assert schedule_factor(paper, 100, 500) == pytest.approx(0.9)
    assert schedule_factor(Schedule(kind="linear"), 9, 9) == pytest.approx(0.1)
    cosine = Schedule(kind="cosine", final=0.1)
    assert schedule_factor(cosine, 10, 10) == pytest.approx(0.1)
    assert schedule_factor(cosine, 5, 10) == pytest.approx(0.55)
    warm = Schedule(warmup=4)
    assert [schedule_factor(warm, r, 10) for r in (1, 2, 4, 5)] == pytest.approx([0.2, 0.4, 0.8, 1.0])


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adagrad", "yogi"])
def test_every_name_of_the_federation_file_builds(name: Any) -> None:
    optimiser = server_optimizer(Server(optimizer=name, lr=0.1))
    assert not np.allclose(moved(optimiser), START)


def test_inverse_square_root_rises_to_one_and_falls_with_the_root() -> None:
    schedule = Schedule(kind="inverse-sqrt", warmup=3)
    factors = [schedule_factor(schedule, r, 100) for r in (1, 2, 3, 4, 16, 64)]
    assert factors == pytest.approx([0.25, 0.5, 0.75, 1.0, 0.5, 0.25])
