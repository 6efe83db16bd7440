"""Certificates that are unknown, foreign, expired or revoked, at a real broker and blob server: refused and counted."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from hansa.core import wire
from hansa.core.messages import DescribeData, Failure, Request, Train, Update
from hansa.deploy import authority
from hansa.deploy.agent import Agent
from hansa.deploy.coordinator import serve
from hansa.deploy.join import SiloService
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.address import ConnectionLost
from hansa.deploy.network.blob_client import BlobClient
from hansa.deploy.network.connection import Connection, JetStreamError
from hansa.deploy.network.envelope import open_envelope, sign_envelope
from hansa.deploy.network.journal import Journal
from hansa.deploy.network.link import DUPLICATE_REPLY, REPLY_TOO_LATE
from hansa.deploy.network.open_requests import PendingRequest
from hansa.deploy.network.retry import GaveUp, Retry
from hansa.deploy.network.route import Route
from hansa.deploy.server_session import server_session
from hansa.runs.ledger import Ledger
from tests.conftest import Build
from tests.deploy.conftest import Log, joined, make_kits


@pytest.fixture
def kits(federation: Build, tmp_path: Path) -> Any:
    return make_kits(federation(), tmp_path / "kits")


@pytest.fixture
def link(kits: Any, tmp_path: Path) -> Iterator[Any]:
    """A coordinator that has sent no request yet."""
    with server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, lambda text: None) as link:
        yield link


def connect(kit: Kit) -> Connection:
    return Connection(kit.route(), kit.key, kit.parent_subjects.inbox(kit.name))


def blob_client(kit: Kit, seconds: float) -> BlobClient:
    until = monotonic() + seconds
    return BlobClient(kit.route(), lambda: Retry(lambda text: None, lambda: False, until))


def fetch_blob(kit: Kit, seconds: float = 3.0) -> None:
    """Ask the blob server for a blob."""
    blobs = blob_client(kit, seconds)
    try:
        blobs.fetch(("0" * 32, 4), memoryview(bytearray(4)))
    finally:
        blobs.close()


def refusals(folder: Path) -> dict[tuple[str, str], int]:
    journal = Journal(folder / "server" / "journal.sqlite")
    try:
        return journal.refusals()
    finally:
        journal.close()


def assert_refused(kit: Kit) -> None:
    """Neither the broker nor the blob server accepts the kit."""
    with pytest.raises(ConnectionLost):  # noqa: PT012
        connection = connect(kit)
        try:
            connection.request(kit.parent_subjects.latest(kit.parent_subjects.request(kit.name)))
        finally:
            connection.close()
    with pytest.raises(GaveUp):
        fetch_blob(kit)


def recertify(kits: Path, kit: Kit, info: Any, generation: int, days: float) -> None:
    """Put another certificate of the federation's authority into a kit."""
    pem = authority.Authority(kits / "authority").certify(kit.key.public_key(), info, generation, days)
    (kit.folder / "cert.pem").write_bytes(pem)


def test_a_certificate_of_another_authority_is_refused(link: Any, kits: Any, federation: Build, tmp_path: Path) -> None:
    foreign = make_kits(federation(), tmp_path / "foreign")
    for file in ("cert.pem", "key.pem"):
        (kits / "north" / file).write_bytes((foreign / "north" / file).read_bytes())
    assert_refused(Kit(kits / "north"))


def test_an_expired_certificate_is_refused(link: Any, kits: Any) -> None:
    kit = Kit(kits / "north")
    recertify(kits, kit, kit.info, 1, days=-0.02)
    assert_refused(kit)


def test_an_unlisted_generation_is_refused(link: Any, kits: Any) -> None:
    kit = Kit(kits / "north")
    recertify(kits, kit, kit.info, 9, days=30)
    assert_refused(kit)


def test_a_certificate_of_an_unknown_node_is_refused(link: Any, kits: Any) -> None:
    card = Kit(kits / "north").info.model_copy(update={"node": "unknown"})
    kit = Kit(kits / "north")
    recertify(kits, kit, card, 1, days=30)
    assert_refused(kit)


def test_a_revoked_member_is_disconnected_at_once(link: Any, kits: Any) -> None:
    north, south = connect(Kit(kits / "north")), connect(Kit(kits / "south"))
    question = Kit(kits / "north").parent_subjects.latest(Kit(kits / "north").parent_subjects.request("north"))
    assert north.request(question).status == 404, "no request is stored"
    authority.revoke(kits, "north")
    with pytest.raises(ConnectionLost):  # noqa: PT012
        until = monotonic() + 300
        while monotonic() < until:
            north.request(question)
            sleep(0.05)
    assert_refused(Kit(kits / "north"))
    assert (
        south.request(
            Kit(kits / "south").parent_subjects.latest(Kit(kits / "south").parent_subjects.request("south"))
        ).status
        == 404
    )
    north.close()
    south.close()


def test_a_silo_publishes_and_subscribes_only_to_its_own_subjects(link: Any, kits: Any) -> None:
    kit = Kit(kits / "north")
    subjects, north = kit.parent_subjects.of_run(link.run), connect(kit)
    south = connect(Kit(kits / "south"))
    south.subscribe(subjects.request("south"))
    for subject in (
        subjects.reply("south"),
        subjects.request("south"),
        subjects.request("north"),
        subjects.heartbeat("south"),
        subjects.note("south"),
        subjects.note("north"),
    ):
        north.publish(subject, b"forged")
    forbidden = (f"{subjects.root}.>", *subjects.heard_by("south"), "_INBOX.>", ">", subjects.inbox("south") + ".>")
    for subject in forbidden:
        north.subscribe(subject)
    for api in (f"STREAM.DELETE.{subjects.stream}", f"STREAM.PURGE.{subjects.stream}", "STREAM.NAMES", "INFO"):
        north.publish(f"$JS.API.{api}", b"{}", north.inbox(1))
    north.publish(subjects.latest(subjects.request("south")), b"", north.inbox(2))
    north.publish(f"$JS.API.DIRECT.GET.{subjects.stream}", b'{"seq": 1}', north.inbox(3))
    assert north.request(subjects.latest(subjects.request("north"))).status == 404, (
        "the server has processed everything before this"
    )
    assert north.next(0.1) is None
    assert south.next(0.1) is None
    assert len(north.errors) == 10, "only the last ten are kept"
    assert all("Permissions Violation" in error for error in north.errors)
    coordinator = Kit(kits / COORDINATOR)
    route = Route(kit.parent.all, coordinator.client_tls())
    owner = Connection(route, coordinator.key, coordinator.child_subjects.inbox(COORDINATOR))
    for kind in ("req", "rep"):
        found = owner.ask(f"STREAM.INFO.{subjects.stream}", {"subjects_filter": f"{subjects.root}.{kind}.>"})
        assert not found["state"].get("subjects"), "nothing was stored"
    for connection in (north, south, owner):
        connection.close()


def test_a_message_that_is_too_large_ends_only_the_connection_of_its_sender(link: Any, kits: Any) -> None:
    kit = Kit(kits / "north")
    north = connect(kit)
    with pytest.raises((ConnectionLost, JetStreamError)):
        north.checked(north.request(kit.parent_subjects.reply("north"), b"x" * (1 << 20)))
    north.close()
    again = connect(kit)
    assert again.request(kit.parent_subjects.latest(kit.parent_subjects.request("north"))).status == 404
    again.close()


@contextmanager
def run_agent(kit: Any, home: Any, service: Any) -> Iterator[Any]:
    agent = Agent(kit, home, service, lambda text: None)
    thread = threading.Thread(target=agent.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        agent.stop()
        thread.join(300)
        assert not thread.is_alive()


class InvalidUpdates(SiloService):
    """Answers training with invalid updates, different ones in every round."""

    def open_run(self, folder: Any, settings: Any) -> Any:
        honest = super().open_run(folder, settings)

        def answer(request: Request) -> Any:
            reply = honest(request)
            if not isinstance(request, Train):
                return reply
            assert isinstance(reply, Update)
            if request.round == 1:
                reply.gradient.flat.fill_(float("nan"))
                return reply
            return replace(reply, samples=-1) if request.round == 2 else DescribeData()

        return answer


def test_a_silo_with_invalid_updates_is_left_out_of_the_round(federation: Build, tmp_path: Path) -> None:
    settings, log = federation(rounds=3, evaluate={"every": 9, "share": 1.0}), Log()
    kits = make_kits(settings, tmp_path / "kits")
    honest = settings.model_copy(update={"silos": {n: s for n, s in settings.silos.items() if n != "east"}})
    kit = Kit(kits / "east")
    service = InvalidUpdates(kit, settings.silos["east"].sources, ())
    with joined(honest, kits, tmp_path / "silos", log.say), run_agent(kit, tmp_path / "silos" / "east", service):
        outcome = serve(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, [log])
    ledger = Ledger(outcome.folder)
    lost = ledger.select("select round, node, text from events where kind='lost' order by round")
    ledger.close()
    assert [(round, node) for round, node, _ in lost] == [(1, "east"), (2, "east"), (3, "east")]
    assert "not finite" in lost[0][2]
    assert "claims -1 samples" in lost[1][2]
    assert "a DescribeData is not a reply" in lost[2][2]
    assert ("east", "a DescribeData is not a reply") in refusals(tmp_path / "run")


def test_forged_duplicate_and_late_replies_are_rejected(link: Any, kits: Any, tmp_path: Path) -> None:
    """South sends a reply in the name of north, random bytes, a reply to another request; then its reply, twice."""
    kit = Kit(kits / "south")
    subjects, south = kit.parent_subjects.of_run(link.run), connect(kit)
    south.subscribe(subjects.request("south"))
    south.request(subjects.latest(subjects.request("south")))  # the subscription exists when this is answered
    taken: list[Any] = []
    answers = link.ask({"south": DescribeData()}, monotonic() + 300.0)
    asker = threading.Thread(target=lambda: taken.extend(answers))
    asker.start()
    message = south.next(300)
    assert message is not None
    envelope = open_envelope(message.payload, COORDINATOR, "south", kit.public_key(COORDINATOR))
    blobs = blob_client(kit, 300.0)
    text = blobs.upload(memoryview(wire.split(Failure("enough"))[0].encode()), envelope.request)
    good = replace(
        envelope,
        sender="south",
        receiver=COORDINATOR,
        kind="Failure",
        text=text,
        settings=None,
        deadline=None,
        instance="0123456789abcdef.1",
    )
    for data in (
        sign_envelope(replace(good, sender="north"), kit.key),
        b"nonsense",
        sign_envelope(good, Kit(kits / "north").key),
        sign_envelope(replace(good, request="f" * 32), kit.key),
        sign_envelope(replace(good, instance=""), kit.key),
        sign_envelope(good, kit.key),
        sign_envelope(good, kit.key),
    ):
        south.checked(south.request(subjects.reply("south"), data))
    asker.join(300)
    blobs.close()
    south.close()
    [answer] = taken
    assert answer.reply == Failure("enough")
    assert {reason for node, reason in refusals(tmp_path) if node == "south"} == {
        "the envelope is from 'north' to 'coordinator'",
        "the envelope has 8 bytes; 65 to 49152 are allowed",
        "the signature is not the sender's",
        REPLY_TOO_LATE,
        "it names no process",
    }
    assert sum(times for (node, _), times in refusals(tmp_path).items() if node == "south") >= 4
    link._open.add(
        envelope.request, PendingRequest("south", envelope, 0, frozenset())
    )  # as while another silo is awaited
    for _ in range(3):
        link._receive("south", sign_envelope(good, kit.key), notified=True)
    assert refusals(tmp_path)["south", DUPLICATE_REPLY] == 2
