"""Heartbeats: who is awaited, and how a parent that was restored from a backup finds its place."""

import json
from pathlib import Path
from time import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.core.messages import LEFT
from hansa.deploy import authority
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.attendance import MAX_JUMP, Attendance
from hansa.deploy.network.envelope import Envelope, EnvelopeError
from hansa.deploy.network.journal import HEARTBEAT, Journal
from hansa.deploy.network.presence import Presence
from hansa.deploy.replay_guard import ReplayGuard
from tests.conftest import Build
from tests.deploy.conftest import make_kits

RUN = "0" * 16
BLOB = ("0" * 32, 0)


def envelope(sequence: int, request: str = "a" * 32, run: str = RUN, started: float = 1.0) -> Envelope:
    return Envelope(COORDINATOR, "north", run, started, request, sequence, "Train", 1, BLOB)


class Stage:
    def __init__(self, kits: Path, folder: Path) -> None:
        self.kits, self.journal = kits, Journal(folder / "journal.sqlite")
        kit = Kit(kits / COORDINATOR)
        self.attendance = Attendance(self.journal, kit, Presence(kit, self.journal, lambda text: None))

    def beat(self, skew: float = 0.0, ago: float = 0.0, **more: Any) -> None:
        beat = {"phase": "idle", "version": "1", "last_seen": time() - ago, "skew": skew}
        self.journal.set_fact(HEARTBEAT + "north", beat | more)


@pytest.fixture
def stage(federation: Build, tmp_path: Path) -> Any:
    stage = Stage(make_kits(federation(), tmp_path / "kits"), tmp_path)
    yield stage
    stage.journal.close()


def test_who_is_not_awaited(stage: Any) -> None:
    attendance = stage.attendance
    assert attendance.reason_not_to_wait("north") == "", "one that was never seen may still come"
    stage.beat(skew=-1200.0, ago=-1)
    assert "1200 s behind" in attendance.reason_not_to_wait("north")
    stage.beat(skew=1200.0, ago=3600)
    assert attendance.reason_not_to_wait("north") == "", "a heartbeat of an earlier process says nothing"
    stage.beat(skew=500.0, ago=-1)
    assert attendance.reason_not_to_wait("north") == "", "within the tolerance of envelopes"
    attendance.max_absence = 60.0
    stage.beat(ago=3600)
    assert attendance.reason_not_to_wait("north") == "", "after a restart of the parent it has time to come back"
    attendance._began -= 61
    assert "no heartbeat for 60 s" in attendance.reason_not_to_wait("north")
    stage.journal.record_leave("north")
    assert attendance.reason_not_to_wait("north") == LEFT
    authority.revoke(stage.kits, "north")
    assert attendance.reason_not_to_wait("north") == "it was revoked"


def test_a_child_that_is_ahead_moves_the_numbers_of_its_run(stage: Any) -> None:
    """Heartbeats are signed as a whole; malformed positions do not get past `open_heartbeat`."""
    assert stage.attendance.overtaken("north", envelope(5)) == 0
    stage.beat(positions=[["2" * 16, 30, "c" * 32], [RUN, 9, "b" * 32]])
    assert stage.attendance.overtaken("north", envelope(5)) == 9
    assert stage.attendance.overtaken("north", envelope(5, run="1" * 16)) == 0, "another run"


@given(st.integers(0, 1 << 52), st.integers(0, 1 << 52), st.booleans())
def test_only_a_child_that_is_ahead_moves_the_numbers_and_never_far(mine: int, theirs: int, same: bool) -> None:
    """Property: the parent goes on above what the child accepted, exactly where the child would reject it."""
    asked = envelope(mine)

    class OneBeat:
        def heartbeat(self, node: str) -> dict[str, Any]:
            return {"positions": [[RUN, theirs, asked.request if same else "b" * 32]]}

    found = Attendance(OneBeat(), None, None).overtaken("north", asked)  # type: ignore[arg-type]
    rejected = theirs > mine or (theirs == mine and not same)
    assert found == (theirs if rejected and theirs - mine <= MAX_JUMP else 0)


def test_numbers_only_rise(stage: Any) -> None:
    first = stage.journal.next_sequence()
    stage.journal.raise_sequence(100)
    assert stage.journal.next_sequence() == 101
    stage.journal.raise_sequence(first)
    assert stage.journal.next_sequence() == 102


def test_the_child_accepts_nothing_older_and_no_second_envelope_with_a_number(tmp_path: Path) -> None:
    guard = ReplayGuard(tmp_path / "state.json")
    before = list(guard.positions)
    assert before == []
    guard.check(envelope(5))
    guard.check(envelope(5))
    assert guard.positions == [(RUN, 5, "a" * 32)]
    for replay in (envelope(4), envelope(5, "b" * 32), envelope(9, run="1" * 16, started=0.5)):
        with pytest.raises(EnvelopeError):
            ReplayGuard(tmp_path / "state.json").check(replay)
    guard.check(envelope(6, "b" * 32))


def test_several_runs_have_positions_of_their_own(tmp_path: Path) -> None:
    """An older run that the parent lists as open is accepted; without the list, an older run is a replay."""
    guard, older = ReplayGuard(tmp_path / "state.json"), "1" * 16
    guard.check(envelope(5, started=2.0))
    with pytest.raises(EnvelopeError, match="older run"):
        guard.check(envelope(9, run=older, started=1.0), open=(RUN,))
    guard.check(envelope(9, run=older, started=1.0), open=(RUN, older))
    guard.check(envelope(6, "b" * 32, started=2.0))
    again = ReplayGuard(tmp_path / "state.json")
    assert again.positions == [(RUN, 6, "b" * 32), (older, 9, "a" * 32)]
    again.check(envelope(10, run=older, started=1.0))  # it was accepted before, so it need not be listed
    for replay in (envelope(8, run=older, started=1.0), envelope(5, started=2.0)):
        with pytest.raises(EnvelopeError, match="older than one"):
            again.check(replay)


def test_the_state_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    state = {"run": RUN, "run_started": 1.0, "sequence": 7, "request": "a" * 32}
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert ReplayGuard(tmp_path / "state.json").positions == [(RUN, 7, "a" * 32)]
