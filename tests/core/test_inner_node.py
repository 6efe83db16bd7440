"""Federations below a federation that only average: the root's settings count once, and silos below forget in time."""

from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch

from hansa.client.runtime import Runtime
from hansa.config.nodes import Node
from hansa.core.inner_node import InnerNode
from hansa.core.link import Answer
from hansa.core.messages import DataCard, DescribeData, Evaluate, Scores
from hansa.core.participation import Child, Participation, RoundSettings
from hansa.core.round import Server
from hansa.core.tensors import Tensors
from hansa.methods.fedavg import fedavg
from hansa.runs.directory import RunDirectory
from hansa.runs.run import run
from tests.conftest import Build, weights

SERVER = {"optimizer": "sgd", "lr": 1.0, "schedule": "linear"}


def below(settings: Any, rounds: Any = 1) -> Any:
    """The same silos below one region."""
    region = Node(silos=settings.silos, rounds=rounds)
    return settings.model_copy(update={"silos": {"region": region}})


def test_one_region_with_all_silos_is_the_flat_federation(federation: Build, tmp_path: Path) -> None:
    """With a schedule at the server, which a region must not apply once more."""
    flat = federation(rounds=3, server=SERVER)
    run(flat, tmp_path / "flat", workers=0)
    run(below(flat), tmp_path / "tree", workers=0)
    plain, inner = (weights(tmp_path / name / "model") for name in ("flat", "tree"))
    assert all(torch.allclose(plain[name], inner[name], rtol=1e-4, atol=1e-6) for name in plain)


def test_a_regions_own_rounds_do_not_use_up_the_schedule(federation: Build, tmp_path: Path) -> None:
    """Four rounds of silos in two of the root: the last two must still move the model."""
    train = {"lr": 0.2, "batch": 8, "samples": {"floor": 16}, "schedule": "linear"}
    settings = below(federation(rounds=2, train=train, checkpoint={"every": 1}), rounds=2)
    run(settings, tmp_path / "run", workers=0)
    directory = RunDirectory(tmp_path / "run")
    start = Runtime(settings, tmp_path / "run").start.flat
    after = [directory.restore(r, {}).model.flat for r in (1, 2)]
    moved = [float((b - a).norm()) for a, b in ((start, after[0]), (after[0], after[1]))]
    assert moved[1] > 0.1 * moved[0] > 0


def test_silos_below_a_region_forget_what_is_no_longer_needed(federation: Build, tmp_path: Path) -> None:
    train = {"optimizer": "adamw", "lr": 1e-3, "batch": 8, "samples": {"floor": 16}, "keep_optimizer": True}
    settings = federation(rounds=5, train=train, evaluate={"every": 9}, checkpoint={"every": 1, "keep": 1})
    run(settings, tmp_path / "flat", workers=0)
    run(below(settings, rounds=3), tmp_path / "tree", workers=0)

    def kept(name: str) -> Any:
        return len(list((tmp_path / name / "silos" / "north" / "memory").glob("round-*")))

    assert kept("tree") <= 3 * kept("flat"), "of fifteen rounds"


def test_evaluation_below_a_region_has_a_deadline_too() -> None:
    """A node that does not answer in time is left out of the scores."""
    settings = RoundSettings(participation=Participation(deadline=5.0))
    asked = []

    class Noted:
        size, remote, posting = 1, False, None

        def ask(self, asks: Any, until: Any) -> Any:
            asked.append(until)
            replies: dict[Any, Any] = {Evaluate: Scores({"north": {"tokens": 1.0}}), DescribeData: DataCard({}, 0)}
            return iter([Answer(node, replies[type(request)]) for node, request in asks.items()])

    region = InnerNode(Server("region", {"north": Child(1, 1)}, Noted(), fedavg(), settings))
    region.answer(Evaluate(0, Tensors.of({})))
    region.answer(DescribeData())
    assert asked[0] == pytest.approx(monotonic() + 5.0, abs=1.0)
    assert asked[1] is None, "before the first round there is time"
