"""Runs as files, accounts, and a client that logs in."""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from time import time

import pytest
import yaml
from argon2 import PasswordHasher
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from hansa.config.file import parse
from hansa.dashboard import accounts as accounts_module
from hansa.dashboard.accounts import Accounts, Role
from hansa.dashboard.app import create
from hansa.deploy.network.journal import HEARTBEAT, Journal
from hansa.deploy.run_queue import QueuedRun, RunQueue
from hansa.deploy.status import JOURNAL, SERVER_FOLDER
from hansa.runs.ledger import SCHEMA

PASSWORD = "correct horse battery staple"
EVIL = "<script>alert('x')</script>\"'&\u202egnp.exe"  # as the name of a run, a silo, a language, a reason
CSRF = re.compile(r'name="csrf" value="([^"]+)"')


def write_run(
    folder: Path, silos: tuple[str, ...] = ("lyon", "turin"), rounds: int = 3, done: int = 2, model: bool = False
) -> Path:
    """A run directory as `hansa serve` writes it, with made-up figures."""
    folder.mkdir(parents=True)
    settings = {
        "name": "clinics",
        "task": "mlm",
        "model": "mini",
        "method": "fedavg",
        "rounds": rounds,
        "silos": {name: {"train": "x.jsonl"} for name in silos},
    }
    (folder / "federation.yaml").write_text(yaml.safe_dump(settings, allow_unicode=True), encoding="utf-8")
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        db.executescript(SCHEMA)
        for round in range(1, done + 1):
            add_round(db, round, silos)
        db.execute("insert into events values (?,?,?,?,?)", (time(), 1, silos[0], "lost", f"no reply {silos[0]}"))
    db.close()
    journal = Journal(folder / SERVER_FOLDER / JOURNAL)
    journal.set_fact("children", list(silos))
    beat = {
        "phase": "working",
        "version": silos[0][:40],
        "last_seen": time(),
        "skew": 0.1,
        "serial": 1,
        "position": None,
    }
    journal.set_fact(HEARTBEAT + silos[0], beat)
    journal.record_request("a" * 32, silos[0], done + 1, "Train", time() + 100)
    journal.count_refusal(silos[0], f"a bad envelope of {silos[0]}")
    journal.close()
    line = {"time": "2026-01-02T03:04:05.678+00:00", "level": "info", "by": "hansa.serve", "text": f"met {silos[0]}"}
    (folder / "log.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    if model:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}", encoding="utf-8")
        (folder / "model" / "model.safetensors").write_bytes(bytes(range(256)) * 8000)
    return folder


def add_round(db: sqlite3.Connection, round: int, silos: tuple[str, ...]) -> None:
    """Another round of a run."""
    db.execute(
        "insert into rounds (round, at, loss, seconds, lost) values (?,?,?,?,0)", (round, time(), 5 / round, 1.5)
    )
    for number, silo in enumerate(silos):
        values = (round, silo, 4_000_000, 2_000_000, 100 * (number + 1), 6 / round + number, 0, 0)
        db.execute("insert into traffic values (?,?,?,?,?,?,?,?,null,null)", values)
        db.execute("insert into metrics values (?,?,?,?,?,?)", (round, "valid", 1.0, silo, "perplexity", 90 / round))
        db.execute(
            "insert into silo_metrics values (?,?,?,?,?,?,?)", (round, "valid", 1.0, silo, silo, "perplexity", 9.0)
        )


def add_queued(runs: Path, name: str, state: str, by: str = "ada", reason: str = "") -> QueuedRun:
    """A submitted run in some state."""
    queue = RunQueue(runs)
    settings = {
        "name": name,
        "task": "mlm",
        "model": "mini",
        "silos": {"lyon": {"train": "a"}, "turin": {"train": "b"}},
    }
    one = queue.add(parse(settings), by)
    queue.mark(one, state, reason)
    return queue.find(one.id)


@pytest.fixture(autouse=True)
def _quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of the same kind that take less time and memory."""
    accounts_module._no_account.cache_clear()
    monkeypatch.setattr(accounts_module, "HASHER", PasswordHasher(1, 8, 1))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs" / "clinics", model=True)
    write_run(tmp_path / "runs" / "secret", ("bern", "oslo"), model=True)
    return tmp_path / "runs"


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    held = Accounts(tmp_path / "accounts.json")
    for role in Role:
        held.add(role.name, PASSWORD, role, ("clinics*",))
    held.add("second", PASSWORD, Role.submitter, ("clinics*",))
    return held


@pytest.fixture
def app(runs: Path, accounts: Accounts) -> FastAPI:
    return create(runs, accounts, secure=False)


def log_in(client: TestClient, name: str, password: str = PASSWORD) -> int:
    """Log in; return the status of the answer."""
    found = CSRF.search(client.get("/login").text)
    assert found is not None
    form = {"csrf": found[1], "name": name, "password": password}
    return client.post("/login", data=form, follow_redirects=False).status_code


def token(client: TestClient, path: str = "/") -> str:
    """The token of the session's forms."""
    found = CSRF.search(client.get(path).text)
    assert found is not None
    return found[1]


def all_pages(app: FastAPI, token_file: Path) -> dict[str, bytes]:
    """Path → content of every page that has one address, and of the page of the run ``run``."""
    client = TestClient(app, base_url="http://127.0.0.1")
    assert log_in(client, "admin", token_file.read_text()) == 303
    paths = [route.path for route in app.routes if isinstance(route, APIRoute) and "GET" in (route.methods or ())]
    plain = [path for path in paths if "{" not in path and not path.endswith("events")]
    more = ["/runs/run"] if "/runs/{run}" in paths else []
    with client:
        return {path: client.get(path).content for path in (*plain, *more)}


Clients = Callable[[str], TestClient]


@pytest.fixture
def client_of(app: FastAPI) -> Iterator[Clients]:
    """A client that is logged in under a name; an empty name: not logged in."""
    opened: list[TestClient] = []

    def make(name: str) -> TestClient:
        client = TestClient(app, base_url="http://127.0.0.1")
        opened.append(client)
        if name:
            assert log_in(client, name) == 303
        return client

    yield make
    for client in opened:
        client.close()
