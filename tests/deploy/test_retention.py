"""What is deleted of old runs."""

import os
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep, time

import pytest
from typer.testing import CliRunner

from hansa.cli.main import app
from hansa.deploy import retention
from hansa.deploy.lock_file import lock_folder
from hansa.deploy.retention import delete, deleting, old_files_of_silo, old_parts


def a_run(runs: Path, name: str, days: float) -> Path:
    run = runs / name
    for part in ("server", "checkpoints", "model"):
        (run / part).mkdir(parents=True)
        (run / part / "bytes").write_bytes(b"x" * 10)
    ledger = run / "ledger.sqlite"
    ledger.touch()
    os.utime(ledger, (time() - days * 86400, time() - days * 86400))
    return run


def test_spools_and_checkpoints_of_old_runs_go_and_models_stay(tmp_path: Path) -> None:
    old, new, used = a_run(tmp_path, "old", 100), a_run(tmp_path, "new", 1), a_run(tmp_path, "used", 100)
    (tmp_path / "notes").mkdir()
    with lock_folder(used / "server", "hansa serve"):
        assert {one.folder for one in old_parts(tmp_path, 90)} == {old / "server", old / "checkpoints"}
        assert sum(one.size for one in delete(old_parts(tmp_path, 90))) == 20
    assert sorted(path.name for path in old.iterdir()) == ["ledger.sqlite", "model"]
    assert (new / "server").exists()
    assert (used / "server").exists(), "a process works in it"
    delete(old_parts(tmp_path, 90, whole=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "notes"]


def a_silo(home: Path, cache: Path) -> dict[str, Path]:
    """A silo with an old and a new run and two cached corpora; and what must never be deleted."""
    kept = {name: home / name for name in ("audit.jsonl", "budget.json")}
    folders = {"old": home / "runs" / "aaaa", "new": home / "runs" / "bbbb", "cached": cache / "examples" / "k"}
    for folder in folders.values():
        (folder / "states").mkdir(parents=True)
        (folder / "states" / "bytes").write_bytes(b"x" * 10)
    for file in kept.values():
        file.write_text("kept", encoding="utf-8")
    long_ago = time() - 100 * 86400
    for folder in (folders["old"], folders["cached"]):
        for path in [*folder.rglob("*"), folder]:
            os.utime(path, (long_ago, long_ago))
    for file in kept.values():
        os.utime(file, (long_ago, long_ago))
    return folders | kept


@pytest.fixture
def silo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "kit.json").write_text("{}", encoding="utf-8")
    return a_silo(tmp_path / "kit" / "home", tmp_path / "cache")


def test_a_silo_deletes_old_runs_and_token_ids_and_keeps_its_log_and_budget(
    silo: dict[str, Path], tmp_path: Path
) -> None:
    listed = CliRunner().invoke(app, ["prune", str(tmp_path / "kit"), "--days", "90", "--dry-run"])
    assert "2 folders" in listed.output
    assert silo["old"].exists()
    CliRunner().invoke(app, ["prune", str(tmp_path / "kit"), "--days", "90"])
    assert {name for name, path in silo.items() if path.exists()} == {"new", "audit.jsonl", "budget.json"}


def test_while_an_agent_works_old_files_go_by_themselves(silo: dict[str, Path], tmp_path: Path) -> None:
    lines: list[str] = []
    with deleting(lambda: old_files_of_silo(tmp_path / "kit" / "home", 90), lines.append):
        until = monotonic() + 10
        while len(lines) < 2 and monotonic() < until:
            sleep(0.01)
    assert not silo["old"].exists()
    assert silo["new"].exists()
    assert lines[0].startswith("aaaa: deleted ")


def test_an_error_of_the_disk_does_not_end_the_agent(silo: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "HOUR", 0.01)
    lines: list[str] = []

    def broken() -> Iterator[retention.Deletion]:
        raise OSError("Input/output error")

    with deleting(broken, lines.append):
        until = monotonic() + 10
        while len(lines) < 2 and monotonic() < until:
            sleep(0.01)
    assert lines[0] == "old files cannot be deleted (Input/output error); it is tried again in an hour"
