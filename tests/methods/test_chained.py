"""Chained fine-tuning against its definition: each silo goes on from where the one before it stopped."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.file import parse
from hansa.core.errors import ConfigError
from hansa.core.messages import Train, Update
from hansa.runs import baselines
from hansa.runs.run import run
from tests.conftest import Build, same, weights

BASELINE = {"optimizer": "sgd", "lr": 0.2, "batch": 8}


def chained(federation: Build, folder: Any, order: Any, **settings: Any) -> Any:
    base = {"kind": "chained", "order": order, "tokenizer": {"kind": "bytes"}, "rounds": 2, "baseline": BASELINE}
    outcome = run(federation(**(base | settings)), folder, workers=0)
    return weights(outcome.folder / "model")


def test_one_silo_is_plain_training_of_that_silo(federation: Build, tmp_path: Path) -> None:
    alone = chained(federation, tmp_path / "chained", ["north"], sizes={"north": 60})
    settings = {"kind": "per-silo", "tokenizer": {"kind": "bytes"}, "rounds": 2, "baseline": BASELINE}
    own = run(
        federation(**settings, sizes={"north": 60}, evaluate={"every": 2, "share": 1.0}), tmp_path / "own", workers=0
    )
    for name, value in weights(own.folder / "silos" / "north" / "model").items():
        torch.testing.assert_close(alone[name], value, rtol=1e-5, atol=1e-6)  # θ − (θ − θᵢ) rounds


def test_the_second_silo_starts_from_the_first_ones_model(federation: Build, tmp_path: Path) -> None:
    both = chained(federation, tmp_path / "both", ["north", "south"])
    settings = parse(yaml.safe_load((tmp_path / "both" / "federation.yaml").read_text()))
    oracle = SiloHost(Runtime(baselines.arrange(settings, {}), tmp_path / "both"))
    model = oracle.runtime.start.copy()
    for round, name in enumerate(("north", "south"), 1):
        reply = oracle.silo(name).answer(Train(round, model))
        assert isinstance(reply, Update)
        model.flat.sub_(reply.gradient.flat)
    found = {name: both[name] for name in model.layout.names if name in both}
    for name, value in found.items():
        torch.testing.assert_close(value, model[name], rtol=1e-5, atol=1e-6)
    assert found


def test_the_order_matters(federation: Build, tmp_path: Path) -> None:
    one, other = (chained(federation, tmp_path / order[0], order) for order in (["north", "south"], ["south", "north"]))
    assert not same(one, other)


def test_a_silo_that_is_not_there_is_refused(federation: Build) -> None:
    raw = federation().model_dump(mode="json") | {"order": ["nord"]}
    with pytest.raises(ConfigError, match="order names 'nord'; did you mean 'north'"):
        parse(raw)
