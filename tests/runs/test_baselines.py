"""Baselines train on as many samples as the federation, and their schedules advance by steps."""

from pathlib import Path

import pytest

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.client.sampling import draw
from hansa.config.federation import Federation
from hansa.config.sections import Samples, Training
from hansa.core.messages import DataCard, Train
from hansa.core.seeds import stream
from hansa.core.settings import Named
from hansa.core.tensors import NOTHING
from hansa.runs import baselines
from hansa.runs.baselines import arrange
from hansa.runs.compare import variant
from hansa.runs.run import run
from tests.conftest import Build

SIZES = {"north": 1000, "south": 200, "east": 50}


def cards(settings: Federation) -> dict[str, DataCard]:
    return {n: DataCard({"train": {n: size}}, settings.train.per_round(size)) for n, size in SIZES.items()}


def seen(settings: Federation, size: int) -> int:
    """The samples that a silo with ``size`` samples trains on in the whole run."""
    return settings.rounds * settings.train.per_round(size)


@pytest.mark.parametrize(("rounds", "every"), [(12, 5), (11, 4), (7, 7), (3, 10), (20, 1)])
@pytest.mark.parametrize("kind", ["central", "per-silo"])
def test_as_many_samples_as_the_federation(federation: Build, kind: str, rounds: int, every: int) -> None:
    settings = federation(rounds=rounds, evaluate={"every": every}, train={"samples": {"floor": 100, "fraction": 0.3}})
    arranged = arrange(settings.model_copy(update={"kind": kind}), cards(settings))
    if kind == "central":
        whole = sum(seen(settings, size) for size in SIZES.values())
        assert seen(arranged, sum(SIZES.values())) == pytest.approx(whole, abs=arranged.rounds)
    else:
        for size in SIZES.values():
            assert seen(arranged, size) == pytest.approx(seen(settings, size), abs=arranged.rounds)


def test_a_silo_in_every_third_round_trains_on_a_third_of_the_samples(federation: Build) -> None:
    settings = federation(
        kind="per-silo",
        rounds=30,
        evaluate={"every": 10},
        participation={"count": 1},
        train={"samples": {"epochs": 2}, "batch": 8, "max_batches": 6},
    )
    arranged = arrange(settings, cards(settings))
    for size in SIZES.values():
        alone = settings.rounds * min(2 * size, 6 * 8) / 3
        assert seen(arranged, size) == pytest.approx(alone, abs=arranged.rounds * arranged.train.batch)


@pytest.mark.parametrize("most", [None, 3])
def test_samples_of_a_part_of_a_pass_come_once_per_pass(most: int | None) -> None:
    """Also where a cap cuts the rule short."""
    samples = Samples(epochs=1, times=0.5, replace=False)
    training = Training(batch=10, max_batches=most, samples=samples)
    drawn = [draw(training, 120, stream(0, r), 0, r, "north") for r in range(1, 9)]
    assert all(len(some) == (30 if most else 60) for some in drawn)
    per_pass = 4 if most else 2
    for first in range(0, 8, per_pass):
        together = [int(i) for some in drawn[first : first + per_pass] for i in some]
        assert sorted(together) == list(range(120))


def test_a_baseline_does_not_adapt_and_needs_no_rounds(federation: Build) -> None:
    train = {"batch": 8, "max_batches": 4, "samples": {"floor": 16, "adapt": True}}
    for kind in ("per-silo", "chained"):
        settings = federation(kind=kind, rounds=0, train=train)
        arranged = arrange(settings, cards(settings))
        assert arranged.train.samples.adapt is None
        Training.model_validate(arranged.train.model_dump())  # as workers read it


@pytest.mark.parametrize("periods", [1, 4])
def test_a_schedule_falls_to_zero_for_any_evaluation_period(federation: Build, tmp_path: Path, periods: int) -> None:
    baseline = {"lr": 1.0, "batch": 8, "schedule": "linear"}
    settings = federation(kind="central", rounds=4, evaluate={"every": 4 // periods}, baseline=baseline)
    arranged = arrange(settings, {n: DataCard({"train": {n: 80}}, 16) for n in settings.silos})
    run(settings, tmp_path / "run", workers=0)
    silo = SiloHost(Runtime(arranged, tmp_path / "run")).silo("all")
    steps = 4 * 3 * 16 // 8 // periods
    rates = list[float]()
    for period in range(periods):
        rate = silo._rate(Train(period + 1, NOTHING))
        assert callable(rate)
        rates += [rate(step) for step in range(steps)]
    assert len(rates) == 24
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(24 / 25)
    assert rates[-1] == pytest.approx(1 / 25)


def test_the_schedule_of_a_federation_advances_by_rounds(federation: Build, tmp_path: Path) -> None:
    settings = federation(rounds=3, train={"schedule": {"kind": "linear"}})
    run(settings, tmp_path / "run", workers=0)
    silo = SiloHost(Runtime(settings, tmp_path / "run")).silo("north")
    assert [silo._rate(Train(r, NOTHING)) for r in (1, 2, 3)] == pytest.approx([0.75, 0.5, 0.25])


def test_buffered_rounds_get_the_samples_of_synchronous_ones(federation: Build) -> None:
    settings = federation(rounds=4, evaluate={"every": 2})
    buffered = variant(settings, "fedbuff")
    assert baselines.updates_per_round(settings) == baselines.updates_per_round(buffered) == 3
    small = settings.model_copy(update={"method": Named.model_validate({"name": "fedbuff", "buffer": 1})})
    assert baselines.updates_per_round(small) == 1
    found = baselines.with_same_budget(settings, small)
    assert (found.rounds, found.evaluate.every) == (12, 6), "three times the rounds of a third of the updates"
    assert baselines.with_same_budget(found, settings).rounds == 2
    central = settings.model_copy(update={"kind": "central"})
    assert baselines.with_same_budget(settings, central) is central
