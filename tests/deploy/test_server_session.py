"""Server sessions: locks, ports, host names, revoked coordinators, missing nodes and missing brokers."""

import shutil
import socket
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.core.errors import UserError
from hansa.core.messages import DescribeData, Failure
from hansa.deploy import authority
from hansa.deploy.coordinator import serve
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.lock_file import lock_folder
from hansa.deploy.network.address import ConnectionLost
from hansa.deploy.network.connection import Connection, JetStreamError, Message
from hansa.deploy.network.route import Route
from hansa.deploy.network.session import Session
from hansa.deploy.server_session import server_session
from hansa.runs.ledger import Ledger
from tests.cli.test_cli import ok
from tests.conftest import Build
from tests.deploy.conftest import Log, free_ports, joined, make_kits
from tests.deploy.network.test_address import running, silo, wait_until


def no_log(text: str) -> None:
    pass


def test_the_coordinator_does_not_connect_to_its_public_name(federation: Build, tmp_path: Path) -> None:
    settings, [port] = federation(), free_ports(1)
    kits = tmp_path / "kits"
    authority.create(settings, kits, {COORDINATOR: f"hansa.example.invalid:{port}"}, 30)
    with server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, no_log) as link:
        assert link.size == 3


def test_a_port_in_use_is_reported_at_once(federation: Build, tmp_path: Path) -> None:
    kits = make_kits(federation(), tmp_path / "kits")
    place = Kit(kits / COORDINATOR).endpoint
    with closing(socket.create_server(("127.0.0.1", place.port))):
        began = monotonic()
        with pytest.raises(UserError, match=f"port {place.port} cannot be opened"):
            server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, no_log).__enter__()
        assert monotonic() - began < 20


def test_only_one_agent_may_use_a_home(federation: Build, tmp_path: Path) -> None:
    settings = federation()
    kits = make_kits(settings, tmp_path / "kits")
    with (
        lock_folder(kits / "north" / "home", "hansa join"),
        pytest.raises(UserError, match="in use by another 'hansa join'"),
    ):
        ok("join", str(kits / "north"), "--data", settings.silos["north"].sources[0].train)


def test_silos_reject_requests_of_a_revoked_coordinator(federation: Build, tmp_path: Path, log: Any) -> None:
    settings = federation(rounds=1, participation={"deadline": 6})
    kits = make_kits(settings, tmp_path / "kits")
    stolen = shutil.copytree(kits / COORDINATOR, tmp_path / "stolen")
    authority.revoke(kits, COORDINATOR)
    agent = silo(settings, kits, tmp_path / "silos", "north", log.say)
    with running(agent), server_session(Kit(stolen), tmp_path / "server", None, no_log) as link:
        link.share_settings(b"{}")
        [answer] = link.ask({"north": DescribeData()}, monotonic() + 6)
        wait_until(
            lambda: any("the membership of its sender 'coordinator' was revoked" in line for line in log.lines),
            "the refusal",
        )
    assert not any("reply sent" in line for line in log.lines)
    assert isinstance(answer.reply, Failure)
    assert "did not answer" in answer.reply.reason


class StopAfter(Log):
    def on_round_end(self, run: Any, record: Any) -> None:
        raise KeyboardInterrupt


@pytest.mark.slow_fault
def test_a_restarted_coordinator_waits_for_a_missing_silo_only_until_the_deadline(
    federation: Build, tmp_path: Path, log: Any
) -> None:
    settings = federation(rounds=3, participation={"deadline": 6, "quorum": 0.5, "enrolment": 8})
    kits = make_kits(settings, tmp_path / "kits")
    homes = tmp_path / "silos"
    with joined(settings, kits, homes, log.say), pytest.raises(KeyboardInterrupt):
        serve(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, [StopAfter()])
    rest = settings.model_copy(update={"silos": {n: s for n, s in settings.silos.items() if n != "south"}})
    began = monotonic()
    with joined(rest, kits, homes, log.say):
        serve(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, [log])
    assert monotonic() - began < 100, "no wait is longer than the deadlines of the rounds"
    ledger = Ledger(tmp_path / "run")
    lost = ledger.select("select round, text from events where node='south' and kind='lost'")
    ledger.close()
    assert {round for round, _ in lost} >= {2, 3}


def test_a_wait_without_a_broker_ends_at_its_deadline() -> None:
    [unused] = free_ports(1)
    session = Session(Route(lambda: [("127.0.0.1", unused)], None), Ed25519PrivateKey.generate, "inbox", [], no_log)
    began = monotonic()
    assert session.next(0.1, monotonic() + 0.5) is None
    assert monotonic() - began < 10


@pytest.mark.parametrize("words", [b"", b"a b xyz", b"\xff\xfe 1 1", b"a 1 -5"])
def test_a_malformed_message_of_the_broker_closes_the_connection(words: Any) -> None:
    connection = Connection.__new__(Connection)
    connection.max_payload = 100
    with pytest.raises(ConnectionLost):
        connection._message(words, False)


@pytest.mark.parametrize("payload", [b"3", b"[]", b"not JSON", b'{"error": 3}', b'{"error": {"err_code": "x"}}'])
def test_a_malformed_response_of_jetstream_closes_the_connection(payload: Any) -> None:
    with pytest.raises(ConnectionLost):
        Connection.checked(Message("", "", payload))
    with pytest.raises(JetStreamError):
        Connection.checked(Message("", "", b'{"error": {"err_code": 7, "description": "no"}}'))
