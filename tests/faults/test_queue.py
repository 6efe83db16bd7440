"""A standing coordinator: runs that are submitted while it serves, killed in the middle, with the same agents."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hansa.config.file import dump
from hansa.deploy.kit import COORDINATOR
from hansa.deploy.run_queue import RunQueue
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
