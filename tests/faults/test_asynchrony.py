"""FedBuff between real processes: updates count as they arrive, and a recorded order gives the same bits."""

from pathlib import Path
from typing import Any

import pytest

from hansa.core.simulation import Simulation
from hansa.deploy.kit import COORDINATOR
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import same, weights
from tests.faults.processes import Deployment
from tests.faults.test_network_faults import Gate

pytestmark = pytest.mark.slow_fault

ROUNDS, BUFFER = 8, 2


def buffered(gated: Any, **changes: Any) -> Any:
    method = {"name": "fedbuff", "buffer": BUFFER}
    return gated(rounds=ROUNDS, method=method, evaluate={"every": 3, "share": 1.0}, **changes)


def arrivals_of(folder: Path) -> list[list[str]]:
    ledger = Ledger(folder)
    try:
        return ledger.arrivals()
    finally:
        ledger.close()


def assert_replayed(settings: Any, deployment: Deployment, tmp_path: Path) -> list[list[str]]:
    """A simulation with the recorded order ends in the same bits; with another order it does not."""
    order = arrivals_of(deployment.run)
    assert [len(round) for round in order] == [BUFFER] * ROUNDS, "no update is lost or counted twice"
    for name, recorded, equal in (("replay", order, True), ("other", [["east", "east"]] * ROUNDS, False)):
        replayed = settings.model_copy(update={"simulate": Simulation(arrivals=recorded)})
        folder = run(replayed, tmp_path / name, workers=0).folder
        assert same(weights(folder / "model"), weights(deployment.run / "model")) == equal, name
    return order


def checkpoint(deployment: Deployment, round: int) -> Any:
    return lambda: any(
        int(folder.name.removeprefix("round-")) >= round for folder in (deployment.run / "checkpoints").glob("round-*")
    )


def test_a_slow_silo_holds_up_no_round_and_its_update_counts_when_it_arrives(gated: Any, tmp_path: Path) -> None:
    settings, gates = buffered(gated), {name: Gate(tmp_path / "marks", name) for name in ("north", "south", "east")}
    with Deployment(settings, tmp_path / "deployment") as deployment:
        gates["south"].shut()
        deployment.start_all()
        deployment.wait("south at work", gates["south"].reached)
        deployment.wait("two rounds without south", checkpoint(deployment, 2))
        for name in ("north", "east"):
            gates[name].shut()
        for name in ("north", "east"):
            deployment.wait(f"{name} at work", gates[name].reached)
        done = len(arrivals_of(deployment.run))
        gates["south"].open()
        deployment.wait("a round of south", checkpoint(deployment, done + 1))
        for name in ("north", "east"):
            gates[name].open()
        deployment.finished()
        order = assert_replayed(settings, deployment, tmp_path)
        assert not {"south"} & {*order[0], *order[1]}, "two rounds went on without it"
        assert "south" in order[done], "its update, two versions old, counts when it arrives"


def test_a_killed_coordinator_continues_with_the_updates_under_way(gated: Any, tmp_path: Path) -> None:
    settings, gate = buffered(gated), Gate(tmp_path / "marks", "south")
    with Deployment(settings, tmp_path / "deployment") as deployment:
        gate.shut()
        deployment.start_all()
        deployment.wait("two rounds", checkpoint(deployment, 2))
        deployment.kill(COORDINATOR)
        gate.open()
        deployment.start(COORDINATOR)
        deployment.finished()
        assert_replayed(settings, deployment, tmp_path)
