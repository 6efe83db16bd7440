"""SIGTERM, as systemd and Kubernetes send it: agents exit with 0, a coordinator with 143; all resume afterwards."""

import os
import signal
from pathlib import Path

import pytest

from hansa.deploy.kit import COORDINATOR
from hansa.runs.run import run
from tests.conftest import Build, same, weights
from tests.faults.processes import GATED, WAIT_SECONDS, Deployment

pytestmark = pytest.mark.slow_fault


def stop(deployment: Deployment, name: str) -> int | None:
    process = deployment.processes.pop(name)
    os.kill(process.pid, signal.SIGTERM)
    process.join(WAIT_SECONDS)
    assert not process.is_alive(), deployment.logs()
    code: int | None = process.exitcode
    process.close()
    return code


def one_line(deployment: Deployment) -> str:
    return " ".join(deployment.log(COORDINATOR).split())


def test_processes_stopped_in_the_middle_of_a_round_resume(federation: Build, tmp_path: Path) -> None:
    """North is stopped in the middle of training, and trains again after its restart."""
    (tmp_path / "gated.py").write_text(GATED)
    marks = tmp_path / "marks"
    marks.mkdir()
    settings = federation(
        task={"name": "gated", "gates": str(marks)},
        plugins=[str(tmp_path / "gated.py")],
        rounds=2,
        evaluate={"every": 9},
    )
    (marks / "hold-north").touch()
    with Deployment(settings, tmp_path / "deployment") as deployment:
        deployment.start_all()
        deployment.wait("north at work", (marks / "held-north").exists)
        deployment.wait(
            "the log of awaited nodes", lambda: "waiting for north: Train of round 1" in one_line(deployment)
        )
        assert stop(deployment, "north") == 0
        assert stop(deployment, "south") == 0
        assert stop(deployment, COORDINATOR) == 143, deployment.logs()
        assert "it continues" in deployment.log(COORDINATOR)
        assert not os.path.exists(f"/proc/{(deployment.run / 'server' / 'broker' / 'nats.pid').read_text()}")
        (marks / "hold-north").unlink()
        for name in (COORDINATOR, "north", "south"):
            deployment.start(name)
        deployment.finished()
        whole = run(settings, tmp_path / "whole", workers=0).folder
        assert same(weights(whole / "model"), weights(deployment.run / "model"))
