"""Workers that die, silos that fail, silos that never answer: real processes and signals."""

import signal
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from hansa.core.errors import RunFailed
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build, same, weights

# A plugin with a task that fails on request; it also tests that plugins can add tasks.
PLUGIN = """
import os, signal, time
from dataclasses import dataclass
from pathlib import Path
from hansa.core.settings import Section
from hansa.tasks.base import TASKS
from hansa.tasks.mlm import MaskedLM

LAST = []

@dataclass(frozen=True)
class FaultyTask(MaskedLM):
    marks: str = ""
    fault: str = ""
    times: int = 1

    def batch(self, examples, indices, rng, vocabulary):
        LAST[:] = examples.groups
        return super().batch(examples, indices, rng, vocabulary)

    def loss(self, model, batch):
        if LAST == ["south"]:
            done = len(list(Path(self.marks).glob("mark-*")))
            if done < self.times:
                (Path(self.marks) / f"mark-{done}").touch()
                if self.fault == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.fault == "raise":
                    raise RuntimeError("the disk of this silo is gone")
                if self.fault == "hang":
                    time.sleep(60)
        return super().loss(model, batch)

@TASKS.register("faulty")
class Settings(Section):
    marks: str
    fault: str
    times: int = 1
    def build(self):
        return FaultyTask(marks=self.marks, fault=self.fault, times=self.times)
"""


@pytest.fixture
def faulty(federation: Build, tmp_path: Path) -> Any:
    def build(fault: str, times: int, **settings: Any) -> Any:
        (tmp_path / "faulty.py").write_text(PLUGIN)
        (tmp_path / "marks").mkdir()
        task = {"name": "faulty", "marks": str(tmp_path / "marks"), "fault": fault, "times": times}
        return federation(task=task, plugins=[str(tmp_path / "faulty.py")], rounds=2, evaluate={"every": 9}, **settings)

    return build


def events(folder: Path) -> list[tuple[Any, ...]]:
    ledger = Ledger(folder)
    try:
        return ledger.select("select round, node, kind, text from events where kind='lost'")
    finally:
        ledger.close()


def test_a_worker_that_dies_once_is_replaced(faulty: Any, federation: Build, tmp_path: Path) -> None:
    died = run(faulty("die", 1), tmp_path / "died", workers=2)
    plain = run(federation(rounds=2, evaluate={"every": 9}), tmp_path / "plain", workers=2)
    assert (tmp_path / "marks" / "mark-0").exists()
    assert events(died.folder) == []
    assert same(weights(died.folder / "model"), weights(plain.folder / "model"))


def test_a_silo_whose_worker_dies_twice_is_left_out_with_a_reason(faulty: Any, tmp_path: Path) -> None:
    outcome = run(faulty("die", 2), tmp_path / "run", workers=2)
    [(round, node, _, text)] = events(outcome.folder)
    assert (round, node) == (1, "south")
    assert "its worker died (exit code -9), twice" in text


def test_a_silo_that_raises_twice_is_left_out_and_comes_back(faulty: Any, tmp_path: Path) -> None:
    outcome = run(faulty("raise", 2), tmp_path / "run", workers=0)
    [(round, node, _, text)] = events(outcome.folder)
    assert (round, node) == (1, "south")
    assert text == "it failed twice: RuntimeError: the disk of this silo is gone (faulty.py:29)"


def test_a_silo_that_never_answers_is_awaited_until_the_deadline(faulty: Any, tmp_path: Path) -> None:
    """On a busy machine other silos may miss the deadline, too."""
    began = monotonic()
    settings = faulty("hang", 1, participation={"deadline": 6.0, "quorum": 0.01})
    outcome = run(settings, tmp_path / "run", workers=2)
    assert monotonic() - began < 300
    assert (1, "south") in {(round, node) for round, node, _, _ in events(outcome.folder)}
    assert all("deadline" in text for _, _, _, text in events(outcome.folder))


def test_below_the_quorum_the_run_fails_with_the_reason(faulty: Any, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"2 of 3 sent a valid update, 3 needed \(south: it failed twice"):
        run(faulty("raise", 2, participation={"quorum": 1.0}), tmp_path / "run", workers=0)
    assert (tmp_path / "run" / "checkpoints" / "round-0").exists(), "the checkpoint is kept"


def test_workers_end_with_their_parent(federation: Build, tmp_path: Path) -> None:
    """After the main process is killed, its workers end."""
    import subprocess
    import sys
    from time import sleep

    from hansa.config import file as federation_file

    settings = federation(rounds=100000)
    (tmp_path / "fed.yaml").write_text(federation_file.dump(settings))
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "hansa",
            "run",
            str(tmp_path / "fed.yaml"),
            "--out",
            str(tmp_path / "run"),
            "--workers",
            "2",
        ],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for(tmp_path / "run" / "checkpoints" / "round-2")
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(3000):
        alive = [p for p in Path("/proc").glob("[0-9]*") if _session(p) == process.pid]
        if not alive:
            break
        sleep(0.1)
    assert alive == []


def _session(process: Path) -> int:
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return int(fields[3]) if fields[0] != "Z" else -1


def wait_for(path: Path, seconds: float = 600) -> None:
    from time import sleep

    until = monotonic() + seconds
    while not path.exists():
        assert monotonic() < until, f"{path} did not appear within {seconds} s"
        sleep(0.02)
