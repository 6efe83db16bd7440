"""`hansa status`: connected nodes, awaited replies, and malformed heartbeats that are dropped."""

import json
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from time import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.core.errors import UserError
from hansa.deploy.lock_file import lock_folder
from hansa.deploy.network.heartbeat import PURPOSE, Heartbeat, describe, open_heartbeat, sign_heartbeat
from hansa.deploy.network.journal import HEARTBEAT, Journal
from hansa.deploy.network.presence import SUSPENDED
from hansa.deploy.status import JOURNAL, SERVER_FOLDER, read_refusals, read_status
from tests.cli.test_cli import ok
from tests.conftest import Build
from tests.deploy.conftest import over_the_network

KEY = Ed25519PrivateKey.generate()
GOOD = Heartbeat("north", "coordinator", "0123456789abcdef.5", "working", "0.2.0", 100.0, 3, "d" * 64, False)


def heard(now: float, **more: Any) -> Any:
    """What the journal has of a heartbeat that arrives at ``now``."""
    return describe(replace(GOOD, **more), now)


def opened(data: bytes) -> Heartbeat:
    return open_heartbeat(data, "north", "coordinator", KEY.public_key())


def test_a_journal_that_is_being_made_is_empty(tmp_path: Path) -> None:
    file = tmp_path / SERVER_FOLDER / JOURNAL
    file.parent.mkdir()
    file.touch()
    assert read_status(tmp_path, 1.0) == []
    assert read_refusals(tmp_path) == []
    Journal(file).close()
    assert read_status(tmp_path, 1.0) == []


def test_forged_and_malformed_heartbeats_are_refused() -> None:
    whole = sign_heartbeat(GOOD, KEY)
    assert opened(whole) == GOOD
    seen = {"phase": "working", "version": "0.2.0", "last_seen": 98.0, "skew": 2.0, "serial": 3}
    assert heard(98.0) == {**seen, "positions": (), "runs": ()}
    accepted = (("run", 3, "ask"), ("other", 1, "two"))
    assert opened(sign_heartbeat(replace(GOOD, positions=accepted, runs=("run",)), KEY)).positions == accepted
    newer = json.dumps({**asdict(GOOD), "more": 1}).encode()
    assert opened(KEY.sign(PURPOSE + newer) + newer) == GOOD, "a newer version may say more"
    bodies = [b"", b"\xff", b"[]", b"{}", newer.replace(b'"serial"', b'"cereal"')]
    changes: list[dict[str, Any]] = [
        {"phase": "king"}, {"version": 7}, {"at": "x"}, {"at": None}, {"at": float("nan")}, {"instance": "x.1"},
        {"node": "south"}, {"parent": "south"}, {"serial": True}, {"alarm": 1},
        {"positions": [["run", True, "ask"]]}, {"positions": "x"}, {"positions": ["x"]}, {"runs": [1]}, {"runs": "x"},
    ]  # fmt: skip
    malformed = [KEY.sign(PURPOSE + body) + body for body in bodies]
    malformed += [sign_heartbeat(replace(GOOD, **change), KEY) for change in changes]
    unsigned = [whole[1:], whole[:-1] + b" ", sign_heartbeat(GOOD, Ed25519PrivateKey.generate()), b"x" * 5000]
    body = json.dumps(asdict(GOOD)).encode()
    for data in [*malformed, *unsigned, KEY.sign(body) + body]:  # the last one is signed for another purpose
        with pytest.raises(ValueError, match=r"heartbeat|process|JSON|Expecting|decode"):
            opened(data)


def test_the_status_shows_connected_nodes_and_awaited_replies(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "server" / "journal.sqlite")
    (tmp_path / "server" / "lock").touch()
    journal.set_fact("children", ["north", "south", "east"])
    now = time()
    journal.set_fact(HEARTBEAT + "north", heard(now, at=now))
    journal.set_fact(HEARTBEAT + "south", heard(now - 100, at=now - 500))
    journal.set_fact(SUSPENDED + "north", {"reason": "two agents use its identity", "key": "", "at": now})
    journal.record_request("q1", "south", 7, "Train", now + 60)
    journal.count_refusal("east", "its membership was revoked")
    journal.count_refusal("east", "its membership was revoked")
    north, south, east = read_status(tmp_path, now)
    assert north.connected
    assert north.phase == "working"
    assert not south.connected
    assert south.awaited == "Train of round 7"
    assert south.skew == pytest.approx(-400)
    assert (east.last_seen, east.refused) == (None, 2)
    shown = ok("status", str(tmp_path))
    assert "Train of round 7 until" in shown
    assert "never seen" in shown
    assert "not running" in shown
    (tmp_path / "report.html").touch()
    assert ": finished" in ok("status", str(tmp_path))
    assert "SUSPENDED (connected)" in shown
    assert "ALARM: north is suspended: two agents use its identity" in shown
    with lock_folder(tmp_path / "server", "hansa serve"):
        assert ": running" in ok("status", str(tmp_path))
    assert "-400.0 s !" in shown
    assert "the clock differs by more than 30 s: south" in shown
    journal.close()


def test_the_status_lists_refusals_and_other_versions(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "server" / "journal.sqlite")
    (tmp_path / "server" / "lock").touch()
    journal.set_fact("children", ["north", "south"])
    now = time()
    journal.set_fact(HEARTBEAT + "north", heard(now, at=now, version="0.0.1[red]"))
    journal.set_fact(HEARTBEAT + "south", heard(now, at=now, version=version("hansa")))
    for _ in range(3):
        journal.count_refusal("203.0.113.7", "its certificate at the blob server belongs to no member")
    journal.count_refusal("south", "it sent the same reply again")
    journal.close()
    shown = ok("status", str(tmp_path))
    assert "0.0.1[red] !" in shown, "texts of other nodes are not markup"
    assert f"! another version than this one, {version('hansa')}: north;" in shown
    assert "· 203.0.113.7: its certificate at the blob server belongs to no member (3 times, last " in shown
    assert "· south: it sent the same reply again (once, last " in shown
    result = json.loads(ok("status", str(tmp_path), "--format", "json"))
    assert [node["other_version"] for node in result["nodes"]] == [True, False]
    assert {one["node"]: one["times"] for one in result["refused"]} == {"203.0.113.7": 3, "south": 1}


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no server/journal\.sqlite"):
        ok("status", str(tmp_path))


def test_a_run_over_the_network_leaves_a_status_and_a_log(federation: Build, tmp_path: Path, log: Any) -> None:
    folder = over_the_network(federation(rounds=1), tmp_path, log).folder
    assert {node.node: node.version != "" for node in read_status(folder, time())} == dict.fromkeys(
        ("north", "south", "east"), True
    )
    assert "intact" in ok("audit", "verify", str(folder))
