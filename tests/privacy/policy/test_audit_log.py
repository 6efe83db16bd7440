"""Audit logs: a changed, removed or moved entry is found, and the trace of a crash is not mistaken for one."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.core.errors import RunFailed, UserError
from hansa.privacy.policy.audit_heads import HeadBook
from hansa.privacy.policy.audit_log import AuditError, AuditLog, Head, anchor_file, entries, verify


def written(folder: Path, count: int = 6) -> Path:
    log = AuditLog(folder / "audit.jsonl", "lyon")
    for i in range(count):
        log.add("release", message="Update", round=i, bytes=100 * i, digest="ab" * 32, rules={"tensors": "règle"})
    return log.file


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    file = written(tmp_path_factory.mktemp("log"))
    return file.read_bytes(), anchor_file(file).read_bytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("changed") / "audit.jsonl"


def put(place: Path, log: bytes, anchor: bytes) -> Path:
    place.write_bytes(log)
    anchor_file(place).write_bytes(anchor)
    return place


def test_an_untouched_log_is_sound_and_readable(tmp_path: Path) -> None:
    found = verify(written(tmp_path))
    assert found.sound
    assert found.entries == 6
    assert not found.torn
    assert [e["number"] for e in entries(found.file)] == [1, 2, 3, 4, 5, 6]
    assert verify(tmp_path / "none.jsonl").entries == 0


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_found(original: tuple[bytes, bytes], place: Path, data: st.DataObject) -> None:
    log, anchor = original
    at = data.draw(st.integers(0, len(log) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda b: b != log[at]))
    found = verify(put(place, log[:at] + bytes([value]) + log[at + 1 :], anchor))
    assert not found.sound
    assert found.line == log[:at].count(b"\n") + 1, "and the first bad entry is named"


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_removed_or_repeated_or_moved_line_is_found(
    original: tuple[bytes, bytes], place: Path, data: st.DataObject
) -> None:
    log, anchor = original
    lines = log.splitlines(keepends=True)
    order = data.draw(
        st.lists(st.integers(0, len(lines) - 1), max_size=8).filter(lambda o: o != list(range(len(lines))))
    )
    assert not verify(put(place, b"".join(lines[i] for i in order), anchor)).sound


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_inserted_bytes_are_found(original: tuple[bytes, bytes], place: Path, data: st.DataObject) -> None:
    log, anchor = original
    at = data.draw(st.integers(0, len(log) - 1))
    extra = data.draw(st.binary(min_size=1, max_size=20))
    changed = log[:at] + extra + log[at:]
    assert changed == log or not verify(put(place, changed, anchor)).sound


@settings(max_examples=50, deadline=None)
@given(cut=st.integers(1, 400))
def test_a_tail_that_is_cut_off_is_caught_by_the_anchor(original: tuple[bytes, bytes], place: Path, cut: Any) -> None:
    log, anchor = original
    found = verify(put(place, log[:-cut], anchor))
    assert not found.sound
    assert "its end is missing" in found.damage


@settings(max_examples=50, deadline=None)
@given(keep=st.integers(1, 150))
def test_a_crash_while_writing_is_recognised_and_repaired(
    original: tuple[bytes, bytes], tmp_path_factory: pytest.TempPathFactory, keep: Any
) -> None:
    """What a crash leaves: a part of the last line, and the anchor of the one before."""
    log, _ = original
    *before, last = log.splitlines(keepends=True)
    place = tmp_path_factory.mktemp("torn") / "audit.jsonl"
    head = verify(put(place, b"".join(before), b"5:" + before[-1][-67:-3] + b"\n")).head
    assert head.number == 5
    put(place, b"".join(before) + last[: min(keep, len(last) - 1)], f"5:{head.hash}\n".encode())
    found = verify(place)
    assert found.sound
    assert found.torn
    AuditLog(place, "lyon").add("request", message="Train")
    found = verify(place)
    assert found.sound
    assert not found.torn
    assert [e["event"] for e in entries(place)][-2:] == ["recovered", "request"]


def test_a_log_ahead_of_its_anchor_goes_on(original: tuple[bytes, bytes], place: Path) -> None:
    """A crash between the line and the anchor."""
    log, _ = original
    line = log.splitlines()[4]
    put(place, log, b"5:" + line[-66:-2] + b"\n")
    assert verify(place).sound
    AuditLog(place, "lyon").add("request")
    assert verify(place).sound


def test_without_its_anchor_a_log_is_not_sound_and_not_continued(tmp_path: Path) -> None:
    file = written(tmp_path)
    anchor_file(file).write_text("nonsense")
    assert "is damaged" in verify(file).damage
    anchor_file(file).unlink()
    assert "is missing" in verify(file).damage
    with pytest.raises(AuditError, match="was changed since the last entry"):
        AuditLog(file, "lyon").add("request")


def test_a_cut_log_is_not_continued(tmp_path: Path) -> None:
    file = written(tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(AuditError, match="was changed since the last entry"):
        AuditLog(file, "lyon").add("request")
    file.unlink()
    with pytest.raises(AuditError, match="was changed since the last entry"):
        AuditLog(file, "lyon").add("request")


def test_a_rewritten_log_does_not_match_an_entry_stored_elsewhere(tmp_path: Path) -> None:
    noted = verify(written(tmp_path, 3)).head
    (tmp_path / "new").mkdir()
    forged = written(tmp_path / "new", 4)
    assert verify(forged).sound, "a chain alone cannot tell"
    assert "its hash is not the one in the anchor or in --noted" in verify(forged, noted).damage
    assert "its end is missing" in verify(forged, Head(9, "0" * 64)).damage


def many(file: str, count: int) -> None:
    log = AuditLog(Path(file), "lyon")
    for _ in range(count):
        log.add("request")


def test_several_processes_write_one_chain(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=many, args=(str(file), 20)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = verify(file)
    assert found.sound
    assert found.entries == 40


def test_kill_9_at_any_moment_leaves_a_sound_log(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    code = f"from tests.privacy.policy.test_audit_log import many; many({str(file)!r}, 10**6)"
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", code])
        size = file.stat().st_size if file.exists() else 0
        while not file.exists() or file.stat().st_size < size + 3000:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert verify(file).sound
    assert verify(file).entries > 20


def test_a_long_reason_hides_no_column(tmp_path: Path) -> None:
    from tests.privacy.commands import ok

    log = AuditLog(tmp_path / "audit.jsonl", "lyon")
    reason = "the settings [bold] differ: " + "rounds: 3 → 1000; " * 30 + "the end"
    log.add("refusal", message="CollectVocabulary", round=12, to="coordinator", reason=reason)
    shown = ok("audit", "show", str(tmp_path))
    for text in ("refusal", "CollectVocabulary", " 12 ", "coordinator", "[bold]", "the end"):
        assert text in shown
    assert "…" not in shown


def test_the_command_line_verifies_and_shows(tmp_path: Path) -> None:
    from tests.privacy.commands import ok  # slow to import, and the processes above import this file

    folder = tmp_path / "run" / "silos" / "lyon"
    folder.mkdir(parents=True)
    file = written(folder)
    assert "6 entries, intact" in ok("audit", "verify", str(tmp_path / "run"))
    assert "règle" in ok("audit", "show", str(file), "--last", "2")
    assert len(json.loads(ok("audit", "show", str(file), "--last", "2", "--format", "json"))["logs"][str(file)]) == 2
    file.write_bytes(file.read_bytes().replace(b'"bytes":200', b'"bytes":201'))
    with pytest.raises(RunFailed, match="damaged audit logs"):
        ok("audit", "verify", str(file))
    file.unlink()
    with pytest.raises(RunFailed, match="damaged audit logs"):
        ok("audit", "verify", str(tmp_path / "run"))
    with pytest.raises(UserError, match="there is no audit log here"):
        ok("audit", "verify", str(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match="NUMBER:HASH"):
        ok("audit", "verify", str(tmp_path / "run"), "--noted", "7")


def test_the_heads_of_two_runs_that_are_read_in_turn_are_kept_once(tmp_path: Path) -> None:
    book = HeadBook(tmp_path / "heads.jsonl")
    one, other = f"1:{'a' * 64}", f"1:{'b' * 64}"
    for _ in range(3):
        book.note("coordinator", one, b"first", "run1")
        book.note("coordinator", other, b"second", "run2")
    assert [found.proof for found in book.heads()] == [b64encode(b"first").decode(), b64encode(b"second").decode()]
