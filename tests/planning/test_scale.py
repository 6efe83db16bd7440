"""The plan of a round: limits where it equals something simpler, the formula by hand, and what limits it."""

from dataclasses import replace

import pytest

from hansa.planning.scale import (
    Constants,
    Links,
    Work,
    first_silos,
    last_silos,
    plan_round,
    processor_seconds,
    shared_seconds,
    thresholds,
)

MB = 1e6
NOTHING = Constants(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
MACHINE = Constants(
    request=2e-3,
    send=1e-9,
    receive=2e-9,
    child_request=3e-3,
    child_receive=1e-9,
    child_send=2e-9,
    broker_request=1e-3,
    add=3e-10,
    decode=1e-9,
    envelope=1500.0,
    fixed=0.05,
    cores=2,
)
WORK = Work(model=400_000_000, update=400_000_000, training=60.0)
LINKS = Links(parent=125 * MB, silo=12.5 * MB, cores=4)


def test_without_costs_a_round_is_the_training() -> None:
    free = Links(float("inf"), float("inf"), speed=2.0)
    assert plan_round(NOTHING, WORK, free, 10_000).seconds == 30.0
    assert plan_round(NOTHING, WORK, free, 10_000, [100]).seconds == 30.0


def test_one_link_alone_gives_its_bytes_divided_by_its_rate() -> None:
    untrained = replace(WORK, training=0.0)
    flat = plan_round(NOTHING, untrained, Links(125 * MB, float("inf")), 100)
    assert flat.seconds == pytest.approx(2 * 100 * 400 / 125)
    assert flat.limit == "the coordinator's link"
    assert (flat.down, flat.up) == (100 * WORK.model, 100 * WORK.update)
    silo = plan_round(NOTHING, untrained, Links(float("inf"), 12.5 * MB), 100)
    assert silo.seconds == pytest.approx(2 * 400 / 12.5)
    assert silo.limit == "the silos' links"
    tree = plan_round(NOTHING, untrained, Links(125 * MB, float("inf")), 100, [10])
    assert tree.seconds == pytest.approx(2 * (10 + 10) * 400 / 125), "ten regions of ten silos each"


def test_the_processor_seconds_are_the_formula() -> None:
    """Written anew, for 20 silos below 4 regions."""
    size, n, r = WORK.model, 20, 4
    each = 2e-3 + 3e-3 + 1e-3 + size * (1e-9 + 1e-9 + 2e-9 + 2e-9 + 3e-10)
    by_hand = n * 60.0 + (n + r) * each + (1 + r) * 3 * size * 3e-10
    assert processor_seconds(MACHINE, WORK, n, [r]) == pytest.approx(by_hand)
    assert shared_seconds(MACHINE, WORK, n, [r]) == pytest.approx(by_hand / 2 + 2 * 0.05)
    busy = replace(MACHINE, stretch=3.0)
    assert shared_seconds(busy, WORK, n, [r]) == pytest.approx(3 * by_hand / 2 + 2 * 0.05)


def test_more_silos_take_longer_and_a_tree_takes_less() -> None:
    seconds = [plan_round(MACHINE, WORK, LINKS, n).seconds for n in (10, 100, 1_000, 10_000)]
    assert seconds == sorted(seconds)
    assert plan_round(MACHINE, WORK, LINKS, 10_000, [100]).seconds < seconds[-1] / 10
    assert plan_round(MACHINE, WORK, LINKS, 2).limit == "the silos' links"
    assert plan_round(MACHINE, replace(WORK, training=1e4), LINKS, 2).limit == "training at the slowest silo"
    slow = replace(MACHINE, add=1e-6)
    assert plan_round(slow, WORK, LINKS, 1_000).limit == "the coordinator's aggregation"


def test_levels_add_up_by_hand() -> None:
    """85 nodes: 64 silos below 16 regions below 4 regions, each node with 4 children, links alone."""
    untrained = replace(WORK, training=0.0)
    three = plan_round(NOTHING, untrained, Links(125 * MB, float("inf")), 64, [4, 16])
    assert three.seconds == pytest.approx(3 * 2 * 4 * 400 / 125)
    assert (three.down, three.up) == (4 * WORK.model, 4 * WORK.model), "of the root alone"
    free = Links(float("inf"), float("inf"))
    trains = plan_round(NOTHING, replace(WORK, regions_train=True), free, 64, [4, 16])
    assert trains.seconds == 4 * 60.0, "root, two levels of regions, silos: one after another"
    assert trains.compute == 85 * 60.0


def test_heartbeats_take_their_part_of_the_machine() -> None:
    idle = replace(MACHINE, idle=1e-3)
    without = shared_seconds(MACHINE, WORK, 200) - MACHINE.fixed
    assert shared_seconds(idle, WORK, 200) - idle.fixed == pytest.approx(without / (1 - 200 * 1e-3 / 2))
    lasts = shared_seconds(idle, WORK, 200)
    extra = processor_seconds(idle, WORK, 200, seconds=lasts) - processor_seconds(MACHINE, WORK, 200)
    assert extra == pytest.approx(200 * 1e-3 * lasts)
    assert shared_seconds(replace(idle, idle=1.0), WORK, 200) == float("inf")


def test_memory_and_disk_follow_from_the_direct_children() -> None:
    flat, tree = plan_round(MACHINE, WORK, LINKS, 1_000), plan_round(MACHINE, WORK, LINKS, 1_000, [10])
    assert flat.memory == 3 * WORK.model + (2 << 30), "updates wait in two gigabytes at most"
    assert flat.disk == 2 * 1_000 * WORK.update + 4 * WORK.model
    assert tree.disk == 2 * 10 * WORK.model + 4 * WORK.model
    assert flat.compute == tree.compute == 60_000.0


@pytest.mark.parametrize("first", [2, 3, 24, 1_000, 77_777])
def test_the_threshold_is_the_first_number(first: int) -> None:
    assert first_silos(lambda silos: silos >= first) == first
    assert first_silos(lambda silos: False) is None


def test_a_measure_may_pay_for_some_numbers_alone() -> None:
    assert last_silos(lambda silos: silos <= 500, 3) == 500
    assert last_silos(lambda silos: True, 3) is None


def test_each_measure_pays_from_its_threshold_on_and_not_before() -> None:
    pays = thresholds(MACHINE, WORK, LINKS, 0.25)
    assert pays.regions is not None
    first = pays.regions.first
    shorter = plan_round(MACHINE, WORK, LINKS, first, [max(2, round(first**0.5))]).seconds
    assert shorter <= 0.9 * plan_round(MACHINE, WORK, LINKS, first).seconds
    few = first - 1
    longer = plan_round(MACHINE, WORK, LINKS, few, [max(2, round(few**0.5))]).seconds
    assert longer > 0.9 * plan_round(MACHINE, WORK, LINKS, few).seconds
    assert pays.upload is not None
    assert thresholds(NOTHING, WORK, Links(float("inf"), float("inf")), 0.25) == thresholds(
        NOTHING, replace(WORK, training=1.0), Links(float("inf"), float("inf")), 0.5
    ), "where only training takes time, nothing pays"
    assert thresholds(NOTHING, WORK, Links(float("inf"), float("inf")), 0.25).regions is None
