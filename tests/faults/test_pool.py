"""Workers that die, silos that fail, silos that never come back: real processes, real signals."""

import signal
from pathlib import Path
from time import monotonic

import pytest

from hansa.core.errors import RunFailed
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import same, weights

# A task of one's own, in one file, that misbehaves on request: also the test that users can add one.
PLUGIN = """
import os, signal, time
from dataclasses import dataclass
from pathlib import Path
from hansa.config import Section
from hansa.tasks.base import TASKS
from hansa.tasks.mlm import MaskedLM

LAST = []

@dataclass(frozen=True)
class Unruly(MaskedLM):
    marks: str = ""
    deed: str = ""
    times: int = 1

    def batch(self, examples, indices, rng, vocabulary):
        LAST[:] = examples.groups
        return super().batch(examples, indices, rng, vocabulary)

    def loss(self, model, batch):
        if LAST == ["south"]:
            done = len(list(Path(self.marks).glob("mark-*")))
            if done < self.times:
                (Path(self.marks) / f"mark-{done}").touch()
                if self.deed == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.deed == "raise":
                    raise RuntimeError("the disk of this silo is gone")
                if self.deed == "hang":
                    time.sleep(60)
        return super().loss(model, batch)

@TASKS.register("unruly")
class Settings(Section):
    marks: str
    deed: str
    times: int = 1
    def build(self):
        return Unruly(marks=self.marks, deed=self.deed, times=self.times)
"""


@pytest.fixture
def unruly(federation, tmp_path):
    def build(deed: str, times: int, **settings):
        (tmp_path / "unruly.py").write_text(PLUGIN)
        (tmp_path / "marks").mkdir()
        task = {"name": "unruly", "marks": str(tmp_path / "marks"), "deed": deed, "times": times}
        return federation(task=task, plugins=[str(tmp_path / "unruly.py")], rounds=2, evaluate={"every": 9}, **settings)

    return build


def events(folder: Path) -> list[tuple]:
    ledger = Ledger(folder)
    try:
        return ledger.select("select round, node, kind, text from events where kind='lost'")
    finally:
        ledger.close()


def test_a_worker_that_dies_once_is_replaced_and_nothing_is_lost(unruly, federation, tmp_path):
    died = run(unruly("die", 1), tmp_path / "died", workers=2)
    plain = run(federation(rounds=2, evaluate={"every": 9}), tmp_path / "plain", workers=2)
    assert (tmp_path / "marks" / "mark-0").exists()
    assert events(died.folder) == []
    assert same(weights(died.folder / "model"), weights(plain.folder / "model"))


def test_a_silo_whose_worker_dies_twice_is_left_out_with_a_reason(unruly, tmp_path):
    outcome = run(unruly("die", 2), tmp_path / "run", workers=2)
    [(round, node, _, text)] = events(outcome.folder)
    assert (round, node) == (1, "south")
    assert "its worker died (exit code -9), twice" in text


def test_a_silo_that_raises_twice_is_left_out_and_comes_back(unruly, tmp_path):
    outcome = run(unruly("raise", 2), tmp_path / "run", workers=0)
    [(round, node, _, text)] = events(outcome.folder)
    assert (round, node) == (1, "south")
    assert text == "it failed twice: RuntimeError: the disk of this silo is gone (unruly.py:29)"


def test_a_silo_that_never_answers_costs_one_deadline(unruly, tmp_path):
    """A busy machine may be late with the others, too; what never answers is not waited for."""
    began = monotonic()
    settings = unruly("hang", 1, participation={"deadline": 6.0, "quorum": 0.01})
    outcome = run(settings, tmp_path / "run", workers=2)
    assert monotonic() - began < 300
    assert (1, "south") in {(round, node) for round, node, _, _ in events(outcome.folder)}
    assert all("deadline" in text for _, _, _, text in events(outcome.folder))


def test_below_the_quorum_the_run_stops_and_says_why(unruly, tmp_path):
    with pytest.raises(RunFailed, match=r"round 1: 2 of 3 answered, 3 needed \(south: it failed twice: RuntimeError"):
        run(unruly("raise", 2, participation={"quorum": 1.0}), tmp_path / "run", workers=0)
    assert (tmp_path / "run" / "checkpoints" / "round-0").exists(), "what was reached is kept"


def test_workers_end_with_their_parent(federation, tmp_path):
    """A killed coordinator leaves no worker behind."""
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
