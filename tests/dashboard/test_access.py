"""Case 15: every role × endpoint × another's id is refused, over the table of routes that the applications have."""

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from hansa.core.errors import UserError
from hansa.dashboard import app as dashboard
from hansa.dashboard import silo_app
from hansa.dashboard.accounts import Accounts, NoAccounts, Role
from hansa.dashboard.app import open_dashboard
from hansa.dashboard.oidc import OidcSettings
from hansa.dashboard.submissions import Submissions
from hansa.deploy.run_queue import RunQueue
from tests.dashboard.conftest import PASSWORD, Clients, add_queued, log_in, token

FEDERATION = "name: clinics\ntask: mlm\nmodel: mini\nsilos:\n  lyon: {train: a.jsonl}\n  turin: {train: b.jsonl}\n"
STREAMS = {"run_events", "now_events"}  # endless answers; test_live.py reads them
OPEN = {"login", "log_in", "static"}


def routes(app: FastAPI) -> list[APIRoute]:
    return [route for route in app.routes if isinstance(route, APIRoute)]


def ask(client: TestClient, route: APIRoute, csrf: str, **values: str) -> int:
    path = route.path.format(**{name: values.get(name, "x") for name in route.param_convertors})
    [method] = route.methods or {"GET"}
    form = {"csrf": csrf} if method == "POST" else None
    return client.request(method, path, data=form, follow_redirects=False).status_code


@pytest.mark.parametrize("name", ["", *(role.name for role in Role)])
def test_every_route_needs_its_role(app: FastAPI, client_of: Clients, runs: Path, name: str) -> None:
    role = Role[name] if name else None
    for route in routes(app):
        if route.name in STREAMS or route.name in OPEN or route.name == "logout":
            continue
        held = Submissions(runs).add(FEDERATION, "somebody")
        queued = add_queued(runs, "clinics", "failed" if route.name == "retry" else "queued")
        client = client_of(name)
        csrf = token(client) if name else "x"
        status = ask(client, route, csrf, run="clinics", id=queued.id if "queue" in route.path else held.id)
        needed = dashboard.ACCESS[route.name]
        assert needed is not None
        if role is None:
            assert status in (303, 403), route.path  # to the login, or refused
            assert Submissions(runs).find(held.id) == held
            assert RunQueue(runs).find(queued.id) == queued
        elif role < needed:
            assert status == 403, route.path
            assert Submissions(runs).find(held.id) == held
            assert RunQueue(runs).find(queued.id) == queued
        elif route.name in ("stop", "retry"):
            assert status == 303, route.path
            assert RunQueue(runs).find(queued.id).state == {"stop": "stopped", "retry": "queued"}[route.name]
        elif route.name == "withdraw":
            assert status == 404, route.path  # it is another's
            assert Submissions(runs).find(held.id) == held
        else:
            assert status in (200, 303, 400), route.path


@pytest.mark.parametrize("role", list(Role))
def test_another_studys_run_in_the_queue_does_not_exist(runs: Path, client_of: Clients, role: Role) -> None:
    own, other = add_queued(runs, "clinics", "failed"), add_queued(runs, "secret", "failed")
    client = client_of(role.name)
    text = client.get("/queue").text
    assert own.id in text
    assert other.id not in text
    assert "secret" not in text
    for id in (other.id, "9999", "....", f"{own.id}.json"):
        for what in ("stop", "retry"):
            answer = client.post(f"/queue/{id}/{what}", data={"csrf": token(client)})
            assert answer.status_code == (404 if role == Role.approver else 403), (id, what)
    assert RunQueue(runs).find(other.id) == other


def test_forged_forms_change_no_queue(runs: Path, client_of: Clients) -> None:
    queued = add_queued(runs, "clinics", "queued")
    client, other = client_of("approver"), client_of("submitter")
    path, right = f"/queue/{queued.id}/stop", token(client)
    for form, headers in (
        ({}, {}),
        ({"csrf": token(other)}, {}),
        ({"csrf": right}, {"Sec-Fetch-Site": "cross-site"}),
    ):
        assert client.post(path, data=form, headers=headers).status_code == 403
        assert RunQueue(runs).find(queued.id) == queued
    assert client.get(path).status_code == 405
    assert client.post(path, data={"csrf": right}).status_code == 200
    assert RunQueue(runs).find(queued.id).reason == "stopped by approver"


def test_a_route_without_an_entry_is_refused(app: FastAPI, client_of: Clients) -> None:
    app.get("/forgotten", name="forgotten")(lambda: {"secret": 1})
    answer = client_of("approver").get("/forgotten")
    assert answer.status_code == 403
    assert "secret" not in answer.text


def test_routes_and_the_table_of_roles_are_the_same(app: FastAPI) -> None:
    names = {route.name for route in routes(app)} - OPEN - {"logout"}
    assert names == set(dashboard.ACCESS)
    assert all(role is not None for role in (*dashboard.ACCESS.values(), *silo_app.ACCESS.values()))


@pytest.mark.parametrize("role", list(Role))
def test_another_studys_run_does_not_exist(app: FastAPI, client_of: Clients, role: Role) -> None:
    """The accounts see `clinics*` alone; the answer for `secret` is that for a run that is not there."""
    client = client_of(role.name)
    for route in routes(app):
        if "{run}" not in route.path or (role < (dashboard.ACCESS[route.name] or role)):
            continue
        for id in ("secret", "%2e%2e", "..%2fsecret", "nothing", "clinics%2f..%2fsecret", "clinics:.."):
            answer = client.get(route.path.format(run=id), follow_redirects=False)
            assert answer.status_code == 404, (route.path, id)
            assert "bern" not in answer.text
    assert "secret" not in client.get("/").text
    assert client.get("/compare?run=clinics&run=secret").status_code == 404
    assert client.get("/runs/clinics").status_code == 200  # the positive control


def test_submissions_belong_to_their_sender(runs: Path, client_of: Clients) -> None:
    held = Submissions(runs).add(FEDERATION, "submitter")
    own, other, approver = client_of("submitter"), client_of("second"), client_of("approver")
    assert held.id in own.get("/submissions").text
    assert held.id not in other.get("/submissions").text
    for path in ("withdraw", "approve", "refuse"):
        answer = other.post(f"/submissions/{held.id}/{path}", data={"csrf": token(other)})
        assert answer.status_code in (403, 404)
    assert Submissions(runs).find(held.id) == held
    assert approver.post(f"/submissions/{held.id}/approve", data={"csrf": token(approver)}).status_code == 200
    approved = Submissions(runs).find(held.id)
    assert approved is not None
    assert (approved.state, approved.decided_by) == ("approved", "approver")
    [queued] = RunQueue(runs).all()
    assert (queued.id, queued.name, queued.by) == (approved.run, approved.name, approved.by)


def test_nobody_approves_their_own_submission(runs: Path, client_of: Clients) -> None:
    held = Submissions(runs).add(FEDERATION, "approver")
    client = client_of("approver")
    assert client.post(f"/submissions/{held.id}/approve", data={"csrf": token(client)}).status_code == 403
    assert Submissions(runs).find(held.id) == held


def test_forged_forms_are_refused(runs: Path, client_of: Clients) -> None:
    held = Submissions(runs).add(FEDERATION, "somebody")
    client, other = client_of("approver"), client_of("submitter")
    path = f"/submissions/{held.id}/refuse"
    right = token(client)
    for form, headers in (
        ({}, {}),
        ({"csrf": ""}, {}),
        ({"csrf": token(other)}, {}),  # another session's
        ({"csrf": right}, {"Sec-Fetch-Site": "cross-site"}),
    ):
        assert client.post(path, data=form, headers=headers).status_code == 403
        assert Submissions(runs).find(held.id) == held
    assert client.post("/logout", data={}).status_code == 403
    assert client.post(path, data={"csrf": right}).status_code == 200


def test_a_session_ends_with_the_account_and_with_the_logout(client_of: Clients, accounts: Any) -> None:
    client = client_of("reader")
    cookies = dict(client.cookies)
    thief = client_of("")
    for name, value in cookies.items():
        thief.cookies.set(name, value)
    assert thief.get("/", follow_redirects=False).status_code == 200  # the positive control
    assert client.post("/logout", data={"csrf": token(client)}, follow_redirects=False).status_code == 303
    assert thief.get("/", follow_redirects=False).status_code == 303  # the old cookie is worthless
    second = client_of("second")
    accounts.add("second", PASSWORD, Role.reader, ("nothing",))  # takes effect at once
    assert second.get("/runs/clinics").status_code == 404
    assert second.get("/submissions").status_code == 403
    accounts.remove("second")
    assert second.get("/", follow_redirects=False).status_code == 303


def test_wrong_passwords_are_limited_and_names_are_not_revealed(client_of: Clients) -> None:
    client = client_of("")
    assert log_in(client, "reader", "wrong password") == 401
    wrong = [log_in(client, "nobody", "wrong password") for _ in range(6)]
    assert wrong == [401] * 5 + [429]
    assert log_in(client, "nobody") == 429  # nor is the right one tried
    assert log_in(client, "approver") == 303  # another account is not locked


def test_headers_forbid_foreign_content_and_large_requests(client_of: Clients) -> None:
    client = client_of("submitter")
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["cache-control"] == "no-store"
    large = {"csrf": token(client), "text": "x" * (2 << 20)}
    assert client.post("/submissions", data=large).status_code == 413


def test_oidc_claims_become_roles() -> None:
    settings = OidcSettings(
        issuer="https://login.example.org",
        address="https://hansa.example.org/",
        client_id="hansa",
        roles={"readers": "reader", "leads": "approver"},
        runs={"readers": ("clinics*",), "leads": ("*-pilot",)},
    )
    both = settings.account({"sub": "42", "groups": ["readers", "leads", "other"]})
    assert both is not None
    assert (both.name, both.role, both.runs) == ("oidc:42", Role.approver, ("clinics*", "*-pilot"))
    assert settings.account({"sub": "42", "groups": "readers"}) is not None
    for claims in (
        {"sub": "42"},
        {"sub": "42", "groups": ["other"]},
        {"groups": ["leads"]},
        {"sub": "42", "groups": {}},
    ):
        assert settings.account(claims) is None


@pytest.fixture
def provider(tmp_path: Path) -> Path:
    """A file that names a provider, at which nothing answers."""
    file = tmp_path / "oidc.yaml"
    lines = ("issuer: https://127.0.0.1:9", "address: https://hansa.example.org", "client_id: hansa")
    file.write_text("\n".join([*lines, "roles: {leads: approver}"]))
    return file


def test_with_a_provider_alone_there_is_no_form_and_no_password_is_right(
    runs: Path, accounts: Accounts, provider: Path
) -> None:
    both = TestClient(open_dashboard(runs, accounts.file, provider, True), base_url="https://hansa.example.org")
    page = both.get("/login").text
    assert 'name="password"' in page
    assert 'href="/login/oidc"' in page
    assert log_in(both, "reader") == 303
    alone = TestClient(open_dashboard(runs, None, provider, True), base_url="https://hansa.example.org")
    page = alone.get("/login").text
    assert 'name="password"' not in page
    assert 'href="/login/oidc"' in page
    assert alone.post("/login", data={"csrf": "x", "name": "reader", "password": PASSWORD}).status_code == 403
    assert NoAccounts().check("reader", PASSWORD) is None
    assert NoAccounts().find("reader") is None
    assert alone.get("/", follow_redirects=False).headers["location"] == "/login"


def test_pages_that_no_person_could_use_are_refused(
    runs: Path, accounts: Accounts, provider: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="no person could log in"):
        open_dashboard(runs, None, None, True)
    with pytest.raises(UserError, match="has no account"):
        open_dashboard(runs, tmp_path / "none.json", None, True)
    with pytest.raises(UserError, match="cannot be read"):
        open_dashboard(runs, accounts.file, tmp_path / "none.yaml", True)
    provider.write_text(provider.read_text().replace("https://hansa.example.org", "http://127.0.0.1:8080"))
    with pytest.raises(UserError, match="reached by HTTPS alone"):
        open_dashboard(runs, None, provider, True)
    open_dashboard(runs, None, provider, False)
