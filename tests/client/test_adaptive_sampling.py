"""The amount of data per round follows the silo's validation loss (off by default)."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.client.adaptive_sampling import next_factor
from hansa.config.sections import AdaptiveSampling, Samples
from hansa.core.errors import DataError
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build, same, weights

DATA = {"max_length": 16, "valid": 0.15, "test": 0.2}
LOSS = st.floats(0.01, 20.0)


def test_over_fitting_halves_and_learning_adds_a_quarter() -> None:
    rule = AdaptiveSampling(tolerance=0.01)
    assert next_factor(1.0, 2.0, 2.1, rule) == 0.5
    assert next_factor(1.0, 2.0, 1.9, rule) == 1.25
    assert next_factor(1.0, 2.0, 2.005, rule) == 1.0, "within the tolerance nothing changes"


@given(st.lists(LOSS, min_size=2, max_size=60))
def test_it_stays_within_its_bounds_whatever_happens(losses: Any) -> None:
    rule, factor = AdaptiveSampling(least=0.5, most=2.0), 1.0
    for before, now in pairwise(losses):
        factor = next_factor(factor, before, now, rule)
        assert 0.5 <= factor <= 2.0


def test_the_rule_times_a_factor() -> None:
    assert Samples(floor=100, fraction=0.1).scaled(0.5).amount(5000) == 250
    assert Samples(epochs=2).scaled(1.5).amount(30) == 90


def seen_by_round(folder: Any, node: Any) -> Any:
    ledger = Ledger(folder)
    try:
        return [n for (n,) in ledger.select("select seen from traffic where node=? order by round", node)]
    finally:
        ledger.close()


def test_a_silo_that_still_learns_takes_more_and_one_that_overfits_takes_less(
    federation: Build, tmp_path: Path
) -> None:
    def amounts(name: Any, lr: Any) -> Any:
        train = {"lr": lr, "batch": 8, "samples": {"floor": 16, "adapt": {"every": 2}}}
        outcome = run(federation(rounds=7, data=DATA, train=train), tmp_path / name, workers=0)
        return seen_by_round(outcome.folder, "north")

    learning, diverging = amounts("learns", 0.05), amounts("overfits", 1.5)
    assert learning[:2] == [16, 16]
    assert learning[-1] > 16
    assert diverging[-1] < learning[-1]


def test_it_is_off_by_default_and_the_same_for_any_number_of_workers(federation: Build, tmp_path: Path) -> None:
    plain = run(federation(rounds=3, data=DATA), tmp_path / "plain", workers=0)
    assert set(seen_by_round(plain.folder, "north")) == {16}
    train = {"lr": 0.2, "batch": 8, "samples": {"floor": 16, "adapt": True}}
    settings = federation(rounds=3, data=DATA, train=train | {"samples": {"floor": 16, "adapt": {"every": 1}}})
    a = run(settings, tmp_path / "a", workers=0).folder
    b = run(settings, tmp_path / "b", workers=2).folder
    assert same(weights(a / "model"), weights(b / "model"))
    assert not same(weights(a / "model"), weights(plain.folder / "model"))


def test_it_needs_validation_data(federation: Build, tmp_path: Path) -> None:
    train = {"lr": 0.2, "batch": 8, "samples": {"floor": 16, "adapt": True}}
    with pytest.raises(DataError, match=r"'train\.samples\.adapt' goes by them"):
        run(federation(rounds=1, train=train), tmp_path / "r", workers=0)
