"""A file that cannot be run is refused in the browser as `hansa submit` refuses it, before anyone approves it."""

from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient
from typer.testing import CliRunner

from hansa.cli.main import app as commands
from hansa.config.federation import Federation
from hansa.config.file import dump
from hansa.core.errors import UserError
from hansa.dashboard.accounts import Accounts
from hansa.dashboard.app import create
from hansa.dashboard.submissions import Submissions
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.run_queue import RunQueue
from tests.conftest import Build
from tests.dashboard.conftest import PASSWORD, log_in, token
from tests.deploy.conftest import make_kits

BAD: dict[str, dict[str, Any]] = {
    "a simulation": {"simulate": {"default_delay": 2.0}},
    "the best model": {"evaluate": {"keep_best": True}},
    "an unknown task": {"task": "classifi"},
    "an unknown method": {"method": "fedavgg"},
    "labels that nobody listed": {"task": "classify"},
    "an unknown silo": {"silos": {"west": {"train": "w.jsonl"}, "north": {"train": "n.jsonl"}}},
    "another federation": {"name": "other"},
    "a low threshold": {"secure_aggregation": {"threshold": 0.4}},
}


@pytest.fixture
def settings(federation: Build) -> Federation:
    return federation(rounds=2)


@pytest.fixture
def kit(settings: Federation, tmp_path: Path) -> Path:
    return make_kits(settings, tmp_path / "kits") / COORDINATOR


@pytest.fixture
def client(runs: Path, kit: Path, accounts: Accounts) -> TestClient:
    accounts.add("submitter", PASSWORD, accounts.all()["submitter"].role)
    found = TestClient(create(runs, accounts, secure=False, kit=Kit(kit)), base_url="http://127.0.0.1")
    assert log_in(found, "submitter") == 303
    return found


def changed(settings: Federation, values: dict[str, Any]) -> str:
    """The text of a federation file with some settings replaced."""
    raw: dict[str, Any] = yaml.safe_load(dump(settings)) | values
    return yaml.safe_dump(raw, allow_unicode=True)


@pytest.mark.parametrize("what", BAD)
def test_the_browser_refuses_what_the_command_refuses(
    client: TestClient, settings: Federation, runs: Path, kit: Path, tmp_path: Path, what: str
) -> None:
    text = changed(settings, BAD[what])
    file = tmp_path / "federation.yaml"
    file.write_text(text, encoding="utf-8")
    command = ["submit", str(file), "--kit", str(kit), "--queue", str(runs)]
    said = CliRunner().invoke(commands, command).exception
    assert isinstance(said, UserError)
    answer = client.post("/submissions", data={"csrf": token(client), "text": text})
    assert answer.status_code == 400
    assert str(said).replace(str(file), "the submitted file") in unescape(answer.text)
    assert Submissions(runs).all() == []
    assert RunQueue(runs).all() == []


def test_a_good_file_is_kept_and_queued(client: TestClient, settings: Federation, runs: Path, kit: Path) -> None:
    """The positive control; relative paths are relative to the runs."""
    text = changed(settings, {"tokenizer": {"size": 330, "min_count": 2}})
    answer = client.post("/submissions", data={"csrf": token(client), "text": text})
    assert answer.status_code == 200
    [held] = Submissions(runs).all()
    Submissions(runs, Kit(kit)).decide(held.id, "approved", "another")
    assert [one.name for one in RunQueue(runs).all()] == ["small"]


def test_a_file_that_became_impossible_is_not_approved(settings: Federation, runs: Path, kit: Path) -> None:
    """It was submitted to a dashboard without a kit, which does not know the members."""
    held = Submissions(runs).add(changed(settings, BAD["an unknown silo"]), "ada")
    with pytest.raises(UserError, match="lets new members in"):
        Submissions(runs, Kit(kit)).decide(held.id, "approved", "another")
    assert Submissions(runs).find(held.id) == held
    assert RunQueue(runs).all() == []


@pytest.mark.parametrize("values", [{"plugins": ["evil.py"]}, {"data": {"deidentify": "rules+evil.py:Finder"}}])
def test_nothing_that_a_submitted_file_names_is_executed(
    client: TestClient, settings: Federation, runs: Path, values: dict[str, Any]
) -> None:
    mark = runs / "executed"
    for folder in (runs, Path.cwd()):
        assert not (folder / "evil.py").exists()
    (runs / "evil.py").write_text(f"open({str(mark)!r}, 'w')\n\n\nclass Finder:\n    pass\n", encoding="utf-8")
    answer = client.post("/submissions", data={"csrf": token(client), "text": changed(settings, values)})
    assert answer.status_code == 400
    assert "would load and execute" in answer.text
    assert not mark.exists()
