"""The page of the queue: every submitted run, its place, who stopped it, and the two buttons."""

import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from hansa.dashboard.accounts import Accounts
from hansa.dashboard.app import create
from hansa.deploy.lock_file import lock_folder
from hansa.deploy.run_queue import RunQueue
from tests.dashboard.conftest import EVIL, Clients, add_queued, log_in, token, write_run
from tests.dashboard.test_pages import check

PLACE = re.compile(r'<th scope="row">(\d+)</th>.*?<td>(\d+|–)</td>', re.DOTALL)


def test_every_submitted_run_is_listed_with_its_place(runs: Path, client_of: Clients) -> None:
    ended = add_queued(runs, "clinics", "failed", reason="round 1: 0 of 3 sent a valid update")
    secret = add_queued(runs, "secret", "queued")  # counts for the place, and is not shown
    first, running, second = (add_queued(runs, "clinics", state) for state in ("queued", "running", "queued"))
    write_run(runs / f"clinics-{running.id}")
    text = client_of("reader").get("/queue").text
    check(text)
    assert '<a href="/queue" aria-current="page">Queue</a>' in text
    assert dict(PLACE.findall(text.split("Ended")[0])) == {running.id: "–", first.id: "2", second.id: "3"}
    assert secret.id not in text
    assert ended.reason in text
    assert f'href="/runs/clinics-{running.id}"' in text
    assert f"/runs/clinics-{first.id}" not in text  # it has not begun
    assert "<button class" not in text.split("<main")[1]
    assert "No coordinator works on this queue" in text
    with lock_folder(RunQueue(runs).folder, "hansa serve --queue"):
        assert "No coordinator works on this queue" not in client_of("reader").get("/queue").text


def test_an_approver_stops_and_retries(runs: Path, client_of: Clients) -> None:
    queue, client = RunQueue(runs), client_of("approver")
    waits, goes_on, done = (add_queued(runs, "clinics", state) for state in ("queued", "running", "finished"))
    csrf = token(client)
    for one in (waits, goes_on):
        assert client.post(f"/queue/{one.id}/stop", data={"csrf": csrf}).status_code == 200
    assert (queue.find(waits.id).state, queue.find(goes_on.id).state) == ("stopped", "running")
    assert queue.stop_requested(goes_on) == "stopped by approver"
    text = client.get("/queue").text
    check(text)
    assert "it ends after its round" in text
    assert text.count("Retry</button>") == 1  # the stopped run's; what has finished is not repeated
    assert "Stop</button>" not in text
    assert client.post(f"/queue/{waits.id}/retry", data={"csrf": csrf}).status_code == 200
    assert queue.find(waits.id).state == "queued"
    for path, reason in ((f"{waits.id}/retry", "is queued"), (f"{done.id}/stop", "has finished already")):
        answer = client.post(f"/queue/{path}", data={"csrf": csrf})
        assert answer.status_code == 400
        assert reason in answer.text
        check(answer.text)


def test_names_in_the_queue_are_never_code(tmp_path: Path, accounts: Accounts) -> None:
    add_queued(tmp_path, "clinics", "failed", by=EVIL, reason=EVIL)
    goes_on = add_queued(tmp_path, "clinics", "running", by=EVIL)
    RunQueue(tmp_path).stop(goes_on.id, EVIL)
    client = TestClient(create(tmp_path, accounts, secure=False), base_url="http://127.0.0.1")
    assert log_in(client, "approver") == 303
    text = client.get("/queue").text
    check(text)
    assert text.count("alert(") == 4
    assert "<script>alert" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("role", ["reader", "approver"])
def test_a_folder_without_a_queue_says_so(app: FastAPI, client_of: Clients, role: str, runs: Path) -> None:
    text = client_of(role).get("/queue").text
    check(text)
    assert "No run is under way or waits." in text
    assert not RunQueue(runs).folder.exists()
