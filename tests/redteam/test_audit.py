"""An audit log that was rewritten together with its anchor: the heads that the other side kept do not fit it."""

import json
from pathlib import Path
from typing import Any

import pytest

from hansa.core.errors import UserError
from hansa.privacy.policy.audit_heads import HEADS, Anchors, HeadBook, compare
from hansa.privacy.policy.audit_log import AuditLog, anchor_file, entries, verify
from tests.conftest import Build
from tests.deploy.conftest import make_kits
from tests.deploy.test_policy_enforcer import run_with_policies


def test_both_sides_find_that_the_other_rewrote_its_log(federation: Build, tmp_path: Path, log: Any) -> None:
    settings = federation(rounds=1)
    kits = make_kits(settings, tmp_path / "kits")
    run_with_policies(settings, kits, tmp_path, log)
    silo, coordinator = tmp_path / "north" / "audit.jsonl", tmp_path / "run" / "audit.jsonl"
    assert compare(silo, tmp_path / "run" / HEADS).sound
    assert compare(coordinator, tmp_path / "north" / HEADS).sound
    for file, heads in ((silo, tmp_path / "run" / HEADS), (coordinator, tmp_path / "north" / HEADS)):
        before = [e["message"] for e in entries(file) if "message" in e]
        rewritten_entries(file)
        assert verify(file).sound, "the chain and the anchor alone do not show it"
        found = compare(file, heads)
        assert not found.sound
        assert "rewritten" in found.damage or "missing" in found.damage
        assert len(before) > len([e for e in entries(file) if "message" in e])


def rewritten_entries(file: Path) -> None:
    """Write a log anew without scores, with a sound chain and a fitting anchor."""
    kept = [entry for entry in entries(file) if entry.get("message") != "Scores"]
    node = kept[0]["node"]
    file.unlink()
    anchor_file(file).unlink()
    new = AuditLog(file, node)
    for entry in kept:
        fields = {name: v for name, v in entry.items() if name not in ("number", "time", "node", "hash", "event")}
        new.add(entry["event"], **fields)


def test_heads_of_nobody_and_no_heads_are_one_sentence(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", "north")
    with pytest.raises(UserError, match="no entries"):
        compare(log.file, tmp_path / HEADS)
    log.add("request")
    with pytest.raises(UserError, match="no such file"):
        compare(log.file, tmp_path / HEADS)
    (tmp_path / HEADS).write_text(
        json.dumps({"node": "south", "head": f"1:{'0' * 64}", "time": "", "proof": ""}) + "\n"
    )
    with pytest.raises(UserError, match="no head of the log of 'north'"):
        compare(log.file, tmp_path / HEADS)


def test_the_logs_of_two_runs_are_compared_with_the_heads_of_their_own_run(tmp_path: Path) -> None:
    """A coordinator has a log for each run, and a silo that took part in both has the heads of both."""
    book, logs = HeadBook(tmp_path / HEADS), {}
    for run in ("first", "second"):
        logs[run] = AuditLog(tmp_path / run / "audit.jsonl", "coordinator")
        for number in range(3):
            logs[run].add("sent", message="Train", round=number, run_name=run)
            book.note("coordinator", Anchors(logs[run], book).head(), b"", run, log=run)
    for run, other in (("first", "second"), ("second", "first")):
        found = compare(logs[run].file, book.file)
        assert found.sound
        assert (found.noted, found.others) == (3, (other,))
        assert f"({other})" in found.text
    file = logs["first"].file
    kept = list(entries(file))
    file.unlink()
    anchor_file(file).unlink()
    rewritten = AuditLog(file, "coordinator")
    for entry in kept[:2]:
        rewritten.add(entry["event"], message="Evaluate", round=entry["round"])
    assert verify(file).sound
    assert not compare(file, book.file).sound, "a log that was written anew has no head of any run"


def test_a_region_cannot_hide_a_run_of_its_only_log(tmp_path: Path) -> None:
    """A region has one log for all runs: entries of the second run that are forged are found."""
    book, log = HeadBook(tmp_path / HEADS), AuditLog(tmp_path / "west" / "audit.jsonl", "west")
    for number in range(6):
        log.add("sent", message="Train", round=number)
        book.note("west", Anchors(log, book).head(), b"", "first" if number < 3 else "second")
    assert compare(log.file, book.file).sound
    kept = list(entries(log.file))
    log.file.unlink()
    anchor_file(log.file).unlink()
    forged = AuditLog(log.file, "west")
    for entry in kept[:3]:
        forged.add(entry["event"], message=entry["message"], round=entry["round"])
    forged.add("sent", message="Evaluate", round=3)
    assert verify(log.file).sound
    assert not compare(log.file, book.file).sound
