"""Karimireddy et al. (2020): control variates, against the formulas in numpy; limits, controls and refusals."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hansa.client.state import StateFolder
from hansa.client.training import train
from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.sections import Privacy, Training
from hansa.core.errors import ConfigError
from hansa.core.inner_node import InnerNode
from hansa.core.learner import Learner, Work
from hansa.core.messages import Reply, Request, Train, Update
from hansa.core.method import METHODS, Method
from hansa.core.participation import Child, Participation, RoundSettings
from hansa.core.round import Server
from hansa.core.settings import Section
from hansa.core.shared_state import SharedValue
from hansa.core.state import SHARED
from hansa.core.tensors import Layout, Tensors
from hansa.links.local import LocalLink
from hansa.methods.fedavg import BySamples, fedavg
from hansa.methods.scaffold import Corrected, ServerControl, SiloControl, scaffold
from hansa.runs.directory import RunDirectory
from hansa.runs.run import run
from tests.conftest import Build, same, weights
from tests.toys import Point, Pull, batches

START = [1.0, -2.0, 0.5]
TARGETS = {"a": [[3.0, 1.0, -4.0]] * 4, "b": [[-2.0, 0.0, 1.0]] * 2, "c": [[0.5, 5.0, 0.0]] * 3}  # a's 4 steps, …
LR, SERVER_LR = 0.1, 0.7
LAYOUT = Layout(("theta",), ((3,),))


class Toy:
    """Rounds of a method among silos that pull a vector towards their targets; two of three take part in a round."""

    def __init__(self, method: Method, count: int = 2) -> None:
        self.method = method
        self.states: dict[str, Any] = {}  # what each silo keeps
        settings = RoundSettings(rounds=9, participation=Participation(count=count))
        children = {name: Child(len(targets), len(targets)) for name, targets in TARGETS.items()}
        link = LocalLink(lambda name: lambda request: self.answer(name, request))
        self.root = InnerNode(Server("root", children, link, method, settings))
        self.state = self.root.begin(Tensors(LAYOUT, torch.tensor(START)))

    def answer(self, name: str, request: Request) -> Reply:
        assert isinstance(request, Train)
        learner = Learner(Point(START))
        learner.state.write(request.model)
        work = Work(learner, request.model, request.round, self.states.get(name), shared_state=request.shared_state)
        done = train(work, Pull(), self.method.objective, Training(lr=LR), batches(TARGETS[name]), 1.0)  # type: ignore[arg-type]
        self.states[name] = done.objective
        moved = Tensors(LAYOUT, request.model.flat - learner.flat)
        return Update(moved, done.seen, done.seen, done.steps, done.loss, 0.0, shared_state=work.contribution)

    def round(self) -> list[str]:
        record = self.root.root_round(self.state, 0)
        assert not record.failed
        return record.cohort


class Reference:
    """Algorithm 1, option II, in numpy."""

    def __init__(self) -> None:
        self.x = np.array(START)
        self.c = np.zeros(3)
        self.silos = {name: np.zeros(3) for name in TARGETS}

    def round(self, cohort: list[str]) -> None:
        moves, changes = [], []
        for name in cohort:
            y, before = self.x.copy(), self.silos[name]
            for target in TARGETS[name]:
                y = y - LR * ((y - np.array(target)) - before + self.c)
            after = before - self.c + (self.x - y) / (len(TARGETS[name]) * LR)
            moves.append(y - self.x)
            changes.append(after - before)
            self.silos[name] = after
        self.x = self.x + SERVER_LR * np.mean(moves, axis=0)
        self.c = self.c + len(cohort) / len(TARGETS) * np.mean(changes, axis=0)


def test_rounds_are_algorithm_1_written_out() -> None:
    toy, reference = Toy(scaffold(SERVER_LR)), Reference()
    cohorts = set()
    for _ in range(6):
        cohort = toy.round()
        reference.round(cohort)
        cohorts.add(tuple(sorted(cohort)))
        np.testing.assert_allclose(toy.state.model.flat.numpy(), reference.x, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(toy.state.slots[SHARED].value.flat.numpy(), reference.c, rtol=1e-4, atol=1e-5)
        for name, state in toy.states.items():
            np.testing.assert_allclose(state.value.flat.numpy(), reference.silos[name], rtol=1e-4, atol=1e-5)
    assert len(cohorts) > 1, "a silo that pauses keeps its control variate"


def test_the_first_control_variate_is_the_mean_gradient_of_the_round() -> None:
    toy = Toy(scaffold(), count=3)
    toy.round()
    y, gradients = np.array(START), []
    for target in TARGETS["a"]:
        gradients.append(y - np.array(target))
        y = y - LR * gradients[-1]
    np.testing.assert_allclose(toy.states["a"].value.flat.numpy(), np.mean(gradients, axis=0), rtol=1e-4)


def optimum(method: Method, rounds: int = 400) -> np.ndarray:
    toy = Toy(method, count=3)
    for _ in range(rounds):
        toy.round()
    return toy.state.model.flat.numpy()


def test_it_reaches_the_common_optimum_and_fedavg_does_not() -> None:
    """The paper's point, and the control: with different numbers of local steps FedAvg stops elsewhere."""
    common = np.mean([targets[0] for targets in TARGETS.values()], axis=0)  # of Σ ½‖θ − target‖²
    np.testing.assert_allclose(optimum(scaffold()), common, atol=1e-3)
    assert np.abs(optimum(replace(fedavg(), weighting=BySamples(0.0))) - common).max() > 0.1


def test_the_sign_of_the_correction_matters() -> None:
    @dataclass(frozen=True)
    class Turned(Corrected):
        def gradient(self, work: Work) -> None:
            before = work.learner.grad.clone()
            super().gradient(work)
            work.learner.grad.copy_(2 * before - work.learner.grad)

    right, wrong = Toy(scaffold()), Toy(replace(scaffold(), objective=Turned()))
    for toy in (right, wrong):
        toy.round()
        toy.round()
    assert not torch.allclose(right.state.model.flat, wrong.state.model.flat, atol=1e-3)


def test_without_a_step_the_control_variate_stays() -> None:
    learner = Learner(Point(START))
    kept = SiloControl(Tensors(LAYOUT, torch.ones(3)))
    work = Work(learner, learner.state.copy(), 2, kept, shared_state=Tensors.zeros(LAYOUT))
    for work.steps, work.lr in ((0, 0.1), (3, 0.0)):
        assert Corrected().finish(work) is kept
        assert work.contribution is None


def test_the_server_adds_the_mean_by_participation() -> None:
    c, mean = Tensors(LAYOUT, torch.tensor([1.0, 2.0, 3.0])), Tensors(LAYOUT, torch.tensor([4.0, -4.0, 0.0]))
    assert ServerControl().merge(c, mean, 0.25).flat.tolist() == [2.0, 1.0, 3.0]
    assert c.flat.tolist() == [1.0, 2.0, 3.0], "a failed round must find the old value"


# ── whole runs ────────────────────────────────────────────────────────────────────────────────────────────────────

UNIFORM = {"weights": "uniform"}


def model(settings: Federation, folder: Path, workers: int = 0) -> dict[str, torch.Tensor]:
    return weights(run(settings, folder, workers=workers).folder / "model")


def test_while_c_is_zero_it_is_fedavg_with_equal_weights_bit_for_bit(federation: Build, tmp_path: Path) -> None:
    """In the first round; and in all rounds where silos contribute nothing."""

    @dataclass(frozen=True)
    class Silent(Corrected):
        def finish(self, work: Work) -> None:
            return None

    @METHODS.register("silent-scaffold")
    class Settings(Section):
        def build(self) -> Method:
            return replace(scaffold(), objective=Silent())

    one, three = (model(federation(rounds=n, aggregate=UNIFORM), tmp_path / f"fedavg-{n}") for n in (1, 3))
    try:
        assert same(one, model(federation(rounds=1, method="scaffold"), tmp_path / "first"))
        assert same(three, model(federation(method="silent-scaffold"), tmp_path / "silent"))
    finally:
        del METHODS.entries["silent-scaffold"]
    assert not same(three, model(federation(method="scaffold"), tmp_path / "scaffold")), "the control"


def control(folder: Path, round: int) -> torch.Tensor:
    state = RunDirectory(folder).restore(round, {SHARED: SharedValue})
    return state.slots[SHARED].value.flat  # type: ignore[no-any-return]


def test_the_servers_control_variate_is_the_mean_of_the_silos(federation: Build, tmp_path: Path) -> None:
    folder = run(federation(method="scaffold"), tmp_path / "run", workers=0).folder
    stored = [StateFolder(folder / "silos" / n / "memory").newest() for n in ("north", "south", "east")]
    values = [state.get("objective", SiloControl) for state in stored]
    mean = torch.stack([one.value.flat for one in values if one is not None]).mean(0)
    assert len(values) == 3
    torch.testing.assert_close(control(folder, 3), mean, rtol=1e-4, atol=1e-6)
    assert mean.abs().sum() > 0


def test_the_same_bits_with_workers_and_after_a_resume(federation: Build, tmp_path: Path) -> None:
    """C is in the checkpoint, c_i in the silo's own folder."""
    settings = federation(method={"name": "scaffold", "server_lr": 0.9}, rounds=4, participation={"count": 2})
    whole = model(settings, tmp_path / "whole")
    assert same(whole, model(settings, tmp_path / "pool", workers=2))

    class Stop:
        def on_round_end(self, run: Any, record: Any) -> None:
            if record.number == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, tmp_path / "cut", workers=0, callbacks=[Stop()])
    resumed = run(settings, tmp_path / "cut", resume=True, workers=0)
    assert same(whole, weights(resumed.folder / "model"))
    assert torch.equal(control(tmp_path / "whole", 4), control(tmp_path / "cut", 4))


def private(settings: Federation) -> Federation:
    north = settings.silos["north"].model_copy(update={"privacy": Privacy()})
    return settings.model_copy(update={"silos": settings.silos | {"north": north}})


def tree(settings: Federation) -> Federation:
    region = settings.silos["north"].model_copy(update={"sources": (), "silos": {"far": settings.silos["north"]}})
    return settings.model_copy(update={"silos": settings.silos | {"north": region}})


@pytest.mark.parametrize(
    ("settings", "change", "reason"),
    [
        ({"secure_aggregation": {}}, None, "also sends a state"),
        ({}, private, "not the state that method 'scaffold'"),
        ({}, tree, "at the top level of 'silos'"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    federation: Build, settings: dict[str, Any], change: Callable[[Federation], Federation] | None, reason: str
) -> None:
    built = federation(method="scaffold", **settings)
    with pytest.raises(ConfigError, match=reason):
        build_method(change(built) if change else built)
