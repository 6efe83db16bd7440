"""Attacks on membership against real processes, which are killed and restarted."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from hansa.config.nodes import leaves
from hansa.deploy import authority
from hansa.deploy.kit import COORDINATOR
from tests.cli.test_cli import ok
from tests.conftest import Build
from tests.faults.conftest import gated
from tests.faults.processes import Deployment, run_command

__all__ = ["gated"]


def start_thief(deployment: Deployment, folder: Path) -> None:
    """Start an agent with a copy of north's kit, in a home of its own."""
    shutil.copytree(deployment.kits / "north", folder / "stolen")
    [source] = leaves(deployment.federation.silos)["north"].sources
    command = ["join", str(folder / "stolen"), "--data", source.train, "--home", str(folder / "thief-home")]
    command += [part for file in deployment.federation.plugins for part in ("--plugins", file)]
    environment = {key: value for key, value in os.environ.items() if key.startswith("HANSA_")}
    arguments = (command, str(deployment.folder / "thief.log"), "", "", None, environment)
    process = deployment._context.Process(target=run_command, args=arguments, name="thief")
    process.start()
    deployment.processes["thief"] = process


def status(deployment: Deployment) -> dict[str, Any]:
    found = json.loads(ok("status", str(deployment.run), "--format", "json"))
    return {node["node"]: node for node in found["nodes"]}


def test_a_stolen_kit_in_a_running_federation(gated: Any, tmp_path: Path) -> None:
    """North is killed and restarted: no alarm. A thief starts with its kit: both are shut out, the others go on."""
    federation = gated(rounds=2, participation={"quorum": 0.5, "deadline": 600}, evaluate={"every": 9, "share": 1.0})
    marks = tmp_path / "marks"
    (marks / "hold-north").touch()
    with Deployment(federation, tmp_path / "d") as deployment:
        deployment.start_all()
        deployment.wait("north trains", lambda: (marks / "held-north").exists())
        deployment.kill("north")
        (marks / "held-north").unlink()
        deployment.start("north")
        deployment.wait("north trains again", lambda: (marks / "held-north").exists())
        assert not status(deployment)["north"]["suspended"]
        assert "ALARM" not in deployment.log("north") + deployment.log(COORDINATOR)
        (marks / "hold-south").touch()  # in round 2, so that the run does not end before everybody has noticed
        start_thief(deployment, tmp_path)
        deployment.wait("the coordinator's alarm", lambda: "ALARM: north is suspended" in deployment.log(COORDINATOR))
        for name in ("north", "thief"):
            deployment.wait(f"the alarm of {name}", lambda name=name: "ALARM: " in deployment.log(name))  # type: ignore[misc]
        assert status(deployment)["north"]["suspended"]
        for name in ("north", "south"):
            (marks / f"hold-{name}").unlink()
        deployment.finished()
        for name in ("north", "thief"):
            assert "Train of round 1: reply sent" not in deployment.log(name)
        assert "two agents use its identity" in json.dumps(status(deployment)) + deployment.log(COORDINATOR)


def test_a_revocation_is_not_rolled_back_by_a_restart(federation: Build, tmp_path: Path) -> None:
    """East is revoked; the coordinator is killed, its kit is restored from a backup, and it starts again."""
    settings = federation(rounds=2, participation={"quorum": 0.5, "deadline": 600})
    with Deployment(settings, tmp_path / "d") as deployment:
        backup = shutil.copytree(deployment.kits / COORDINATOR, tmp_path / "backup")
        for name in (COORDINATOR, "north", "south"):
            deployment.start(name)
        deployment.wait("the coordinator asks", lambda: "reply sent" in deployment.log("north"))  # and waits for east
        authority.revoke(deployment.kits, "east")
        deployment.wait("the revocation", lambda: "its serial number is 2" in deployment.log(COORDINATOR))
        deployment.kill(COORDINATOR)
        shutil.rmtree(deployment.kits / COORDINATOR)
        shutil.copytree(backup, deployment.kits / COORDINATOR)
        deployment.start("east")
        deployment.start(COORDINATOR)
        deployment.finished()
        assert "reply sent" not in deployment.log("east")
        assert "an old list was put back" in deployment.log(COORDINATOR)
