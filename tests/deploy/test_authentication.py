"""Certificates that are unknown, foreign, expired, revoked or somebody else's, at a real broker and a real depot:
refused, counted, and the others go on."""

import threading
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic, sleep

import pytest

from hansa.core import wire
from hansa.core.messages import DescribeData, Failure, Train, Update
from hansa.deploy import authority
from hansa.deploy.agent import Agent
from hansa.deploy.coordinator import serve
from hansa.deploy.join import SiloService
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.blob_client import BlobClient
from hansa.deploy.network.connection import ConnectionLost, Connection, Refused
from hansa.deploy.network.envelope import sign_envelope, open_envelope
from hansa.deploy.network.journal import Journal
from hansa.deploy.network.link import LATE, TWICE, Pending
from hansa.deploy.network.retry import GaveUp, Retry
from hansa.deploy.server_session import server_session
from hansa.runs.ledger import Ledger
from tests.deploy.conftest import Log, joined, make_kits


@pytest.fixture
def kits(federation, tmp_path):
    return make_kits(federation(), tmp_path / "kits")


@pytest.fixture
def link(kits, tmp_path):
    """A coordinator that asks nothing yet."""
    with server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, lambda text: None) as link:
        yield link


def connect(kit: Kit, place=None) -> Connection:
    place = place or kit.parent
    return Connection((place.host, place.port), kit.client_tls(), kit.parent_subjects.inbox(kit.name))


def carrier(kit: Kit, seconds: float) -> BlobClient:
    until, place = monotonic() + seconds, kit.parent
    return BlobClient(
        (place.host, place.blob_port), kit.client_tls(), lambda: Retry(lambda text: None, lambda: False, until)
    )


def carry(kit: Kit, seconds: float = 3.0) -> None:
    """Ask the depot for something."""
    until = monotonic() + seconds
    place = kit.parent
    porter = BlobClient(
        (place.host, place.blob_port), kit.client_tls(), lambda: Retry(lambda text: None, lambda: False, until)
    )
    try:
        porter.fetch(("0" * 32, 4), memoryview(bytearray(4)))
    finally:
        porter.close()


def refusals(folder) -> dict:
    journal = Journal(folder / "server" / "journal.sqlite")
    try:
        return journal.refusals()
    finally:
        journal.close()


def shut_out(kit: Kit) -> None:
    """Neither the broker nor the depot lets it in."""
    with pytest.raises(ConnectionLost):  # noqa: PT012
        connection = connect(kit)
        try:
            connection.request(kit.parent_subjects.latest(kit.parent_subjects.request(kit.name)))
        finally:
            connection.close()
    with pytest.raises(GaveUp):
        carry(kit)


def test_a_certificate_of_another_authority_is_refused(link, kits, federation, tmp_path):
    foreign = make_kits(federation(), tmp_path / "foreign")
    for file in ("cert.pem", "key.pem"):
        (kits / "north" / file).write_bytes((foreign / "north" / file).read_bytes())
    shut_out(Kit(kits / "north"))


def test_an_expired_certificate_is_refused(link, kits):
    kit = Kit(kits / "north")
    authority.Authority(kits / "authority").certify(kit.folder, kit.key.public_key(), kit.info, 1, days=-0.02)
    shut_out(kit)


def test_a_generation_that_nobody_listed_is_refused(link, kits):
    kit = Kit(kits / "north")
    authority.Authority(kits / "authority").certify(kit.folder, kit.key.public_key(), kit.info, 9, days=30)
    shut_out(kit)


def test_a_member_of_the_federation_below_another_parent_is_refused(link, kits):
    card = Kit(kits / "north").info.model_copy(update={"node": "stranger"})
    kit = Kit(kits / "north")
    authority.Authority(kits / "authority").certify(kit.folder, kit.key.public_key(), card, 1, days=30)
    shut_out(kit)


def test_whoever_is_revoked_is_cut_off_at_once(link, kits):
    north, south = connect(Kit(kits / "north")), connect(Kit(kits / "south"))
    question = Kit(kits / "north").parent_subjects.latest(Kit(kits / "north").parent_subjects.request("north"))
    assert north.request(question).status == 404, "a letter box that is empty"
    authority.revoke(kits, "north")
    with pytest.raises(ConnectionLost):  # noqa: PT012
        until = monotonic() + 300
        while monotonic() < until:
            north.request(question)
            sleep(0.05)
    shut_out(Kit(kits / "north"))
    assert south.request(Kit(kits / "south").parent_subjects.latest(Kit(kits / "south").parent_subjects.request("south"))).status == 404
    north.close()
    south.close()


def test_a_silo_speaks_and_listens_only_where_it_may(link, kits):
    kit = Kit(kits / "north")
    subjects, north = kit.parent_subjects, connect(kit)
    south = connect(Kit(kits / "south"))
    south.subscribe(subjects.request("south"))
    for subject in (
        subjects.reply("south"),
        subjects.request("south"),
        subjects.request("north"),
        subjects.heartbeat("south"),
    ):
        north.publish(subject, b"forged")
    for subject in (f"{subjects.root}.>", subjects.request("south"), "_INBOX.>", ">", subjects.inbox("south") + ".>"):
        north.subscribe(subject)
    for api in (f"STREAM.DELETE.{subjects.stream}", f"STREAM.PURGE.{subjects.stream}", "STREAM.NAMES", "INFO"):
        north.publish(f"$JS.API.{api}", b"{}", north.inbox(1))
    north.publish(subjects.latest(subjects.request("south")), b"", north.inbox(2))
    north.publish(f"$JS.API.DIRECT.GET.{subjects.stream}", b'{"seq": 1}', north.inbox(3))
    assert north.request(subjects.latest(subjects.request("north"))).status == 404, "all before this was dealt with"
    assert north.next(0.1) is None
    assert south.next(0.1) is None
    assert len(north.errors) == 10, "only the last ten are kept"
    assert all("Permissions Violation" in error for error in north.errors)
    owner = Connection((kit.parent.host, kit.parent.port), Kit(kits / COORDINATOR).client_tls(),
                       Kit(kits / COORDINATOR).child_subjects.inbox(COORDINATOR))  # fmt: skip
    assert owner.ask(f"STREAM.INFO.{subjects.stream}")["state"]["messages"] == 0, "nothing got in"
    for connection in (north, south, owner):
        connection.close()


def test_a_letter_that_is_too_large_ends_its_senders_connection_and_nothing_else(link, kits):
    kit = Kit(kits / "north")
    north = connect(kit)
    with pytest.raises((ConnectionLost, Refused)):
        north.checked(north.request(kit.parent_subjects.reply("north"), b"x" * (1 << 20)))
    north.close()
    again = connect(kit)
    assert again.request(kit.parent_subjects.latest(kit.parent_subjects.request("north"))).status == 404
    again.close()


@contextmanager
def bad_agent(kit, home, service):
    agent = Agent(kit, home, service, lambda text: None)
    thread = threading.Thread(target=agent.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        agent.stop()
        thread.join(300)
        assert not thread.is_alive()


class Lying(SiloService):
    """Answers training with nonsense, differently in every round."""

    def open(self, folder, settings):
        honest = super().open(folder, settings)

        def answer(request):
            reply = honest(request)
            if not isinstance(request, Train):
                return reply
            assert isinstance(reply, Update)
            if request.round == 1:
                reply.gradient.flat.fill_(float("nan"))
                return reply
            return replace(reply, samples=-1) if request.round == 2 else DescribeData()

        return answer


def test_a_silo_that_sends_nonsense_is_left_out_and_the_round_goes_on(federation, tmp_path):
    settings, log = federation(rounds=3, evaluate={"every": 9, "share": 1.0}), Log()
    kits = make_kits(settings, tmp_path / "kits")
    honest = settings.model_copy(update={"silos": {n: s for n, s in settings.silos.items() if n != "east"}})
    kit = Kit(kits / "east")
    service = Lying(kit, settings.silos["east"].sources, ())
    with joined(honest, kits, tmp_path / "silos", log.say), bad_agent(kit, tmp_path / "silos" / "east", service):
        outcome = serve(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, log)
    ledger = Ledger(outcome.folder)
    lost = ledger.select("select round, node, text from events where kind='lost' order by round")
    ledger.close()
    assert [(round, node) for round, node, _ in lost] == [(1, "east"), (2, "east"), (3, "east")]
    assert "not finite" in lost[0][2]
    assert "claims -1 samples" in lost[1][2]
    assert "a Describe is no reply" in lost[2][2]
    assert ("east", "a Describe is no reply") in refusals(tmp_path / "run")


def test_forged_doubled_and_late_letters_do_not_count(link, kits, tmp_path):
    """South writes what north would say, nonsense, an answer to another question; then its answer, twice."""
    kit = Kit(kits / "south")
    subjects, south = kit.parent_subjects, connect(kit)
    south.subscribe(subjects.request("south"))
    south.request(subjects.latest(subjects.request("south")))  # the subscription is made when this is answered
    taken: list = []
    answers = link.ask({"south": DescribeData()}, monotonic() + 300.0)
    asker = threading.Thread(target=lambda: taken.extend(answers))
    asker.start()
    heard = south.next(300)
    assert heard is not None
    letter = open_envelope(heard.payload, COORDINATOR, "south", kit.public_key(COORDINATOR))
    porter = carrier(kit, 300.0)
    text = porter.upload(memoryview(wire.split(Failure("enough"))[0].encode()), letter.request)
    good = replace(letter, sender="south", receiver=COORDINATOR, kind="Failure", text=text, settings=None, until=None)
    for said in (
        sign_envelope(replace(good, sender="north"), kit.key),
        b"nonsense",
        sign_envelope(good, Kit(kits / "north").key),
        sign_envelope(replace(good, request="f" * 32), kit.key),
        sign_envelope(good, kit.key),
        sign_envelope(good, kit.key),
    ):
        south.checked(south.request(subjects.reply("south"), said))
    asker.join(300)
    porter.close()
    south.close()
    [answer] = taken
    assert answer.reply == Failure("enough")
    assert {reason for node, reason in refusals(tmp_path) if node == "south"} == {
        "it is from 'north' to 'coordinator'",
        "a letter of 8 bytes",
        "its signature is not the sender's",
        LATE,
    }
    assert sum(times for (node, _), times in refusals(tmp_path).items() if node == "south") >= 4
    link._pending["south"] = Pending(letter, 0)  # as while another silo is waited for
    for _ in range(3):
        link._hear("south", sign_envelope(good, kit.key), fresh=True)
    assert refusals(tmp_path)["south", TWICE] == 2
