"""Nguyen et al. (2022): nobody waits for a slow silo; stale updates count less."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.core.errors import ConfigError
from hansa.core.participation import Child, PlanContext, RoundSettings
from hansa.core.simulation import Simulation
from hansa.core.state import ServerState
from hansa.core.tensors import Tensors
from hansa.methods.fedbuff import ByStaleness, DampedMean
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build, same, weights
from tests.toys import update

DELAY = {"delay": {"south": 10.0}}


def stale(values: Any, age: Any) -> Any:
    from dataclasses import replace

    return replace(update(values, 10, 1.0), staleness=age)


def test_the_step_is_the_damped_sum_over_k() -> None:
    updates, power = [stale([1.0, 0.0], 0), stale([0.0, 4.0], 3)], 0.5
    weighting = ByStaleness(power)
    found = DampedMean(power).combine(updates[0].gradient.layout, ((u, weighting.weight(u)) for u in updates))
    np.testing.assert_allclose(found.flat.numpy(), [0.5, 4.0 * (1 + 3) ** -0.5 / 2], rtol=1e-6)


def test_with_equal_delays_and_a_full_buffer_it_is_fedavg_with_equal_weights(federation: Build, tmp_path: Path) -> None:
    """The limit: everybody arrives at once, nobody is stale."""
    fair = {"weights": "uniform"}
    plain = federation(rounds=3, aggregate=fair)
    buffered = federation(rounds=3, method={"name": "fedbuff", "buffer": 3}, aggregate=None)
    a = weights(run(plain, tmp_path / "a", workers=0).folder / "model")
    b = weights(run(buffered, tmp_path / "b", workers=0).folder / "model")
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-6)


def rounds_of(folder: Any) -> Any:
    ledger = Ledger(folder)
    try:
        clock = [c for (c,) in ledger.select("select clock from rounds order by round")]
        nodes = [n for (n,) in ledger.select("select node from traffic order by round, node")]
        return clock, nodes
    finally:
        ledger.close()


def test_a_straggler_holds_up_the_others_only_where_they_wait(federation: Build, tmp_path: Path) -> None:
    together = run(federation(rounds=4, simulate=DELAY), tmp_path / "a", workers=0)
    buffered = run(
        federation(rounds=4, simulate=DELAY, method={"name": "fedbuff", "buffer": 2}), tmp_path / "b", workers=0
    )
    clock, _ = rounds_of(together.folder)
    assert clock == [10.0, 20.0, 30.0, 40.0]
    clock, nodes = rounds_of(buffered.folder)
    assert clock[-1] <= 5.0
    assert "south" not in nodes, "it is still at its first work when four rounds are over"


def test_the_same_for_any_number_of_workers_and_after_a_resume(federation: Build, tmp_path: Path) -> None:
    settings = federation(
        rounds=6, method={"name": "fedbuff", "buffer": 2}, simulate=DELAY | {"jitter": 0.3}, checkpoint={"every": 2}
    )
    whole = run(settings, tmp_path / "a", workers=0).folder
    pooled = run(settings, tmp_path / "b", workers=2).folder
    assert same(weights(whole / "model"), weights(pooled / "model"))
    # Undo the last rounds and go on from the checkpoint of round 4, with silos still in flight.
    import shutil

    shutil.rmtree(pooled / "checkpoints" / "round-6")
    shutil.rmtree(pooled / "model")
    run(settings, pooled, resume=True, workers=0)
    assert same(weights(whole / "model"), weights(pooled / "model"))


def test_staleness_counts_versions() -> None:
    from hansa.methods.fedbuff import Buffered

    state = ServerState(Tensors.of({}))
    children = {"slow": Child(1, 1), "fast": Child(1, 1)}
    settings = RoundSettings(simulate=Simulation(delay={"slow": 3.5}))
    seen = []
    for number in range(1, 5):
        [[assignment]] = Buffered(1).plan(PlanContext("root", children, settings, number, 0), state).waves
        seen.append((assignment.node, assignment.staleness))
        state.round += 1
    assert seen == [("fast", 0), ("fast", 0), ("fast", 0), ("slow", 3)]


def test_what_makes_no_sense_is_refused(federation: Build) -> None:
    from hansa.config.method import build_method

    with pytest.raises(ConfigError, match="every silo at work"):
        build_method(federation(method="fedbuff", participation={"count": 1}))
    with pytest.raises(ConfigError, match="an aggregation of its own"):
        build_method(federation(method="fedbuff", aggregate={"weights": "uniform"}))


def test_a_failed_round_leaves_everything_as_it_was(federation: Build) -> None:
    """So that the checkpoint written then can be resumed."""
    from hansa.config.method import build_method
    from hansa.core.link import Answer
    from hansa.core.messages import Failure
    from hansa.core.round import Server, Turn, federated_round
    from hansa.runs.topology import round_settings

    class Dead:
        size, remote, posting = 1, False, None

        def ask(self, asks: Any, until: Any) -> Any:
            return iter([Answer(node, Failure("gone")) for node in asks])

    settings = federation(method={"name": "fedbuff", "buffer": 3})
    state = ServerState(Tensors.of({}))
    children = {name: Child(1, 1) for name in settings.silos}
    server = Server("root", children, Dead(), build_method(settings), round_settings(settings))
    for _ in range(2):
        record = federated_round(server, state, Turn(1))
        assert "0 of 3 sent a valid update" in record.failed
        assert (state.round, state.clock, state.slots) == (0, 0.0, {})


def test_a_clock_that_stands_still_is_refused(federation: Build) -> None:
    from hansa.config.method import build_method

    settings = federation(method="fedbuff", simulate={"default_delay": 0.0})
    with pytest.raises(ConfigError, match="default_delay above 0"):
        build_method(settings)
