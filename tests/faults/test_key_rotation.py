"""A silo gets a new key during a run of real processes: nothing is restarted, and the old key ends."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.address import ConnectionLost
from hansa.deploy.network.connection import Connection
from tests.cli.test_cli import ok
from tests.faults.processes import Deployment
from tests.faults.test_network_faults import Gate, assert_uninterrupted

pytestmark = pytest.mark.slow_fault


def connects(kit: Kit) -> bool:
    """Whether the coordinator lets a node with this kit in."""
    try:
        Connection(kit.route(), kit.key, kit.parent_subjects.inbox(kit.name)).close()
    except ConnectionLost:
        return False
    return True


def test_a_key_is_rotated_during_a_run(gated: Any, tmp_path: Path) -> None:
    """While south trains in round 2, its operator requests a new key, and the authority replaces the old one."""
    settings, gate = gated(rounds=3), Gate(tmp_path / "marks", "south")
    with Deployment(settings, tmp_path / "deployment") as deployment:
        deployment.start_all()
        deployment.wait("round 1", (deployment.run / "checkpoints" / "round-1").exists)
        gate.shut()
        deployment.wait("south at work", gate.reached)
        kit = deployment.kits / "south"
        old = Kit(shutil.copytree(kit, tmp_path / "old" / "south"))
        assert connects(old), "the key is valid until it is replaced"
        before = {name: process.pid for name, process in deployment.processes.items()}
        ok("kit", "request", "--out", str(kit), "--new-key")
        signed = tmp_path / "signed"
        request = str(kit / "request.json")
        ok("kit", "sign", str(deployment.kits / "authority"), request, "--out", str(signed), "--replace", "--yes")
        ok("kit", "install", str(kit), str(signed / "south.json"))
        assert Kit(kit).key.public_key() != old.key.public_key()
        deployment.wait("the old key is refused", lambda: not connects(old))
        gate.open()
        deployment.finished()
        assert {name: process.pid for name, process in deployment.processes.items()} == before, "nothing was restarted"
        assert_uninterrupted(settings, deployment, tmp_path)
        assert COORDINATOR in before
