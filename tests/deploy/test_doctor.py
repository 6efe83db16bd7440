"""`hansa doctor`: each wrong thing is found and has a remedy; a healthy node has nothing wrong."""

import json
import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hansa.cli.main import app
from hansa.config.federation import Federation
from hansa.core.errors import RunFailed
from hansa.deploy import doctor
from hansa.deploy.doctor import BAD, DOUBTFUL, GOOD, Finding, examine
from hansa.deploy.kit import Kit
from tests.conftest import Build
from tests.dashboard.conftest import write_run
from tests.deploy.conftest import free_ports, make_kits


@pytest.fixture
def kits(federation: Build, tmp_path: Path) -> Path:
    settings: Federation = federation(rounds=2)
    return make_kits(settings, tmp_path / "kits")


def wrong(findings: list[Finding]) -> dict[str, str]:
    """Check → what was seen, of the findings that are wrong; each has a remedy."""
    assert all(one.remedy for one in findings if one.state != GOOD)
    return {one.check: one.seen for one in findings if one.state == BAD}


def test_a_coordinator_before_its_first_run(kits: Path) -> None:
    assert wrong(examine(kits / "coordinator", None, None, None)) == {}


def test_a_port_that_is_taken(kits: Path) -> None:
    port = Kit(kits / "coordinator").endpoint.port
    with socket.create_server(("", port)):
        assert f"port {port} cannot be opened" in wrong(examine(kits / "coordinator", None, None, None))["ports"]


def test_a_silo_without_its_coordinator_and_with_an_unreachable_proxy(kits: Path, tmp_path: Path) -> None:
    found = wrong(examine(kits / "north", tmp_path / "home", None, None))
    assert set(found) == {"ports"}
    assert "cannot be reached" in found["ports"]
    [port] = free_ports(1)
    behind = wrong(examine(kits / "north", tmp_path / "home", None, f"http://127.0.0.1:{port}"))
    assert "the proxy" in behind["ports"]


def test_a_readable_key_a_bad_policy_and_a_changed_log(kits: Path, tmp_path: Path) -> None:
    kit = kits / "north"
    (kit / "key.pem").chmod(0o644)
    (kit / "policy.yaml").write_text("rules: nonsense")
    home = tmp_path / "home"
    home.mkdir()
    (home / "audit.jsonl").write_text("not an entry\n")
    found = wrong(examine(kit, home, None, None))
    assert "other users can read" in found["certificate"]
    assert "nothing may leave" in found["policy"]
    assert "not an entry" in found["audit log"]


def test_a_key_that_a_service_reads_through_its_group(kits: Path) -> None:
    key = kits / "coordinator" / "key.pem"
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    key.chmod(0o640)
    assert "other users can read" in wrong(examine(key.parent, None, None, None))["certificate"], "it is our own file"
    os.chown(key, 4711, os.getegid())
    assert wrong(examine(key.parent, None, None, None)) == {}
    key.chmod(0o644)
    assert "other users can read" in wrong(examine(key.parent, None, None, None))["certificate"]
    key.chmod(0o640)
    os.chown(key, 4711, 4711)
    assert "other users can read" in wrong(examine(key.parent, None, None, None))["certificate"], "another group"


def test_certificates_and_clocks(kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(datetime):
        days = 20

        @classmethod
        def now(cls, tz: object = None) -> "Later":
            return cls.fromtimestamp((datetime.now(UTC) + timedelta(days=cls.days)).timestamp(), UTC)

    monkeypatch.setattr(doctor, "datetime", Later)
    findings = examine(kits / "north", tmp_path, None, None)
    assert any(one.check == "certificate" and one.state == DOUBTFUL for one in findings)
    Later.days = 40
    assert "expired" in wrong(examine(kits / "north", tmp_path, None, None))["certificate"]
    Later.days = -40
    assert "valid from" in wrong(examine(kits / "north", tmp_path, None, None))["certificate"]
    Later.days = -4000
    assert "year" in wrong(examine(None, tmp_path, None, None))["clock"]


def test_a_full_disk_and_a_missing_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_DISK", 1 << 60)
    monkeypatch.setenv("HANSA_DEVICE", "cuda:7")
    found = wrong(examine(None, tmp_path, None, None))
    assert "free at" in found["disk"]
    assert "cuda:7" in found["GPU"]


def test_members_of_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ("0.0.1", "turin"))
    findings = [one for one in examine(None, None, run, None) if one.check == "members"]
    assert [one.state for one in findings] == [DOUBTFUL, DOUBTFUL]
    assert "version 0.0.1" in findings[0].seen
    assert "not connected" in findings[1].seen


def test_the_command_line(kits: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", str(kits / "coordinator"), "--format", "json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["ok"]
    (kits / "coordinator" / "key.pem").chmod(0o644)
    done = CliRunner().invoke(app, ["doctor", str(kits / "coordinator"), "--format", "json"])
    assert isinstance(done.exception, RunFailed)
    assert str(done.exception) == "1 check failed: certificate"
    assert "chmod 600" in done.stdout
