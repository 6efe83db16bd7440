"""Secure aggregation inside the regions of a tree: the plain tree's model up to rounding, with drop-outs, or none."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.client.host import SiloHost
from hansa.config.federation import Federation
from hansa.config.nodes import Node
from hansa.config.tree import is_masked, masked_families
from hansa.core.errors import ConfigError, RunFailed
from hansa.core.link import Answer, Link
from hansa.core.messages import Failure, Train, Update
from hansa.links.local import LocalLink
from hansa.runs.run import run
from tests.conftest import Build, weights
from tests.core.trees import run_over

SIZES = {f"{word}-{region}": 40 + region for region in range(3) for word in ("north", "south", "east")}
EVERYONE_MAY_FAIL = {"quorum": 0.1}
UNEVEN = {"weights": {"by": "samples", "temperature": 0.3}}  # different weights, and none above the largest


def tree(federation: Build, regions: int, rounds: int = 1, **settings: Any) -> Federation:
    """Regions with three silos each."""
    sizes = {name: count for name, count in SIZES.items() if int(name[-1]) < regions}
    flat = federation(sizes=sizes, rounds=2, participation=EVERYONE_MAY_FAIL, aggregate=UNEVEN, **settings)
    silos = {
        f"region-{number}": Node(
            silos={name: node for name, node in flat.silos.items() if name.endswith(f"-{number}")}, rounds=rounds
        )
        for number in range(regions)
    }
    return flat.model_copy(update={"silos": silos})


class Watching:
    """A link that notes every update that silos send, and on which some silos do not answer requests to train."""

    def __init__(self, link: Link, silent: frozenset[str] = frozenset()) -> None:
        self.link, self.silent, self.updates = link, silent, dict[str, list[Update]]()
        self.size, self.remote, self.posting = link.size, link.remote, link.posting

    def ask(self, asks: Mapping[str, Any], until: float | None) -> Iterator[Answer]:
        for answer in self.link.ask(asks, until):
            if answer.node in self.silent and isinstance(asks[answer.node], Train):
                answer = replace(answer, reply=Failure("it has dropped out"))
            elif isinstance(answer.reply, Update):
                self.updates.setdefault(answer.node, []).append(answer.reply)
            yield answer


def trained(settings: Federation, folder: Path, silent: frozenset[str] = frozenset()) -> tuple[Any, Watching]:
    """The model of a run, and what its silos sent."""
    seen: list[Watching] = []

    def link_of(host: SiloHost) -> Link:
        seen.append(Watching(LocalLink(host.answer), silent))
        return seen[0]

    return run_over(settings, folder, link_of), seen[0]


def close(one: Any, other: Any, atol: float = 1e-5) -> None:
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, atol=atol, rtol=0)


METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "hierfavg": {"method": "hierfavg", "task": "causal-lm"},
    "fedper": {"method": "fedper", "task": "causal-lm"},
    "worldlm": {"method": {"name": "worldlm", "residuals": 0}, "task": "causal-lm"},
}


@pytest.mark.parametrize("regions", [2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_the_model_is_that_of_the_plain_tree_but_for_rounding(
    federation: Build, tmp_path: Path, method: str, regions: int
) -> None:
    """With three regions the root masks too; with two, it learns each region's mean."""
    settings = METHODS[method]
    plain, _ = trained(tree(federation, regions, **settings), tmp_path / "plain")
    secure = tree(federation, regions, secure_aggregation={"bound": 4.0}, **settings)
    assert (is_masked(secure, "region-0"), is_masked(secure, "north-0")) == (regions == 3, True)
    masked, seen = trained(secure, tmp_path / "masked")
    close(plain, masked)
    sent = [update for updates in seen.updates.values() for update in updates]
    assert len(sent) == 2 * 3 * regions
    for update in sent:
        assert update.masked is not None, "no silo sent an update without masks"
        assert update.gradient.flat.nan_to_num().abs().max() > 1e3, "masked values are not those of an update"
        keys = update.layers.keys if update.layers is not None else None
        assert (keys is not None and bool(keys.layout.names)) == (method == "worldlm"), "key layers travel beside it"


def test_a_region_with_rounds_of_its_own_and_silos_that_drop_out(federation: Build, tmp_path: Path) -> None:
    sizes = {"north": 30, "south": 24, "east": 20, "north-2": 22, "south-2": 20, "east-2": 26, "north-3": 21}
    kinds = {"secure_aggregation": {"threshold": 0.5, "bound": 4.0}, "plain": None}
    models = {}
    for kind, secure in kinds.items():
        flat = federation(
            sizes=sizes,
            rounds=2,
            participation=EVERYONE_MAY_FAIL,
            aggregate=UNEVEN,
            secure_aggregation=secure,
        )
        west = Node(silos={n: flat.silos[n] for n in ("north", "south", "east", "north-2")}, rounds=2)
        east = Node(silos={n: flat.silos[n] for n in ("south-2", "east-2", "north-3")})
        settings = flat.model_copy(update={"silos": {"west": west, "far": east}})
        models[kind], _ = trained(settings, tmp_path / kind, frozenset({"south"}))
    close(models["plain"], models["secure_aggregation"])


def test_a_region_one_below_the_threshold_gives_nothing_and_the_others_go_on(federation: Build, tmp_path: Path) -> None:
    settings = tree(federation, 2, secure_aggregation={"bound": 4.0})
    masked, seen = trained(settings, tmp_path / "masked", frozenset({"east-1"}))
    assert all(update.masked is not None for updates in seen.updates.values() for update in updates)
    plain = tree(federation, 2)
    expected, _ = trained(plain, tmp_path / "plain", frozenset({"north-1", "south-1", "east-1"}))
    close(expected, masked)
    with pytest.raises(RunFailed, match="the sum cannot be unmasked"):
        trained(settings, tmp_path / "neither", frozenset({"east-0", "east-1"}))


def test_residuals_do_not_reach_single_children_under_masks(federation: Build, tmp_path: Path) -> None:
    """A residual for one child alone would be another model for it: see Pasquini et al. (2022)."""
    method: dict[str, Any] = {"method": {"name": "worldlm", "residuals": 1}, "task": "causal-lm"}
    one, _ = trained(tree(federation, 3, secure_aggregation={"bound": 4.0}, **method), tmp_path / "one")
    none, _ = trained(tree(federation, 3, secure_aggregation={"bound": 4.0}, **METHODS["worldlm"]), tmp_path / "none")
    close(none, one, atol=0.0)
    plain, _ = trained(tree(federation, 3, **method), tmp_path / "plain")
    assert any((plain[name] - one[name]).abs().max() > 1e-5 for name in plain), "the control: they change the model"


def test_a_region_with_data_of_its_own_trains_on_them_in_the_plain(federation: Build, tmp_path: Path) -> None:
    """What a region asks of its own data does not leave it."""
    own = federation(sizes={"north-9": 24}).silos["north-9"]
    models = {}
    for kind, secure in (("plain", None), ("masked", True)):
        settings = tree(federation, 2, secure_aggregation=secure, **METHODS["worldlm"])
        west = settings.silos["region-0"].model_copy(update={"sources": own.sources})
        settings = settings.model_copy(update={"silos": settings.silos | {"region-0": west}})
        models[kind], _ = trained(settings, tmp_path / kind)
    close(models["plain"], models["masked"])


def test_regions_on_a_pool_give_the_same_bits(federation: Build, tmp_path: Path) -> None:
    settings = tree(federation, 3, secure_aggregation={"bound": 4.0})
    one = weights(run(settings, tmp_path / "one", workers=0).folder / "model")
    two = weights(run(settings, tmp_path / "two", workers=2).folder / "model")
    close(one, two, atol=0.0)


def test_trees_that_cannot_be_masked_are_refused(federation: Build) -> None:
    from hansa.config.method import build_method

    settings = tree(federation, 2, secure_aggregation={"bound": 4.0})
    assert set(masked_families(settings)) == {"region-0", "region-1"}
    few = settings.silos["region-0"].model_copy(
        update={"silos": {"north-0": settings.silos["region-0"].silos["north-0"]}}
    )
    with pytest.raises(ConfigError, match="1 take part in a round below 'region-0'"):
        build_method(settings.model_copy(update={"silos": settings.silos | {"region-0": few}}))
    beside = {"region-0": settings.silos["region-0"], "alone": settings.silos["region-1"].silos["north-1"]}
    with pytest.raises(ConfigError, match="at least 3 silos to hide in, and 2 take part"):
        build_method(settings.model_copy(update={"silos": beside}))
    worldlm = tree(federation, 2, secure_aggregation={"bound": 4.0}, **METHODS["worldlm"])
    changes: list[tuple[dict[str, Any], str]] = [
        (
            {
                "train": worldlm.train.model_copy(
                    update={"schedule": worldlm.train.schedule.model_copy(update={"kind": "linear"})}
                )
            },
            "constant learning rate",
        ),
        ({"method": worldlm.method.model_copy(update={"filter": {}})}, "must see each by itself"),
    ]
    for change, says in changes:
        with pytest.raises(ConfigError, match=says):
            build_method(worldlm.model_copy(update=change))
