"""A standing coordinator: runs that are submitted while it serves, killed in the middle, with the same agents."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from time import time
from typing import Any

import pytest

from hansa.config.file import dump
from hansa.deploy.kit import COORDINATOR
from hansa.deploy.run_queue import RunQueue
from hansa.deploy.status import SERVER_FOLDER, read_status
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import same, weights
from tests.faults.processes import Deployment
from tests.faults.test_network_faults import Gate
from tests.policies import admit_everywhere

pytestmark = pytest.mark.slow_fault


def hansa(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "hansa", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_runs_after_another_with_a_kill_between_them(gated: Any, tmp_path: Path) -> None:
    """Both models are those of undisturbed runs; the run that was killed is continued before the second."""
    first, second = gated(rounds=3), gated(rounds=2, seed=5)
    gate = Gate(tmp_path / "marks", "north")
    with Deployment(first, tmp_path / "deployment") as deployment:
        admit_everywhere(second, deployment.kits)
        runs, kit = deployment.folder / "runs", str(deployment.kits / COORDINATOR)
        other = tmp_path / "second.yaml"
        other.write_text(dump(second), encoding="utf-8")
        gate.shut()
        assert "run 0001 is in the queue, behind 0" in hansa(
            "submit", str(deployment.file), "--kit", kit, "--queue", str(runs)
        )
        deployment.start_all(queue=runs)
        deployment.wait("north at work", gate.reached)
        assert "run 0002 is in the queue, behind 1" in hansa("submit", str(other), "--kit", kit, "--queue", str(runs))
        hansa("submit", str(other), "--kit", kit, "--queue", str(runs))
        assert "run 0003 was taken out of the queue" in hansa("stop", str(runs), "0003")
        deployment.kill(COORDINATOR)
        assert [one.state for one in RunQueue(runs).all()] == ["running", "queued", "stopped"]
        gate.open()
        deployment.start(COORDINATOR, queue=runs)
        deployment.wait("both runs", lambda: [one.state for one in RunQueue(runs).all()][:2] == ["finished"] * 2)
        assert hansa("runs", str(runs)).count("finished") == 2
        assert "checkpoints" in hansa("prune", str(runs), "--days", "0", "--dry-run")
        for settings, id in ((first, "0001"), (second, "0002")):
            whole = run(settings, tmp_path / f"whole-{id}", workers=0).folder
            assert same(weights(whole / "model"), weights(runs / f"{settings.name}-{id}" / "model")), id


def test_two_studies_at_once_with_a_kill_in_the_middle(gated: Any, tmp_path: Path) -> None:
    """North works on both at the same time, the others on one each; both models are those of runs alone.

    tests/deploy/test_standing.py has the controls: runs that share the broker's messages or a spool.
    """
    sizes = {"north": 120, "south": 60, "east": 30}
    studies = {
        "0001": gated(rounds=2, sizes={name: sizes[name] for name in ("north", "south")}),
        "0002": gated(rounds=2, sizes={name: sizes[name] for name in ("north", "east")}, seed=5),
    }
    gate = Gate(tmp_path / "marks", "north")
    with Deployment(gated(sizes=sizes), tmp_path / "deployment") as deployment:
        runs = deployment.folder / "runs"
        for study in studies.values():
            admit_everywhere(study, deployment.kits)
            RunQueue(runs).add(study, "ada")
        gate.shut()
        deployment.start(COORDINATOR, queue=runs, at_once=2)
        for name in sizes:
            deployment.start(name, at_once=2 if name == "north" else 1)
        directories = {id: runs / f"{study.name}-{id}" for id, study in studies.items()}
        deployment.wait("north at work on both", lambda: all(trains(one, "north") for one in directories.values()))
        pid = runs / SERVER_FOLDER / "broker" / "nats.pid"
        first = pid.read_text()
        deployment.kill(COORDINATOR)
        assert [one.state for one in RunQueue(runs).all()] == ["running", "running"]
        deployment.start(COORDINATOR, queue=runs, at_once=2)
        deployment.wait("the NATS server again", lambda: pid.read_text() not in ("", first))
        broker = pid.read_text()
        gate.open()
        deployment.wait("both runs", lambda: [one.state for one in RunQueue(runs).all()] == ["finished"] * 2)
        for id, study in studies.items():
            whole = run(study, tmp_path / f"whole-{id}", workers=0).folder
            assert same(weights(whole / "model"), weights(directories[id] / "model")), id
        idle = json.loads(hansa("status", str(runs), "--format", "json"))
        assert idle["running"]
        assert {node["node"] for node in idle["nodes"] if node["connected"]} == set(sizes)
        assert pid.read_text() == broker, "the NATS server outlasts the runs"
        assert "ran out" not in deployment.log("north")


def test_a_run_that_nobody_approved_does_not_hold_the_queue(gated: Any, tmp_path: Path) -> None:
    """With one run at a time: the second run is finished while the first waits; the first can be stopped."""
    unapproved, approved = gated(rounds=2, seed=9), gated(rounds=2)
    with Deployment(approved, tmp_path / "deployment") as deployment:
        runs = deployment.folder / "runs"
        for settings in (unapproved, approved):
            RunQueue(runs).add(settings, "ada")
        deployment.start_all(queue=runs)
        deployment.wait("the second run", lambda: RunQueue(runs).find("0002").state == "finished")
        assert RunQueue(runs).find("0001").state == "waiting"
        assert "not approved yet by" in deployment.log(COORDINATOR)
        assert "run 0001 ends: its first round has not begun" in hansa("stop", str(runs), "0001")
        deployment.wait("the end of the first", lambda: RunQueue(runs).find("0001").state == "stopped")
        assert "waiting" not in hansa("runs", str(runs))
        whole = run(approved, tmp_path / "whole", workers=0).folder
        assert same(weights(whole / "model"), weights(runs / f"{approved.name}-0002" / "model"))


def test_a_standing_coordinator_restored_from_a_backup_finds_its_place_in_both_runs(gated: Any, tmp_path: Path) -> None:
    """The backup of all runs is of round 1; the silos have seen later rounds. No update counts twice."""
    studies = {"0001": gated(rounds=4), "0002": gated(rounds=4, seed=5)}
    gate = Gate(tmp_path / "marks", "south")
    with Deployment(studies["0001"], tmp_path / "deployment") as deployment:
        runs, backup = deployment.folder / "runs", tmp_path / "backup"
        admit_everywhere(studies["0002"], deployment.kits)
        for study in studies.values():
            RunQueue(runs).add(study, "ada")
        directories = {id: runs / f"{study.name}-{id}" for id, study in studies.items()}
        gate.shut()
        deployment.start(COORDINATOR, queue=runs, at_once=2)
        for name in studies["0001"].silos:
            deployment.start(name, at_once=2)
        deployment.wait("south at work on both", lambda: all(trains(one, "south") for one in directories.values()))
        deployment.kill(COORDINATOR)
        shutil.copytree(runs, backup)
        deployment.start(COORDINATOR, queue=runs, at_once=2)
        gate.open()
        deployment.wait(
            "round 3", lambda: all((one / "checkpoints" / "round-3").exists() for one in directories.values())
        )
        deployment.kill(COORDINATOR)
        shutil.rmtree(runs)
        shutil.copytree(backup, runs)
        deployment.start(COORDINATOR, queue=runs, at_once=2)
        deployment.wait("both runs", lambda: [one.state for one in RunQueue(runs).all()] == ["finished"] * 2)
        for id, study in studies.items():
            whole = run(study, tmp_path / f"whole-{id}", workers=0).folder
            assert same(weights(whole / "model"), weights(directories[id] / "model")), id
            ledger = Ledger(directories[id])
            counted = ledger.select("select round, node from traffic where seen > 0")
            ledger.close()
            assert len(counted) == len(set(counted)) == study.rounds * len(study.silos), id


def trains(run: Path, silo: str) -> bool:
    """Whether a silo works on a run's request to train."""
    if not (run / SERVER_FOLDER / "journal.sqlite").is_file():
        return False
    found = next((node for node in read_status(run, time()) if node.node == silo), None)
    return found is not None and found.awaited.startswith("Train") and found.phase == "working"
