"""FedBuff on a tree: an asynchronous root over regions, and regions that are asynchronous themselves."""

from pathlib import Path
from typing import Any

import pytest

from hansa.config.asynchrony import most_trainings
from hansa.config.checks import check_settings
from hansa.config.file import parse
from hansa.core.errors import ConfigError
from hansa.core.region_rounds import keep, recall, recorded
from hansa.core.round import Record
from hansa.core.settings import Named
from hansa.core.state import ServerState
from hansa.core.tensors import Tensors
from hansa.privacy.dp.prices import update_prices
from hansa.runs.ledger import Ledger, recorded_arrivals
from hansa.runs.run import run
from tests.conftest import Build, same, weights

SIZES = {"north": 60, "south": 50, "east": 40, "north-2": 30}
BUFFER = 2
BUFFERED = {"name": "fedbuff", "buffer": BUFFER}


def tree(federation: Build, root: Any, west: Any, **settings: Any) -> Any:
    flat = federation(sizes=SIZES, rounds=4, **settings)
    raw = flat.model_dump(exclude_defaults=True)
    silos = {name: {"sources": node["sources"]} for name, node in raw["silos"].items()}
    regions: dict[str, Any] = {
        "west": {"silos": {name: silos[name] for name in ("north", "south")}, "rounds": 2},
        "far": {"silos": {name: silos[name] for name in ("east", "north-2")}},
    }
    if west is not None:
        regions["west"]["method"] = west
    return parse(raw | {"silos": regions, "method": root})


def select(folder: Path, query: str) -> list[Any]:
    ledger = Ledger(folder)
    try:
        return [value for (value,) in ledger.select(query)]
    finally:
        ledger.close()


def test_the_root_goes_on_without_a_slow_region(federation: Build, tmp_path: Path) -> None:
    """By the virtual clock; the limit, equal delays and a full buffer, is a round of all regions."""
    slow = {"simulate": {"delay": {"south": 10.0}}}
    waiting = run(tree(federation, "fedavg", None, **slow), tmp_path / "a", workers=0).folder
    buffered = run(tree(federation, {"name": "fedbuff", "buffer": 1}, None, **slow), tmp_path / "b", workers=0).folder
    assert select(waiting, "select clock from rounds order by round") == [20.0, 40.0, 60.0, 80.0]
    assert select(buffered, "select clock from rounds order by round") == [1.0, 2.0, 3.0, 4.0]
    assert set(select(buffered, "select node from arrivals")) == {"far"}


def test_a_region_goes_on_without_a_slow_silo(federation: Build, tmp_path: Path) -> None:
    settings = tree(federation, "fedavg", {"name": "fedbuff", "buffer": 1}, simulate={"delay": {"south": 5.5}})
    folder = run(settings, tmp_path / "a", workers=0).folder
    order = select(folder, "select node from region_arrivals where region = 'west' order by own_round, position")
    assert order == ["north"] * 5 + ["south"] + ["north"] * 2, "south's update counts in the third round of the root"
    assert select(folder, "select clock from rounds order by round")[0] == 2.0


@pytest.mark.parametrize("root", ["fedavg", BUFFERED])
def test_a_recorded_order_gives_the_same_bits_and_another_does_not(
    federation: Build, tmp_path: Path, root: Any
) -> None:
    settings = tree(federation, root, BUFFERED, simulate={"delay": {"south": 2.7}, "jitter": 0.3})
    whole = run(settings, tmp_path / "a", workers=0).folder
    order = recorded_arrivals(whole)
    assert set(order["region_arrivals"]) == {"west"}
    other = order | {"region_arrivals": {"west": [["south", "north"]] * len(order["region_arrivals"]["west"])}}
    for name, simulate, equal in (("replay", order, True), ("other", other, False)):
        again = settings.model_copy(update={"simulate": settings.simulate.model_copy(update=simulate)})
        folder = run(again, tmp_path / name, workers=0).folder
        assert same(weights(folder / "model"), weights(whole / "model")) == equal, name


@pytest.mark.parametrize("delay", [{}, {"south": 2.7}])
def test_the_same_after_a_resume_with_works_under_way_in_a_region(
    federation: Build, tmp_path: Path, delay: dict[str, float]
) -> None:
    """It is killed after round 3 and resumes after round 2: round 3 is repeated, round 4 is new."""
    import shutil

    settings = tree(federation, BUFFERED, BUFFERED, simulate={"delay": delay}, checkpoint={"every": 2})
    whole = run(settings, tmp_path / "a", workers=0).folder
    model = weights(whole / "model")
    shutil.rmtree(whole / "checkpoints" / "round-4")
    shutil.rmtree(whole / "model")
    for number in (7, 8):  # of the region's own rounds, two for each of the root's
        (whole / "silos" / "west" / "region" / f"round-{number}.safetensors").unlink(missing_ok=True)
    assert list((whole / "silos" / "west" / "region").glob("round-*.safetensors"))
    run(settings, whole, resume=True, workers=0)
    assert same(weights(whole / "model"), model)


def test_after_a_round_without_updates_the_works_stay_under_way(tmp_path: Path) -> None:
    from hansa.client.state import StateFolder

    store, state = StateFolder(tmp_path), ServerState(Tensors.of({}), round=2)
    keep(store, Record(3, [], failed="nobody answered"), state, ["b", "a"], 0)
    assert recorded(store, 3) == ()
    later = ServerState(Tensors.of({}))
    recall(store, later, 7)
    works = later.slots["participation"]
    assert [(w.node, w.version, w.number) for w in works.pending] == [("a", 2, 1), ("b", 2, 1)]
    assert (set(works.versions), later.round) == ({2}, 6)


def test_what_makes_no_sense_is_refused(federation: Build) -> None:
    def recording(west: Any, child: str, rounds: int = 8) -> Any:
        raw = tree(federation, "fedavg", west).model_dump(exclude_defaults=True)
        return parse(raw | {"simulate": {"region_arrivals": {"west": [[child]] * rounds}}})

    check_settings(recording(BUFFERED, "north"))
    with pytest.raises(ConfigError, match="has 7 rounds of 'west', and the file asks for 8"):
        check_settings(recording(BUFFERED, "north", 7))
    with pytest.raises(ConfigError, match="which waits for all its nodes"):
        check_settings(recording(None, "north"))
    short = recording(BUFFERED, "north").simulate
    elsewhere = federation().model_copy(update={"simulate": short})  # as the command line takes it from a run
    with pytest.raises(ConfigError, match="'west', which is not a region of this federation"):
        check_settings(elsewhere)
    with pytest.raises(ConfigError, match="which is not below 'west'"):
        recording(BUFFERED, "east")


def test_a_private_silo_pays_for_every_buffer_above_it(federation: Build) -> None:
    """The fastest silo may fill every buffer by itself: 3 rounds of the root, 2 of the region for each."""

    def private(root: Any, west: Any) -> Any:
        raw = tree(federation, root, west).model_dump(exclude_defaults=True)
        raw["silos"]["west"]["silos"]["north"]["privacy"] = {"noise_multiplier": 1.0, "clip": 1.0}
        made = parse(raw)
        check_settings(made)
        return made

    waiting, asynchronous = private("fedavg", None), private(BUFFERED, BUFFERED)
    factor = BUFFER**2
    assert most_trainings(asynchronous, "north", 3) == factor * most_trainings(waiting, "north", 3) > 3
    once = waiting.model_copy(update={"method": Named.model_validate({"name": "worldlm", "buffer": 2})})
    assert most_trainings(once, "north", 3) == most_trainings(waiting, "north", 3), "each region once in a round"
    paid = update_prices(asynchronous, 3)["north"].epsilon
    assert paid == update_prices(waiting, factor * 3)["north"].epsilon
    assert paid > update_prices(waiting, 3)["north"].epsilon, "without the buffers the price would be too low"
