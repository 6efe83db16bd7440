"""An asynchronous root over regions in other organisations, one of them asynchronous over its own silos."""

from pathlib import Path
from typing import Any

import pytest

from hansa.config.nodes import Node
from hansa.core.settings import Named
from hansa.core.simulation import Simulation
from hansa.runs.ledger import Ledger, recorded_arrivals
from hansa.runs.run import run
from tests.conftest import same, weights
from tests.faults.processes import Deployment
from tests.faults.test_network_faults import Gate

pytestmark = pytest.mark.slow_fault

ROUNDS = 5


def asynchronous_tree(gated: Any) -> Any:
    """The root and region west take each update as it arrives; region far waits for its one silo."""
    sizes = {"north": 60, "south": 50, "east": 40}
    flat = gated(sizes=sizes, rounds=ROUNDS, evaluate={"every": 9, "share": 1.0})
    buffered = Named.model_validate({"name": "fedbuff", "buffer": 1})
    west = Node(silos={name: flat.silos[name] for name in ("north", "south")}, rounds=2, method=buffered)
    silos = {"west": west, "far": Node(silos={"east": flat.silos["east"]})}
    return flat.model_copy(update={"silos": silos, "method": buffered})


def order_of(deployment: Deployment) -> dict[str, Any]:
    if not (deployment.run / "ledger.sqlite").exists():
        return {"arrivals": [], "region_arrivals": {}}
    ledger = Ledger(deployment.run)
    try:
        return {"arrivals": ledger.arrivals(), "region_arrivals": ledger.region_arrivals()}
    finally:
        ledger.close()


def test_stopped_silos_and_regions_cost_the_others_nothing_and_the_order_can_be_replayed(
    gated: Any, tmp_path: Path
) -> None:
    settings = asynchronous_tree(gated)
    south, east = (Gate(tmp_path / "marks", name) for name in ("south", "east"))
    with Deployment(settings, tmp_path / "deployment") as deployment:
        south.shut()
        east.shut()  # far waits for it, and so stops
        deployment.start_all()
        deployment.wait("south and east at work", lambda: south.reached() and east.reached())
        deployment.wait("two rounds without them", lambda: len(order_of(deployment)["arrivals"]) >= 2)
        deployment.kill("west")  # with works under way
        deployment.start("west")
        south.open()
        east.open()
        deployment.finished()
        order = recorded_arrivals(deployment.run)
        assert order["arrivals"][:2] == [["west"], ["west"]], "two rounds without far"
        assert order["region_arrivals"]["west"][:4] == [["north"]] * 4, "four rounds of west without south"
        model = weights(deployment.run / "model")
    other = order | {"region_arrivals": {"west": [["south"]] * 2 * ROUNDS}}
    for name, recorded, equal in (("replay", order, True), ("other", other, False)):
        replayed = settings.model_copy(update={"simulate": Simulation(**recorded)})
        folder = run(replayed, tmp_path / name, workers=0).folder
        assert same(weights(folder / "model"), model) == equal, name
