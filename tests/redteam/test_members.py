"""Attacks on keys and membership: old lists, two authorities, copied kits, invented members.

Each attack succeeds with its defence switched off. Sockets, certificates, broker and agents are real; the attacks with
real processes are in test_member_processes.py.
"""

import shutil
import threading
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hansa.core.messages import DescribeData, Failure
from hansa.deploy import authority, membership
from hansa.deploy.agent import Agent
from hansa.deploy.certificates import authority_certificate, public_hex
from hansa.deploy.identity_watch import IdentityWatch
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.membership import ListRefused, Member, MemberStore, parse_members, sign_members
from hansa.deploy.network.connection import Connection, ConnectionLost
from hansa.deploy.network.envelope import open_envelope, sign_envelope
from hansa.deploy.network.heartbeat import open_heartbeat, sign_heartbeat
from hansa.deploy.network.note import Note, list_in, open_note, pack_list, sign_note
from hansa.deploy.network.presence import Presence
from hansa.deploy.server_session import server_session
from hansa.deploy.signatures import KitSigner
from hansa.privacy.secure_aggregation.announcement import Announcement
from hansa.privacy.secure_aggregation.protocol import Refused, Secrets
from tests.cli.test_cli import ok
from tests.conftest import Build
from tests.deploy.conftest import make_kits

WAIT_SECONDS = 60.0
KEY = Ed25519PrivateKey.generate()
CA = authority_certificate(KEY, "small")


def wait(what: str, condition: Callable[[], object]) -> None:
    until = monotonic() + WAIT_SECONDS
    while not condition():
        assert monotonic() < until, f"{what}: not within {WAIT_SECONDS:.0f} s"
        sleep(0.02)


@pytest.fixture
def kits(federation: Build, tmp_path: Path) -> Path:
    return make_kits(federation(), tmp_path / "kits")


# ── lists of members ──────────────────────────────────────────────────────────────────────────────────────────────


def members(*revoked: str) -> dict[str, Member]:
    names = ["coordinator", "north", "south"]
    return {n: Member(key="00" * 32, kind="silo", parent=None, generations=() if n in revoked else (1,)) for n in names}


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.booleans()), max_size=12))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_lists_arrive_in_whatever_order_the_serial_number_never_falls(
    tmp_path_factory: pytest.TempPathFactory, arriving: list[tuple[int, bool, bool]]
) -> None:
    """Oracle: of each serial number the first list counts, and the highest number so far. Files, offers, restarts."""
    kit, home = tmp_path_factory.mktemp("kit"), tmp_path_factory.mktemp("home")
    (kit / "ca.pem").write_bytes(CA)
    texts = {
        (serial, other): sign_members("small", serial, members("north") if other else members(), KEY)
        for serial in range(7)
        for other in (False, True)
    }
    (kit / "members.json").write_text(texts[0, False])
    expected, store = (0, False), MemberStore(kit, [home])
    assert store.current().serial == 0
    for serial, other, restart in arriving:
        if restart:
            (kit / "members.json").write_text(texts[serial, other])
            store = MemberStore(kit, [home])
        else:
            try:
                store.offer(texts[serial, other])
            except ListRefused:
                assert serial <= expected[0]
        if serial > expected[0]:
            expected = serial, other
        assert store.current().text == texts[expected]


def replayed(kits: Path, name: str, defended: bool, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """An old list of members; without the defence, nodes accept any list that the authority has signed."""
    if not defended:
        monkeypatch.setattr(membership, "check_successor", lambda newer, known: None)
        monkeypatch.setattr(membership, "NEWEST", "no-such-file")
        monkeypatch.setattr(MemberStore, "_remember", lambda self, newest: True)
    return (kits / name / "members.json").read_bytes()


def connects(kit: Kit) -> bool:
    try:
        connection = Connection(kit.parent.broker_address, kit.client_tls(), kit.parent_subjects.inbox(kit.name))
    except ConnectionLost:
        return False
    connection.close()
    return True


@pytest.mark.parametrize("defended", [True, False])
def test_a_replayed_list_does_not_bring_a_revoked_silo_back(
    kits: Path, tmp_path: Path, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the coordinator, while it runs and after a restart with the files of the kit put back from a backup."""
    old = replayed(kits, COORDINATOR, defended, monkeypatch)
    backup = shutil.copytree(kits / COORDINATOR, tmp_path / "backup")
    lines: list[str] = []
    with server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, lines.append):
        assert connects(Kit(kits / "north"))
        authority.revoke(kits, "north")
        wait("the revocation", lambda: not connects(Kit(kits / "north")))
        (kits / COORDINATOR / "members.json").write_bytes(old)
        if defended:
            sleep(1.0)
            assert not connects(Kit(kits / "north"))
        else:
            wait("the attack succeeds", lambda: connects(Kit(kits / "north")))
    for file in backup.glob("members*.json"):
        shutil.copy(file, kits / COORDINATOR)
    with server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, lines.append):
        assert connects(Kit(kits / "north")) != defended, "also after a restart"


@pytest.mark.parametrize("defended", [True, False])
def test_a_replayed_list_does_not_bring_a_revoked_coordinator_back(
    kits: Path, tmp_path: Path, defended: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At a silo: while it runs, after a restart, and when all files of its kit are put back from a backup."""
    old = replayed(kits, "north", defended, monkeypatch)
    home = tmp_path / "home"
    kit = Kit(kits / "north", home)
    backup = shutil.copytree(kits / "north", tmp_path / "backup")
    authority.revoke(kits, COORDINATOR)
    assert not kit.trusts(COORDINATOR)
    (kits / "north" / "members.json").write_bytes(old)
    assert kit.trusts(COORDINATOR) != defended
    assert Kit(kits / "north", home).trusts(COORDINATOR) != defended
    shutil.rmtree(kits / "north")
    shutil.copytree(backup, kits / "north")
    assert Kit(kits / "north", home).trusts(COORDINATOR) != defended
    if defended:
        assert "an old list was put back" in caplog.text


def test_a_coordinator_that_withholds_or_replays_a_list_cannot_lower_the_silos_list(kits: Path, tmp_path: Path) -> None:
    """Notes carry lists: a newer one is used without a restart, an older one is refused, a forged one as well."""
    copies = shutil.copytree(kits, tmp_path / "copies")  # the authority does not reach these kits
    warned: list[str] = []
    agent = Agent(Kit(copies / "north"), tmp_path / "home", Nobody(), no_log, warn=warned.append)
    old = (kits / COORDINATOR / "members.json").read_text()
    authority.revoke(kits, "east")
    newest = (kits / COORDINATOR / "members.json").read_text()
    key = Kit(kits / COORDINATOR).key

    def note(text: str) -> bytes:
        return sign_note(Note(COORDINATOR, "north", time(), "", pack_list(text)), key)

    agent._receive_note(note(newest))
    assert agent._kit.serial == 2
    assert not agent._kit.trusts("east")
    agent._receive_note(note(old))
    forged = sign_members("small", 9, dict(agent._kit.members()), key)  # signed by the coordinator
    agent._receive_note(note(forged))
    assert agent._kit.serial == 2
    assert not agent._kit.trusts("east")
    assert any("an old list was put back" in line for line in warned)
    assert any("it is not signed by the federation's authority" in line for line in warned)
    assert Kit(copies / "north").serial == 2, "also after a restart"


def test_notes_that_the_parent_did_not_sign_and_bombs_are_refused() -> None:
    note = Note(COORDINATOR, "north", 5.0, "", pack_list("{}"))
    whole = sign_note(note, KEY)
    assert open_note(whole, COORDINATOR, "north", KEY.public_key()) == note
    assert list_in(whole) == b"{}"
    bomb = sign_note(replace(note, members=pack_list_of(50 << 20)), KEY)
    for data in (
        whole[:-1],
        sign_note(note, Ed25519PrivateKey.generate()),
        sign_note(replace(note, receiver="x"), KEY),
    ):
        with pytest.raises(ValueError, match="note"):
            open_note(data, COORDINATOR, "north", KEY.public_key())
    with pytest.raises(ValueError, match="too long"):
        list_in(bomb)


def pack_list_of(size: int) -> str:
    return b64encode(zlib.compress(b" " * size, 9)).decode()[: 40 << 10]


@pytest.mark.parametrize("defended", [True, False])
def test_two_copies_of_an_authority_are_noticed(
    kits: Path, tmp_path: Path, defended: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy of the authority's folder revokes another member under the same serial number."""
    if not defended:
        monkeypatch.setattr(membership, "check_successor", lambda newer, known: None)
    twin = shutil.copytree(kits / "authority", tmp_path / "twin" / "authority")
    authority.revoke(kits, "east")
    kit = Kit(kits / "north")
    assert not kit.trusts("east")
    authority.revoke(twin, "south")
    shutil.copy(twin / "members.json", kits / "north" / "members.json")
    assert kit.trusts("south") == defended
    assert (kits / "north" / "members.conflict.json").exists() == defended, "the second list is kept as evidence"
    if defended:
        assert "two copies of the authority sign lists" in caplog.text
        ca = (kits / "authority" / "ca.pem").read_bytes()
        assert parse_members((kits / "north" / "members.conflict.json").read_bytes(), ca).serial == kit.serial


# ── a copied kit ──────────────────────────────────────────────────────────────────────────────────────────────────


class Nobody:
    """Answers every request with a failure that names the agent."""

    anchors = None

    def __init__(self, name: str = "nobody") -> None:
        self.name, self.refusals = name, list[str]()

    def open_run(self, folder: Path, settings: bytes) -> Any:
        return lambda request: Failure(f"answer of {self.name}")

    def log_refusal(self, message: str, round: int, reason: str) -> None:
        self.refusals.append(reason)


def no_log(text: str) -> None:
    pass


class Scene:
    """A coordinator's session, and agents of north; ``lines``: the coordinator's log."""

    def __init__(self, kits: Path, folder: Path) -> None:
        self.kits, self.folder, self.lines = kits, folder, list[str]()
        self.services: dict[str, Nobody] = {}

    @contextmanager
    def agent(self, kit: Path, home: Path, name: str) -> Iterator[Agent]:
        self.services[name] = Nobody(name)
        agent = Agent(Kit(kit), home, self.services[name], no_log)
        thread = threading.Thread(target=agent.run, daemon=True)
        thread.start()
        try:
            wait("the agent is connected", lambda: agent._receiving is not None and agent._receiving.connected)
            yield agent
        finally:
            agent.stop()
            thread.join(60)
            assert not thread.is_alive()

    def ask(self, link: Any, seconds: float = 20.0) -> str:
        link.share_settings(b"{}")
        [answer] = link.ask({"north": DescribeData()}, monotonic() + seconds)
        return str(answer.reply.reason)

    @property
    def suspended(self) -> bool:
        return any(line.startswith("ALARM: north is suspended") for line in self.lines)


@pytest.fixture
def scene(kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr("hansa.deploy.agent.HEARTBEAT_SECONDS", 0.3)
    return Scene(kits, tmp_path)


@pytest.fixture
def link(scene: Scene) -> Iterator[Any]:
    with server_session(
        Kit(scene.kits / COORDINATOR), scene.folder / "run" / "server", None, scene.lines.append
    ) as link:
        yield link


@pytest.mark.parametrize("copied", ["kit", "kit and home"])
def test_a_stolen_kit_raises_an_alarm_on_both_sides_and_neither_is_served(scene: Scene, link: Any, copied: str) -> None:
    own, theirs = scene.kits / "north", scene.folder / "stolen"
    with scene.agent(own, scene.folder / "home", "owner") as owner:
        assert scene.ask(link) == "answer of owner"
        shutil.copytree(own, theirs)
        if copied == "kit and home":
            shutil.copytree(scene.folder / "home", scene.folder / "thief-home")
        with scene.agent(theirs, scene.folder / "thief-home", "thief") as thief:
            wait("the alarm of the coordinator", lambda: scene.suspended)
            wait("the alarms of both agents", lambda: owner._watch.own_alarm and thief._watch.own_alarm)
            assert "another agent uses the identity of 'north'" in owner.not_ready()
            said = scene.ask(link)
            assert "two agents use its identity" in said or "it has seen another agent" in said
    assert any("another agent" in reason for reason in scene.services["owner"].refusals), "the audit log has it"
    with scene.agent(own, scene.folder / "home", "owner") as owner:
        assert owner._watch.own_alarm, "also after a restart, when the thief is gone"
        assert not scene.ask(link, 3.0).startswith("answer of")
        assert "the alarm is over" in ok("kit", "resolve", str(scene.folder / "home"))
        sleep(1.0)
        assert "the alarm is over" in ok("kit", "resolve", str(scene.folder / "run"), "north")
        assert "there was no alarm" in ok("kit", "resolve", str(scene.folder / "run"), "north")
        wait("the end of the alarm", lambda: not owner.not_ready())
        assert scene.ask(link) == "answer of owner", "the operators have stated that it is resolved"


def test_without_the_defence_a_stolen_kit_works_beside_the_real_one(
    scene: Scene, link: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Presence, "_observe", lambda *_: None)
    monkeypatch.setattr(IdentityWatch, "_judge", lambda *_: None)
    shutil.copytree(scene.kits / "north", scene.folder / "stolen")
    with scene.agent(scene.folder / "stolen", scene.folder / "thief-home", "thief"):
        with scene.agent(scene.kits / "north", scene.folder / "home", "owner"):
            sleep(1.0)
        assert scene.ask(link) == "answer of thief"
    assert not scene.suspended


def test_restarts_and_late_messages_of_an_earlier_process_are_no_alarm(scene: Scene, link: Any) -> None:
    """Negative control of the alarm: the same home, started three times, with an old heartbeat that arrives late."""
    home = scene.folder / "home"
    subjects = Kit(scene.kits / "north").parent_subjects
    late: list[bytes] = []
    for _ in range(3):
        with scene.agent(scene.kits / "north", home, "owner") as agent:
            kit = Kit(scene.kits / "north")
            if late:
                with broker(kit) as connection:
                    connection.publish(subjects.heartbeat("north"), late[0])
            assert scene.ask(link) == "answer of owner"
            assert not agent.not_ready()
            late = late or [sign_heartbeat(heartbeat_of(agent), kit.key)]
    assert not scene.suspended


def heartbeat_of(agent: Agent) -> Any:
    """A heartbeat as the agent sends it now."""
    sent: list[bytes] = []

    class Recorder:
        def publish(self, subject: str, data: bytes) -> None:
            sent.append(data)

    agent._send_heartbeat(Recorder())  # type: ignore[arg-type]
    kit = agent._kit
    return open_heartbeat(sent[0], kit.name, kit.parent.node, kit.key.public_key())


@contextmanager
def broker(kit: Kit) -> Iterator[Connection]:
    connection = Connection(kit.parent.broker_address, kit.client_tls(), kit.parent_subjects.inbox(kit.name))
    try:
        yield connection
        connection.request(kit.parent_subjects.latest(kit.parent_subjects.request(kit.name)))  # all is processed
    finally:
        connection.close()


@pytest.mark.parametrize("trick", ["same process", "reply only", "earlier start", "stranger"])
def test_a_thief_who_imitates_the_agents_process_is_noticed(scene: Scene, link: Any, trick: str) -> None:
    """The thief reads the agent's heartbeats, which its stolen certificate allows, and sends the same names."""
    kit = Kit(scene.kits / "north")
    subjects = kit.parent_subjects
    with scene.agent(scene.kits / "north", scene.folder / "home", "owner") as owner:
        assert scene.ask(link) == "answer of owner"
        own = heartbeat_of(owner)
        started = owner._watch.instance.started
        with broker(kit) as connection:
            if trick == "same process":
                connection.publish(subjects.heartbeat("north"), sign_heartbeat(replace(own, phase="working"), kit.key))
            elif trick == "earlier start":
                older = replace(own, instance=f"{owner._watch.instance.id}.{started - 1}", at=time())
                connection.publish(subjects.heartbeat("north"), sign_heartbeat(older, kit.key))
            elif trick == "reply only":
                stored = connection.request(subjects.latest(subjects.request("north")))
                asked = open_envelope(bytes(stored.payload), COORDINATOR, "north", kit.public_key(COORDINATOR))
                reply = replace(
                    asked, sender="north", receiver=COORDINATOR, kind="Failure", settings=None, start=None,
                    deadline=None, instance=str(owner._watch.instance), sent_at=time(),
                )  # fmt: skip
                connection.publish(subjects.reply("north"), sign_envelope(reply, kit.key))
            else:  # without the key nothing happens: a negative control
                forged = sign_heartbeat(replace(own, instance="0" * 16 + ".5"), Ed25519PrivateKey.generate())
                connection.publish(subjects.heartbeat("north"), forged)
        if trick == "stranger":
            sleep(1.0)
            assert not owner.not_ready()
            assert not scene.suspended
            assert scene.ask(link) == "answer of owner"
            return
        wait("the alarm of the agent", lambda: owner._watch.own_alarm)
        wait("the alarm of the coordinator", lambda: scene.suspended)
        assert "answer of" not in scene.ask(link, 3.0)


def test_a_new_key_ends_the_alarm_and_the_thief(scene: Scene, link: Any) -> None:
    theirs = shutil.copytree(scene.kits / "north", scene.folder / "stolen")
    with (
        scene.agent(scene.kits / "north", scene.folder / "home", "owner") as owner,
        scene.agent(theirs, scene.folder / "thief-home", "thief") as thief,
    ):
        wait("the alarms", lambda: scene.suspended and owner._watch.own_alarm and thief._watch.own_alarm)
        authority.revoke(scene.kits, "north")
        authority.renew(scene.kits, "north", 30)
        wait("the owner is served again", lambda: not owner.not_ready())
        wait("the suspension ends", lambda: "north has a new key: it is no longer suspended" in scene.lines)
        assert scene.ask(link) == "answer of owner"
        wait("the thief is shut out", lambda: thief._receiving is not None and not thief._receiving.connected)
        assert scene.ask(link) == "answer of owner"


def test_running_agents_receive_a_new_list_through_the_coordinator(scene: Scene, link: Any) -> None:
    """The authority reaches the coordinator's kit alone; the agent uses the new list without a restart."""
    copy = shutil.copytree(scene.kits / "north", scene.folder / "elsewhere" / "north")
    with scene.agent(copy, scene.folder / "home", "owner") as owner:
        assert scene.ask(link) == "answer of owner"
        shutil.rmtree(scene.kits / "north")
        authority.revoke(scene.kits, "east")
        wait("the new list", lambda: owner._kit.serial == 2)
        assert not owner._kit.trusts("east")
        assert scene.ask(link) == "answer of owner"
    assert Kit(copy).serial == 2, "after a restart too"


# ── cohorts of secure aggregation ─────────────────────────────────────────────────────────────────────────────────


class Cohort:
    """Announcements of north, south, east and others, as a coordinator puts them on a roster for north."""

    def __init__(self, kits: Path, folder: Path) -> None:
        self.kits, self.folder = kits, folder
        (folder / "run" / "start").mkdir(parents=True)

    def signer(self, name: str) -> KitSigner:
        return KitSigner(Kit(self.kits / name), self.folder / "run", b"{}")

    def announce(self, name: str, key: Ed25519PrivateKey | None = None) -> Announcement:
        signer = self.signer("north")
        blank = Announcement(Secrets.fresh().keys, 10, "model", "")
        statement = signer._statement(1, name, blank)
        return replace(blank, signature=(key or Kit(self.kits / name).key).sign(statement).hex())

    def check(self, **more: Announcement) -> None:
        roster: Mapping[str, Announcement] = {n: self.announce(n) for n in ("north", "south", "east")} | more
        self.signer("north").check(1, roster)


@pytest.fixture
def cohort(kits: Path, tmp_path: Path) -> Cohort:
    return Cohort(kits, tmp_path)


def listed(cohort: Cohort, name: str, key: Ed25519PrivateKey) -> None:
    """The authority lists a silo with a key."""
    office = authority.Authority(cohort.kits)
    member = Member(key=public_hex(key.public_key()), kind="silo", parent=COORDINATOR, generations=(1,))
    office.publish({**office.members(), name: member})


def test_an_invented_member_does_not_count(cohort: Cohort) -> None:
    """The coordinator invents 'mallory' and signs for it; with the authority's signature the same roster is valid."""
    mallory = Ed25519PrivateKey.generate()
    with pytest.raises(Refused, match="'mallory', which is not a silo or region of the same parent"):
        cohort.check(mallory=cohort.announce("mallory", mallory))
    forged = {**Kit(cohort.kits / "north").members(), "mallory": Member(
        key=public_hex(mallory.public_key()), kind="silo", parent=COORDINATOR, generations=(1,))}  # fmt: skip
    file = cohort.kits / "north" / "members.json"
    before = file.read_bytes()
    file.write_text(sign_members("small", 9, forged, Kit(cohort.kits / COORDINATOR).key))
    with pytest.raises(Refused, match="'mallory', which is not a silo"):
        cohort.check(mallory=cohort.announce("mallory", mallory))
    file.write_bytes(before)
    listed(cohort, "mallory", mallory)
    cohort.check(mallory=cohort.announce("mallory", mallory))


def test_one_key_under_two_names_counts_once(cohort: Cohort) -> None:
    south = Kit(cohort.kits / "south").key
    listed(cohort, "shadow", south)  # an authority that does not look; 'hansa kit sign' refuses it
    with pytest.raises(Refused, match="have the same key"):
        cohort.check(shadow=cohort.announce("shadow", south))
    other = Ed25519PrivateKey.generate()
    listed(cohort, "shadow", other)
    cohort.check(shadow=cohort.announce("shadow", other))


def test_a_revoked_member_does_not_count_at_silo_and_coordinator(cohort: Cohort) -> None:
    coordinator = cohort.signer(COORDINATOR)
    announced = cohort.announce("east")
    cohort.check()
    coordinator.verify(1, "east", announced)
    authority.revoke(cohort.kits, "east")
    with pytest.raises(Refused, match="'east', which was revoked"):
        cohort.check()
    with pytest.raises(Refused, match="'east', which was revoked"):
        coordinator.verify(1, "east", announced)
    with pytest.raises(Refused, match="not a silo"):
        coordinator.verify(1, "mallory", announced)
