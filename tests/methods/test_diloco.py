"""Douillard et al. (2024): against torch's AdamW and Nesterov; limits, and what must change without each part."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.client.state import StateFolder
from hansa.client.training import OptimizerState, train
from hansa.config.method import build_method
from hansa.config.sections import Training
from hansa.core.inner_node import InnerNode
from hansa.core.learner import Learner, Work
from hansa.core.messages import Reply, Request, Train, Update
from hansa.core.method import Method
from hansa.core.participation import Child, Participation, RoundSettings
from hansa.core.round import Server
from hansa.core.tensors import Layout, Tensors
from hansa.links.local import LocalLink
from hansa.methods.diloco import diloco
from hansa.methods.fedavg import BySamples, fedavg
from hansa.methods.fedopt import Nesterov
from hansa.runs.run import run
from tests.conftest import Build, same, weights
from tests.toys import Point, Pull, batches

START = [1.0, -2.0, 0.5]
TARGETS = {"a": [[3.0, 1.0, -4.0]] * 4, "b": [[-2.0, 0.0, 1.0]] * 4}  # H = 4
LAYOUT = Layout(("theta",), ((3,),))
ADAMW = Training(optimizer="adamw", lr=0.05, keep_optimizer=True)


def rounds(method: Method, training: Training, count: int = 3, targets: Any = TARGETS) -> torch.Tensor:
    """The shared model after some rounds among silos that pull a vector towards their targets."""
    kept: dict[str, OptimizerState | None] = {}

    def answer(name: str, request: Request) -> Reply:
        assert isinstance(request, Train)
        learner = Learner(Point(START))
        learner.state.write(request.model)
        work = Work(learner, request.model, request.round)
        before = kept.get(name) if method.keeps_optimizer else None
        done = train(work, Pull(), method.objective, training, batches(targets[name]), 1.0, kept=before)  # type: ignore[arg-type]
        kept[name] = done.optimizer
        moved = Tensors(LAYOUT, request.model.flat - learner.flat)
        return Update(moved, len(targets[name]) ** 2, done.seen, done.steps, done.loss, 0.0)

    children = {name: Child(len(found), len(found)) for name, found in targets.items()}
    link = LocalLink(lambda name: lambda request: answer(name, request))
    root = InnerNode(Server("root", children, link, method, RoundSettings(rounds=9, participation=Participation())))
    state = root.begin(Tensors(LAYOUT, torch.tensor(START)))
    for _ in range(count):
        assert not root.root_round(state, 0).failed
    return state.model.flat


def reference(count: int = 3, keep: bool = True) -> torch.Tensor:
    """Algorithm 1 with the optimizers of torch."""
    outer = torch.nn.Parameter(torch.tensor(START))
    outer_step = torch.optim.SGD([outer], lr=0.7, momentum=0.9, nesterov=True)
    inner = {name: torch.nn.Parameter(torch.zeros(3)) for name in TARGETS}
    inner_step = {name: torch.optim.AdamW([p], lr=0.05, weight_decay=0.0) for name, p in inner.items()}
    for _ in range(count):
        for name, theta in inner.items():
            theta.data.copy_(outer.data)
            if not keep:
                inner_step[name] = torch.optim.AdamW([theta], lr=0.05, weight_decay=0.0)
            for target in TARGETS[name]:
                theta.grad = theta.data - torch.tensor(target)
                inner_step[name].step()
        outer.grad = torch.stack([outer.data - theta.data for theta in inner.values()]).mean(dim=0)
        outer_step.step()
    return outer.detach()


def test_rounds_follow_algorithm_1() -> None:
    found = rounds(diloco(), ADAMW)
    torch.testing.assert_close(found, reference(), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, reference(keep=False), rtol=1e-3), "a new AdamW every round is another method"
    plain = rounds(replace(diloco(), server=fedavg().server), ADAMW)
    assert not torch.allclose(found, plain, rtol=1e-3), "and so is a server without momentum"


def test_one_plain_step_and_no_momentum_is_synchronous_sgd() -> None:
    targets = {"a": [[3.0, 1.0, -4.0]], "b": [[-2.0, 0.0, 1.0]]}
    theta = torch.tensor(START)
    for _ in range(3):
        theta = theta - 0.1 * torch.stack([theta - torch.tensor(t[0]) for t in targets.values()]).mean(dim=0)
    limit = rounds(diloco(lr=1.0, momentum=0.0), Training(lr=0.1), targets=targets)
    torch.testing.assert_close(limit, theta)
    uniform = replace(fedavg(), weighting=BySamples(0.0))
    assert torch.equal(limit, rounds(uniform, Training(lr=0.1), targets=targets)), "FedAvg, bit by bit"
    assert not torch.allclose(limit, rounds(diloco(), Training(lr=0.1), targets=targets))


def test_silos_weigh_the_same() -> None:
    targets = {"a": [[3.0, 1.0, -4.0]], "b": [[-2.0, 0.0, 1.0]] * 3}
    by_samples = replace(diloco(), weighting=BySamples())
    assert not torch.allclose(rounds(diloco(), ADAMW, targets=targets), rounds(by_samples, ADAMW, targets=targets))


def test_a_run_keeps_the_optimizer_and_any_method_has_the_outer_one(federation: Build, tmp_path: Path) -> None:
    settings = {"task": "classify", "rounds": 2, "model": "mini"}
    steps = {"optimizer": "adamw", "lr": 1e-3, "batch": 8, "samples": {"floor": 16}}
    outer = {"server": {"optimizer": "nesterov", "lr": 0.7}, "aggregate": {"weights": "uniform"}}
    run(federation(**settings, method="diloco", train=steps), tmp_path / "diloco", workers=0)
    run(federation(**settings, **outer, train=steps | {"keep_optimizer": True}), tmp_path / "kept", workers=0)
    run(federation(**settings, **outer, train=steps), tmp_path / "anew", workers=0)
    ours, kept, anew = (weights(tmp_path / name / "model") for name in ("diloco", "kept", "anew"))
    assert same(ours, kept)
    assert not same(ours, anew)
    states = StateFolder(tmp_path / "diloco" / "silos" / "north" / "memory")
    assert states.newest().get("optimizer", OptimizerState) is not None


def test_settings(federation: Build) -> None:
    method = build_method(federation(method={"name": "diloco", "lr": 0.5, "momentum": 0.8}))
    assert method.server == Nesterov(0.5, 0.8)
    assert method.keeps_optimizer
    with pytest.raises(Exception, match="momentum"):
        build_method(federation(method={"name": "diloco", "momentum": 1.0}))
