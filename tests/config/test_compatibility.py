"""Combinations that make no sense are refused by what a method is, whoever asks for them and under whatever name."""

from pathlib import Path
from typing import Any

import pytest

from hansa.config.checks import check_settings
from hansa.config.method import build_method
from hansa.config.nodes import Node
from hansa.config.sections import Privacy
from hansa.core.errors import ConfigError
from hansa.core.participation import Participation
from hansa.core.settings import Named
from tests.conftest import Build

NEARBY = {"rounds": 2, "nearby": 1}
MANY = {"north": 30, "south": 30, "east": 30, "north-2": 30, "south-2": 30}


def private(settings: Any) -> Any:
    silo = settings.silos["south"].model_copy(update={"privacy": Privacy(noise_multiplier=1.0)})
    return settings.model_copy(update={"silos": settings.silos | {"south": silo}})


def test_an_update_that_no_noise_covers_does_not_leave_a_private_silo(federation: Build) -> None:
    with pytest.raises(ConfigError, match="noise of silo 'south' does not cover"):
        build_method(private(federation(personal=NEARBY)))
    build_method(private(federation(personal=NEARBY | {"nearby": 0})))


def test_an_update_in_the_clear_does_not_leave_under_secure_aggregation(federation: Build) -> None:
    with pytest.raises(ConfigError, match="'secure_aggregation' hides them"):
        build_method(federation(personal=NEARBY, secure_aggregation=True))


@pytest.mark.parametrize("settings", [{"method": "krum"}, {"aggregate": "krum"}])
def test_krum_needs_enough_silos_in_a_round_however_it_is_asked_for(federation: Build, settings: Any) -> None:
    build_method(federation(sizes=MANY, **settings))
    for fewer in ({}, {"sizes": MANY, "participation": {"count": 4}}):
        with pytest.raises(ConfigError, match=r"needs at least 5 silos, and [34] take part"):
            build_method(federation(**settings, **fewer))


def test_krum_counts_those_who_meet_in_a_region(federation: Build) -> None:
    settings = federation(sizes=MANY)
    large, small = (dict(list(settings.silos.items())[:n]) for n in (5, 2))
    for below, fits in ((large, True), (small, False)):
        region = Node(silos=below, method=Named(name="krum"))
        tree = settings.model_copy(update={"silos": {"region": region}})
        if fits:
            build_method(tree, region)
        else:
            with pytest.raises(ConfigError, match="needs at least 5 silos, and 2 take part"):
                build_method(tree, region)


@pytest.mark.parametrize("method", ["norm-bound", "median", "qffl", "fedbuff"])
def test_an_aggregation_of_ones_own_is_not_replaced_in_silence(federation: Build, method: Any) -> None:
    with pytest.raises(ConfigError, match="an aggregation of its own"):
        build_method(federation(method=method, aggregate={"weights": "uniform"}))


@pytest.mark.parametrize(
    ("method", "task", "sentence"),
    [
        ("moon", "mlm", "use it with 'classify'"),
        ("fedbuff", "mlm", "or to a region, not to a silo"),
        ("fedkc", "classify", "the same for all"),
        ("worldlm", "mlm", "set it as the top-level 'method'"),
    ],
)
def test_a_nodes_own_method_is_looked_at_too(federation: Build, method: Any, task: Any, sentence: Any) -> None:
    settings = federation(task=task)
    node = Node.model_validate(settings.silos["north"].model_dump() | {"method": method})
    with pytest.raises(ConfigError, match=sentence):
        check_settings(settings.model_copy(update={"silos": settings.silos | {"north": node}}))


def test_a_method_of_ones_own_is_held_to_the_same_rules(federation: Build, tmp_path: Path) -> None:
    """Not by its name."""
    code = """
from dataclasses import replace
from hansa.core.settings import Section
from hansa.core.method import METHODS
from hansa.methods.fedavg import fedavg
from hansa.methods.fedbuff import Buffered

@METHODS.register("impatient")
class Settings(Section):
    def build(self):
        return replace(fedavg(), name="impatient", participation=Buffered(2))
"""
    (tmp_path / "impatient.py").write_text(code)
    settings = federation(method="impatient", plugins=[str(tmp_path / "impatient.py")], secure_aggregation=True)
    with pytest.raises(ConfigError, match="which method 'impatient' does not have"):
        check_settings(settings)
    with pytest.raises(ConfigError, match="'impatient' has every silo at work"):
        check_settings(
            settings.model_copy(update={"secure_aggregation": None, "participation": Participation(count=1)})
        )
