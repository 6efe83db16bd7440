"""SIGTERM, as systemd and Kubernetes send it: agents end with 0, a coordinator with 143, and all go on afterwards."""

import os
import signal

import pytest

from hansa.deploy.kit import COORDINATOR
from hansa.runs.run import run
from tests.conftest import same, weights
from tests.faults.cast import GATED, PATIENCE, Cast

pytestmark = pytest.mark.slow_fault


def stop(cast: Cast, name: str) -> int | None:
    process = cast.processes.pop(name)
    os.kill(process.pid, signal.SIGTERM)
    process.join(PATIENCE)
    assert not process.is_alive(), cast.last_words()
    code = process.exitcode
    process.close()
    return code


def one_line(cast: Cast) -> str:
    return " ".join(cast.log(COORDINATOR).split())


def test_everybody_can_be_stopped_in_the_middle_of_a_round_and_goes_on(federation, tmp_path):
    """North is held in the middle of training: nobody can wait for it, and nothing is lost with it."""
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
    with Cast(settings, tmp_path / "cast") as cast:
        cast.start_all()
        cast.wait("north at work", (marks / "held-north").exists)
        cast.wait("a word of whom all wait for", lambda: "waiting for north: Train of round 1" in one_line(cast))
        assert stop(cast, "north") == 0
        assert stop(cast, "south") == 0
        assert stop(cast, COORDINATOR) == 143, cast.last_words()
        assert "it continues" in cast.log(COORDINATOR)
        assert not os.path.exists(f"/proc/{(cast.run / 'seat' / 'broker' / 'nats.pid').read_text()}")
        (marks / "hold-north").unlink()
        for name in (COORDINATOR, "north", "south"):
            cast.start(name)
        cast.finished()
        whole = run(settings, tmp_path / "whole", workers=0).folder
        assert same(weights(whole / "model"), weights(cast.run / "model"))
