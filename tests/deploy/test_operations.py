"""Logs in text and JSON, and health probes."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from hansa.cli.logs import LogFormat, LogLevel, configure
from hansa.core.errors import UserError
from hansa.deploy.health import HealthServer
from hansa.deploy.log_files import RotatingLog, read_log


@pytest.fixture
def _root() -> Iterator[Any]:
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


def logged(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


@pytest.mark.usefixtures("_root")
def test_json_logs_are_one_object_per_line_and_never_quote_an_exception(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogLevel.info, LogFormat.json)
    log = logging.getLogger("hansa.silo")
    log.debug("not logged")
    log.info("round %d\nis done", 3, extra={"round": 3})
    try:
        raise ValueError("a patient's name")
    except ValueError:
        log.exception("it failed")
    first, second = map(json.loads, logged(capsys))
    assert (first["level"], first["by"], first["text"], first["round"]) == ("info", "hansa.silo", "round 3 is done", 3)
    assert second["text"] == "it failed (ValueError)"
    assert "patient" not in json.dumps(second)


@pytest.mark.usefixtures("_root")
def test_text_logs_keep_to_their_level(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogLevel.warning, LogFormat.text)
    logging.getLogger("hansa.silo").info("not logged")
    logging.getLogger("hansa.silo").warning("logged")
    [line] = logged(capsys)
    assert line.endswith("warning hansa.silo: logged")


def test_a_resumed_coordinator_does_not_import_transformers() -> None:
    """The import would take longer than the rest of the restart."""
    look = "import sys, hansa.deploy.coordinator, hansa.report.html; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look]).returncode == 0


@pytest.mark.usefixtures("_root")
def test_log_files_rotate_and_a_full_disk_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "logs" / "silo.jsonl"
    configure(LogLevel.info, LogFormat.text, file)
    logging.getLogger("hansa.silo").info("round %d", 3)
    assert read_log(file, 5)[0]["text"] == "round 3"
    handler = RotatingLog(file, max_bytes=300, kept=2)
    for number in range(30):
        handler.emit(logging.makeLogRecord({"msg": f"line {number}", "name": "x"}))
    handler.close()
    assert sorted(one.name for one in file.parent.iterdir()) == ["silo.jsonl", "silo.jsonl.1", "silo.jsonl.2"]
    assert all(one.stat().st_size <= 300 for one in file.parent.iterdir())
    assert read_log(file, 1)[0]["text"] == "line 29"
    capsys.readouterr()
    full = RotatingLog(Path("/dev/full/no/such/folder.jsonl"))
    for _ in range(3):
        full.emit(logging.makeLogRecord({"msg": "lost", "name": "x"}))
    [said] = logged(capsys)
    assert said.startswith("log lines are lost: /dev/full")
    for one in logging.getLogger().handlers:
        one.close()


def get(port: int, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_probes_of_liveness_and_readiness() -> None:
    reason = ["no connection"]
    health = HealthServer("0", lambda: reason[0])
    try:
        assert get(health.port, "/healthz") == (200, {"alive": True})
        assert get(health.port, "/readyz") == (503, {"ready": False, "reason": "no connection"})
        reason[0] = ""
        assert get(health.port, "/readyz") == (200, {"ready": True})
        assert get(health.port, "/../etc/passwd")[0] == 404
        with pytest.raises(UserError, match="choose another port"):
            HealthServer(str(health.port), lambda: "")
    finally:
        health.close()
    with pytest.raises(UserError, match="PORT or HOST:PORT"):
        HealthServer("localhost", lambda: "")
