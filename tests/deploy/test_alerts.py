"""Alerts by webhook: what is sent, its signature, bounded attempts, and no text of a silo."""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import pytest

from hansa.core.errors import RunFailed, UserError
from hansa.deploy.alerts import ATTEMPTS, Alerts, Webhook, sign
from hansa.deploy.network.journal import HEARTBEAT, Journal
from hansa.deploy.status import JOURNAL, SERVER_FOLDER, STANDING
from hansa.runs.callbacks import CurrentRun, RoundRecord

SECRET = "a secret with 24 letters"
CANARY = "quartzibelle"


class Receiver:
    """A webhook that answers with ``status`` and keeps what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 204
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((dict(self.headers), body))
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/hook?team=a"

    @property
    def events(self) -> list[str]:
        return [json.loads(body)["event"] for _, body in self.got]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def run(tmp_path: Path, federation: Any) -> CurrentRun:
    return CurrentRun(federation(rounds=2), tmp_path / "run")


def record(failures: dict[str, str]) -> RoundRecord:
    return RoundRecord(3, ("north", "south"), 1.0, {}, {}, {}, (), failures, {}, {}, 1.0, {})


def test_alerts_are_signed_and_quote_no_silo(receiver: Receiver, run: CurrentRun) -> None:
    lost: list[str] = []
    alerts = Alerts(Webhook.parse(receiver.url, SECRET), lost.append)
    alerts.on_round_end(run, record({}))  # nothing failed: no alert
    alerts.on_round_end(run, record({"north": f"ValueError {CANARY}"}))
    alerts.on_failure(run, RunFailed(f"the quorum was missed {CANARY}"))
    alerts.close()
    assert receiver.events == ["round incomplete", "run failed"]
    for headers, body in receiver.got:
        assert headers["X-Hansa-Signature"] == sign(SECRET.encode(), headers["X-Hansa-Time"], body)
        assert headers["X-Hansa-Signature"] != sign(b"another secret", headers["X-Hansa-Time"], body)
        assert CANARY.encode() not in body
    first = json.loads(receiver.got[0][1])
    assert first["text"] == "1 of 2 silos had no part in round 3: north"
    assert (first["round"], first["nodes"], first["federation"]) == (3, ["north"], "small")
    assert lost == []


@pytest.mark.parametrize(("status", "times"), [(500, ATTEMPTS), (429, ATTEMPTS), (404, 1)])
def test_attempts_are_bounded(receiver: Receiver, run: CurrentRun, status: int, times: int) -> None:
    receiver.status = status
    lost: list[str] = []
    alerts = Alerts(Webhook.parse(receiver.url, SECRET), lost.append, pauses=(0.01,))
    alerts.on_round_end(run, record({"north": "x"}))
    alerts.close()
    assert len(receiver.got) == times
    assert lost == [f"the alert 'round incomplete' could not be sent to the webhook (status {status})"]


def test_a_webhook_that_is_gone_never_holds_the_run(run: CurrentRun) -> None:
    lost: list[str] = []
    alerts = Alerts(Webhook.parse("http://127.0.0.1:9/", SECRET), lost.append, pauses=(0.01,))
    began = monotonic()
    for _ in range(500):  # more than wait at most
        alerts.on_round_end(run, record({"north": "x"}))
    assert monotonic() - began < 5
    alerts.close()
    assert lost


def test_a_missing_member_is_named_once_and_when_it_is_back(receiver: Receiver, run: CurrentRun) -> None:
    journal = Journal(run.folder / SERVER_FOLDER / JOURNAL)

    def beat(age: float) -> None:
        facts = {"phase": "idle", "version": "", "last_seen": time() - age, "skew": 0, "serial": 1}
        journal.set_fact(HEARTBEAT + "north", facts)

    journal.set_fact("children", ["north", "south"])  # south was never asked nor seen: it is not missing
    beat(300)
    alerts = Alerts(Webhook.parse(receiver.url, SECRET), print, grace=0.0)
    alerts._look_seconds = 0.05
    alerts.on_message(run, "the run begins")
    wait_for(lambda: receiver.events == ["member missing"])
    sleep(0.5)
    beat(0)
    wait_for(lambda: receiver.events == ["member missing", "member back"])
    alerts.close()
    journal.close()
    assert json.loads(receiver.got[0][1])["node"] == "north"
    assert json.loads(receiver.got[0][1])["run"] == "run"


@pytest.mark.parametrize("shared", [True, False])
def test_a_missing_member_is_told_once_also_with_two_runs_and_without_any(
    receiver: Receiver, federation: Any, tmp_path: Path, shared: bool
) -> None:
    """The control has an object of its own for each run, as if each watched its members by itself."""
    runs, settings = tmp_path / "runs", federation(rounds=2)
    standing = Journal(runs / SERVER_FOLDER / JOURNAL)
    standing.set_fact("children", ["north", "south"])
    beat = {"phase": "idle", "version": "", "last_seen": time() - 300, "skew": 0, "serial": 1}
    standing.set_fact(HEARTBEAT + "north", beat)
    hook, made = Webhook.parse(receiver.url, SECRET), list[Alerts]()

    def alerts() -> Alerts:
        if not made or not shared:
            made.append(Alerts(hook, print, grace=0.0))
            made[-1]._look_seconds = 0.05
        return made[-1]

    if shared:
        alerts().watch(runs, "small")  # the queue is idle
        wait_for(lambda: receiver.events == ["member missing"])
    for name in ("small-0001", "small-0002"):
        journal = Journal(runs / name / SERVER_FOLDER / JOURNAL)
        journal.set_fact("children", ["north", "south"])
        journal.set_fact(STANDING, os.path.relpath(runs / SERVER_FOLDER / JOURNAL, runs / name / SERVER_FOLDER))
        journal.close()
        alerts().on_message(CurrentRun(settings, runs / name), "the run begins")
    if not shared:
        wait_for(lambda: len(receiver.events) == 2)
    sleep(1.0)
    standing.set_fact(HEARTBEAT + "north", beat | {"last_seen": time()})
    back = 1 if shared else 2
    wait_for(lambda: receiver.events.count("member back") == back)
    for one in made:
        one.close()
    standing.close()
    assert receiver.events == ["member missing"] * back + ["member back"] * back
    first = json.loads(receiver.got[0][1])
    assert (first["federation"], first["run"], first["node"]) == ("small", "" if shared else first["run"], "north")


def test_alerts_of_a_run_follow_those_of_another_that_has_failed(receiver: Receiver, run: CurrentRun) -> None:
    alerts = Alerts(Webhook.parse(receiver.url, SECRET), print)
    alerts.on_failure(run, RunFailed("x"))
    wait_for(lambda: receiver.events == ["run failed"])
    alerts.on_round_end(run, record({"north": "x"}))
    alerts.close()
    assert receiver.events == ["run failed", "round incomplete"]


def wait_for(condition: Any) -> None:
    until = monotonic() + 60
    while not condition():
        assert monotonic() < until
        sleep(0.02)


def test_webhooks_need_encryption_and_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HANSA_WEBHOOK_SECRET", raising=False)
    for url, secret, reason in (
        ("http://alerts.example.org/", SECRET, "https"),
        ("alerts.example.org", SECRET, "write it as"),
        ("https://alerts.example.org/", None, "HANSA_WEBHOOK_SECRET"),
        ("https://alerts.example.org/", "short", "16 characters"),
    ):
        with pytest.raises(UserError, match=reason):
            Webhook.parse(url, secret)
