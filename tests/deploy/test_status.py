"""`hansa status`: who is there, who is awaited, and nonsense that is not believed."""

import json
from importlib.metadata import version
from time import time

import pytest

from hansa.core.errors import UserError
from hansa.deploy.lock_file import lock_folder
from hansa.deploy.network.journal import Journal
from hansa.deploy.status import LIFE, heard, read
from tests.cli.test_cli import ok
from tests.deploy.conftest import over_the_network


def said(**more) -> bytes:
    return json.dumps({"phase": "working", "version": "0.2.0", "at": 100.0} | more).encode()


def test_what_a_node_says_is_believed_only_as_far_as_it_makes_sense():
    assert heard(said(), 98.0) == {"phase": "working", "version": "0.2.0", "heard": 98.0, "skew": 2.0}
    for nonsense in (b"", b"\xff", b"[]", b"{}", said(phase="king"), said(version=7), said(at="x"), said(at=None)):
        assert heard(nonsense, 98.0) is None


def test_the_journal_tells_who_is_there_and_who_is_awaited(tmp_path):
    journal = Journal(tmp_path / "seat" / "journal.sqlite")
    (tmp_path / "seat" / "lock").touch()
    journal.note("children", ["north", "south", "east"])
    now = time()
    journal.note(LIFE + "north", heard(said(at=now), now))
    journal.note(LIFE + "south", heard(said(at=now - 500), now - 100))
    journal.asked("q1", "south", 7, "Train", now + 60)
    journal.refused("east", "it is no member any more")
    journal.refused("east", "it is no member any more")
    north, south, east = read(tmp_path, now)
    assert north.connected
    assert north.phase == "working"
    assert not south.connected
    assert (south.awaited, south.skew) == ("Train of round 7", pytest.approx(-400))
    assert (east.heard, east.refused) == (None, 2)
    shown = ok("status", str(tmp_path))
    assert "Train of round 7 until" in shown
    assert "never seen" in shown
    assert "nobody serves it now" in shown
    with lock_folder(tmp_path / "seat", "hansa serve"):
        assert "is being served" in ok("status", str(tmp_path))
    assert "-400.0 s !" in shown
    assert "a clock that is more than 30 s off: south" in shown
    journal.close()


def test_strangers_and_other_versions_are_named_below(tmp_path):
    journal = Journal(tmp_path / "seat" / "journal.sqlite")
    (tmp_path / "seat" / "lock").touch()
    journal.note("children", ["north", "south"])
    now = time()
    journal.note(LIFE + "north", heard(said(at=now, version="0.0.1[red]"), now))
    journal.note(LIFE + "south", heard(said(at=now, version=version("hansa")), now))
    for _ in range(3):
        journal.refused("203.0.113.7", "a certificate that belongs to no member was shown to the depot")
    journal.refused("south", "its letter came twice")
    journal.close()
    shown = ok("status", str(tmp_path))
    assert "0.0.1[red] !" in shown, "what others say is no markup"
    assert f"! another version than this one, {version('hansa')}: north;" in shown
    assert "· 203.0.113.7: a certificate that belongs to no member was shown to the depot (3 times, last " in shown
    assert "· south: its letter came twice (once, last " in shown
    told = json.loads(ok("status", str(tmp_path), "--format", "json"))
    assert [node["other_version"] for node in told["nodes"]] == [True, False]
    assert {one["node"]: one["times"] for one in told["refused"]} == {"203.0.113.7": 3, "south": 1}


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path):
    with pytest.raises(UserError, match=r"no seat/journal\.sqlite"):
        ok("status", str(tmp_path))


def test_a_run_over_the_network_leaves_a_status_and_a_log(federation, tmp_path, log):
    folder = over_the_network(federation(rounds=1), tmp_path, log).folder
    assert {node.node: node.version != "" for node in read(folder, time())} == dict.fromkeys(
        ("north", "south", "east"), True
    )
    assert "unbroken" in ok("audit", "verify", str(folder))
