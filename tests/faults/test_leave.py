"""A silo leaves for good during a run of real processes: the others go on, and the report says what remains."""

from pathlib import Path
from typing import Any

import pytest

from hansa.core.errors import UserError
from hansa.deploy import authority
from hansa.deploy.deployable import check_deployable
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.leave import leave
from hansa.runs.ledger import Ledger
from hansa.runs.withdrawal import without
from tests.conftest import Build
from tests.deploy.conftest import make_kits
from tests.faults.processes import Deployment
from tests.faults.test_network_faults import Gate, contributions_of


@pytest.mark.slow_fault
@pytest.mark.parametrize("quorum", [0.5, 1.0])
def test_a_silo_leaves_during_a_run(gated: Any, tmp_path: Path, quorum: float) -> None:
    """South leaves in the second round, while the coordinator waits for north; a restart does not ask it again."""
    settings, gate = gated(rounds=3, participation={"quorum": quorum}), Gate(tmp_path / "marks", "north")
    with Deployment(settings, tmp_path / "deployment") as deployment:
        deployment.start_all()
        deployment.wait("round 1", (deployment.run / "checkpoints" / "round-1").exists)
        gate.shut()
        deployment.wait("north at work", gate.reached)
        home = deployment.folder / "homes" / "south"
        leave(Kit(deployment.kits / "south"), home, None, print, 60)
        deployment.processes["south"].join(60)
        assert deployment.processes["south"].exitcode == 0
        deployment.kill(COORDINATOR)
        deployment.start(COORDINATOR)
        gate.open()
        deployment.finished()
        contributed = contributions_of(deployment)
        assert (1, "south") in contributed
        assert (3, "south") not in contributed
        assert {(number, name) for number in (1, 2, 3) for name in ("north", "east")} <= set(contributed)
        ledger = Ledger(deployment.run)
        left = ledger.facts()["withdrawn"]["south"]
        ledger.close()
        last = max(number for number, name in contributed if name == "south")
        assert left["remains"]["rounds"] == list(range(1, last + 1))
        assert f"south left after round {left['after']}" in (deployment.run / "report.html").read_text()
        assert f"south left after round {left['after']}" in (deployment.run / "model" / "README.md").read_text()
        deployment.kill("south")
        deployment.start("south")
        deployment.processes["south"].join(60)
        assert deployment.processes["south"].exitcode == 2
        assert "this silo left the federation" in deployment.log("south")


def test_after_a_revocation_the_file_may_leave_the_silo_out(federation: Build, tmp_path: Path) -> None:
    settings = federation()
    kits = make_kits(settings, tmp_path / "kits")
    smaller = without(settings, "south")
    authority.revoke(kits, "south")
    check_deployable(smaller, Kit(kits / COORDINATOR))
    with pytest.raises(UserError, match="only silos leave"):
        leave(Kit(kits / COORDINATOR), tmp_path / "home", None, print, 1)
