"""The page of a silo's administrator: state, approvals with their difference, the audit log, budget, policy, pause."""

import threading
from dataclasses import replace
from pathlib import Path
from time import sleep, time

import pytest
import yaml
from fastapi import FastAPI
from starlette.testclient import TestClient

from hansa.config.federation import Federation
from hansa.config.shared import canonical
from hansa.core.errors import UserError
from hansa.dashboard.accounts import Accounts, Role, TokenAccount
from hansa.dashboard.silo_app import ACCESS, create
from hansa.dashboard.silo_view import SiloView
from hansa.deploy.agent import Agent
from hansa.deploy.agent_state import AgentState, pause, paused, state_of
from hansa.deploy.approval import Approval, Approvals, NotApproved
from hansa.deploy.coordinator import serve
from hansa.deploy.join import SiloService
from hansa.deploy.kit import Kit
from hansa.deploy.lock_file import lock_folder
from hansa.deploy.network.envelope import Envelope
from hansa.deploy.network.heartbeat import Heartbeat
from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.deploy.run_requests import RunRequests
from hansa.deploy.silo_status import silo_status, status_lines
from hansa.privacy.policy.audit_log import AUDIT_LOG, AuditLog, entries, verify
from hansa.privacy.policy.rules import Policy
from hansa.privacy.policy.words import policy_lines
from tests.conftest import Build
from tests.dashboard.conftest import EVIL, PASSWORD, log_in, token
from tests.dashboard.test_access import ask, routes
from tests.dashboard.test_pages import check
from tests.deploy.conftest import Log, make_kits


@pytest.fixture
def settings(federation: Build) -> Federation:
    return federation(rounds=2)


@pytest.fixture
def view(settings: Federation, tmp_path: Path) -> SiloView:
    kits = make_kits(settings, tmp_path / "kits")
    return SiloView(Kit(kits / "north"), kits / "north" / "home", None, (), None)


@pytest.fixture
def app(view: SiloView, tmp_path: Path) -> FastAPI:
    held = Accounts(tmp_path / "accounts.json")
    for role in Role:
        held.add(role.name, PASSWORD, role)
    return create(view, held, False, False, ("127.0.0.1",))


def client_of(app: FastAPI, name: str) -> TestClient:
    client = TestClient(app, base_url="http://127.0.0.1")
    assert not name or log_in(client, name) == 303
    return client


def wait_for_approval(view: SiloView, settings: Federation, rounds: int = 7) -> str:
    """Let the agent refuse a run that was not approved; returns the digest of its settings."""
    changed = settings.model_copy(update={"rounds": rounds})
    with pytest.raises(NotApproved):
        view.approvals.check(changed, {}, "a-run", Policy.read(view.policy_file))
    return Approval(changed.name, canonical(changed)).digest


def test_pending_runs_show_the_difference_and_are_approved(app: FastAPI, view: SiloView, settings: Federation) -> None:
    digest = wait_for_approval(view, settings)
    client = client_of(app, "approver")
    text = client.get("/approvals").text
    check(text)
    assert "rounds: 2 → 7" in text
    assert "What leaves this silo" in text
    assert "NO secure aggregation" in text
    assert "1 run waits for your decision" in client.get("/").text
    csrf = token(client)
    too_few = client.post(f"/approvals/{digest}/approve", data={"csrf": csrf, "runs": "0"})
    assert too_few.status_code == 400
    assert client.post(f"/approvals/{digest}/approve", data={"csrf": csrf, "runs": "2"}).status_code == 200
    [given] = [one for one in view.approvals.all() if one.digest == digest]
    assert (given.runs, given.by) == (2, "approver")
    changed = settings.model_copy(update={"rounds": 7})
    assert view.approvals.check(changed, {}, "a-run", Policy.read(view.policy_file)).digest == digest
    assert "No run waits" in client.get("/approvals").text
    decided = [entry for entry in entries(view.home / AUDIT_LOG) if entry["event"] == "decision"]
    assert decided[-1]["by"] == "approver"
    assert client.post(f"/approvals/{digest}/withdraw", data={"csrf": csrf}).status_code == 200
    assert all(one.digest != digest for one in view.approvals.all())


def test_a_refused_run_is_not_asked_again(app: FastAPI, view: SiloView, settings: Federation) -> None:
    digest = wait_for_approval(view, settings)
    client = client_of(app, "approver")
    assert client.post(f"/approvals/{digest}/refuse", data={"csrf": token(client)}).status_code == 200
    assert wait_for_approval(view, settings) == digest  # the agent refuses it again, and notes nothing
    assert view.approvals.pending() == []
    assert "refused without asking again" in client.get("/approvals").text
    missing = client.post(f"/approvals/{digest}/approve", data={"csrf": token(client), "runs": "1"})
    assert missing.status_code == 400
    assert "does not wait" in missing.text


@pytest.mark.parametrize("name", ["", *(role.name for role in Role)])
def test_every_route_of_the_silo_needs_its_role(app: FastAPI, view: SiloView, settings: Federation, name: str) -> None:
    digest = wait_for_approval(view, settings)
    approved = view.approvals.all()
    for route in routes(app):
        if route.name in ("login", "log_in", "static", "logout", "now_events"):
            continue
        client = client_of(app, name)
        status = ask(client, route, token(client) if name else "x", digest=digest)
        needed = ACCESS[route.name]
        assert needed is not None
        if not name:
            assert status in (303, 403), route.path
        elif Role[name] < needed:
            assert status == 403, route.path
        else:
            assert status in (200, 303, 400), route.path
    if name != "approver":
        assert view.approvals.all() == approved
        assert paused(view.home) is None


def test_the_token_logs_in_and_other_hosts_are_refused(view: SiloView, tmp_path: Path) -> None:
    token_file = TokenAccount(tmp_path / "token", "admin")
    assert token_file.file.stat().st_mode & 0o777 == 0o600
    app = create(view, token_file, True, False, ("127.0.0.1",))
    client = TestClient(app, base_url="http://127.0.0.1")
    assert log_in(client, "", "wrong") == 401
    assert log_in(client, "", token_file.file.read_text()) == 303
    check(client.get("/").text)
    other = TestClient(app, base_url="http://evil.example.org")  # a name that an attacker resolves to 127.0.0.1
    assert other.get("/login").status_code == 400


def test_the_log_is_readable_and_its_damage_is_shown(app: FastAPI, view: SiloView) -> None:
    log = AuditLog(view.home / AUDIT_LOG, "north")
    log.add("request", message="Train", round=3, to=EVIL, bytes=10)
    log.add("release", message="Update", round=3, to="coordinator", bytes=1234, rules={"tensors": "clinics"})
    log.add("refusal", message="Evaluate", round=3, to="coordinator", reason=EVIL)
    client = client_of(app, "reader")
    text = client.get("/log").text
    check(text)
    assert "The silo sent a model update of round 3 to coordinator (1,234 bytes; tensors by rule clinics)." in text
    assert "<script>alert" not in text
    assert "intact" in text
    only = client.get("/log?kind=release").text
    assert "asked for" not in only
    assert client.get("/log?page=-1").status_code == 400
    file = view.home / AUDIT_LOG
    file.write_bytes(file.read_bytes().replace(b"1234", b"9999"))
    assert not verify(file).sound
    assert "was changed after it was written" in client.get("/log").text


def test_policy_and_budget_in_words(app: FastAPI, view: SiloView) -> None:
    client = client_of(app, "reader")
    policy = client.get("/policy").text
    check(policy)
    assert "An administrator must approve every run." in policy
    assert "no privacy budget" in policy
    raw = yaml.safe_load(view.policy_file.read_text())
    view.policy_file.write_text(yaml.safe_dump(raw | {"budget": {"epsilon": 8}}))
    check(client.get("/budget").text)
    assert "ε = 0 of 8" in client.get("/budget").text
    view.policy_file.write_text("rules: nonsense")
    assert "Nothing may leave" in client.get("/policy").text


def test_a_policy_in_words_names_every_rule(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    release = {"tensors": ["head"], "samples": True, "words": 5}
    rule = {"federations": ["clinics"], "methods": "any", "release": release, "require": {"cohort": 3, "epsilon": 2}}
    approve = {"tasks": ["mlm"], "methods": ["fedavg"], "max_rounds": 9}
    file.write_text(yaml.safe_dump({"rules": {"training": rule}, "budget": {"epsilon": 4}, "approve": approve}))
    text = "\n".join(policy_lines(Policy.read(file)))
    for words in ("model updates (head)", "at least 5 of its rows", "withholds", "names of the labels", "3 silos"):
        assert words in text
    assert "ε ≤ 2" in text
    assert "ε = 4" in text
    assert "at most 9 rounds" in text


def test_pause_and_resume_are_noted(app: FastAPI, view: SiloView) -> None:
    client = client_of(app, "approver")
    assert client.post("/pause", data={"csrf": token(client)}).status_code == 200
    found = paused(view.home)
    assert found is not None
    assert found[0] == "approver"
    assert "Paused by" in client.get("/").text
    assert client.post("/resume", data={"csrf": token(client)}).status_code == 200
    assert paused(view.home) is None
    events = [entry["reason"] for entry in entries(view.home / AUDIT_LOG)]
    assert events == ["paused the agent", "let the agent work again"]
    pause(view.home, "x")
    (view.home / "paused.json").write_text("damaged")
    assert paused(view.home) == ("an unknown user", 0.0)  # a damaged file pauses


def test_the_state_names_what_is_asked(app: FastAPI, view: SiloView) -> None:
    view.home.mkdir()
    AgentState(
        "north", "coordinator", "localhost:1", "working", "0.2.0", time(), 1, asked="Train of round 3", run="r",
        since=time(), deadline=time() + 60,
    ).write(view.home)  # fmt: skip
    client = client_of(app, "reader")
    assert "not running" in client.get("/").text
    assert status_lines(silo_status(view.kit, view.home))[0].endswith("the agent does not run")
    with lock_folder(view.home, "hansa join"):
        text = client.get("/").text
        lines = status_lines(silo_status(view.kit, view.home))
    assert "<strong>Train of round 3</strong>" in text
    assert lines[0].endswith("the agent runs, connected, working")
    assert lines[1].startswith("asked for: Train of round 3 in run r, until ")


def test_every_request_under_way_and_waiting_is_shown(app: FastAPI, view: SiloView) -> None:
    """Two workers, three runs: two requests are worked on, one waits; the state is the agent's own."""
    view.home.mkdir()
    requests = RunRequests(2)
    for number, run in enumerate(("first", EVIL, "third")):
        sent = Envelope("coordinator", "north", run, time(), "x" * 32, 1, "Train", number + 4, ("0" * 64, 1))
        requests.put(replace(sent, deadline=time() + 60 if number else None))
    for worker in range(2):
        assert requests.take(worker, lambda: False, lambda: True, 1.0) is not None
    sent_now = Heartbeat(
        "north", "coordinator", "x", "working", "0", time(), 1, "", False, runs=tuple(requests.working())
    )
    state_of(sent_now, ("localhost", 1), requests.newest(), requests.open()).write(view.home)
    with lock_folder(view.home, "hansa join"):
        text = client_of(app, "reader").get("/").text
        found = silo_status(view.kit, view.home)
    check(text)
    for words in ("<strong>Train of round 4</strong>", "<strong>Train of round 5</strong>", "Train of round 6"):
        assert words in text
    assert text.count("the agent works on it") == 1  # beside the first
    assert text.count("the request waits for its turn") == 1
    assert text.count("<script>alert") == 0
    assert [one.split(" in run ")[0] for one in found["waiting"]] == ["Train of round 5", "Train of round 6"]
    (view.home / "agent.json").write_text('{"others": [3]}')  # of another version
    assert AgentState.read(view.home) is None


def test_the_coordinators_kit_has_no_such_page(view: SiloView) -> None:
    with pytest.raises(UserError, match="only silos"):
        SiloView(Kit(view.kit.folder.parent / "coordinator"), view.home, None, (), None)


@pytest.mark.slow_fault
def test_a_paused_agent_sends_nothing_until_it_is_resumed(settings: Federation, tmp_path: Path) -> None:
    """A real agent and coordinator: no reply while it is paused, the whole run after it."""
    kits, log = make_kits(settings, tmp_path / "kits"), Log()
    agents, homes = [], {name: tmp_path / "silos" / name for name in settings.silos}
    for name, node in settings.silos.items():
        kit = Kit(kits / name)
        service = SiloService(kit, node.sources, (), PolicyEnforcer.load(kit, None, homes[name]))
        agents.append(Agent(kit, homes[name], service, log.say))
    for home in homes.values():
        pause(home, "admin")
    threads = [threading.Thread(target=agent.run, daemon=True) for agent in agents]
    for thread in threads:
        thread.start()
    results = []
    run = threading.Thread(
        target=lambda: results.append(serve(settings, Kit(kits / "coordinator"), tmp_path / "run", None, [log])),
        daemon=True,
    )
    run.start()
    state = None
    for _ in range(600):
        state = AgentState.read(homes["north"])
        if state is not None and state.asked:
            break
        sleep(0.1)
    assert state is not None
    assert (state.phase, state.asked) == ("paused", "CollectVocabulary of round 0")
    sleep(0.5)
    assert not (homes["north"] / AUDIT_LOG).exists()
    for home in homes.values():
        (home / "paused.json").unlink()
    run.join(120)
    for agent in agents:
        agent.stop()
    for thread in threads:
        thread.join(60)
    assert results
    released = [one for one in entries(homes["north"] / AUDIT_LOG) if one["event"] == "release"]
    assert len(released) > 3
    assert Approvals(kits / "north", homes["north"]).pending() == []
