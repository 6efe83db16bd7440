"""Attacks with a copied kit: two agents under one name, in threads with real sockets and certificates."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.core.messages import DescribeData
from hansa.deploy import authority
from hansa.deploy.agent import Agent
from hansa.deploy.identity_watch import IdentityWatch
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.connection import Connection
from hansa.deploy.network.envelope import open_envelope, sign_envelope
from hansa.deploy.network.heartbeat import open_heartbeat, sign_heartbeat
from hansa.deploy.network.presence import Presence
from hansa.deploy.server_session import server_session
from tests.cli.test_cli import ok
from tests.redteam.members import FailingService, no_log, wait


class Scene:
    """A coordinator's session, and agents of north; ``lines``: the coordinator's log."""

    def __init__(self, kits: Path, folder: Path) -> None:
        self.kits, self.folder, self.lines = kits, folder, list[str]()
        self.services: dict[str, FailingService] = {}

    @contextmanager
    def agent(self, kit: Path, home: Path, name: str) -> Iterator[Agent]:
        self.services[name] = FailingService(name)
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
    connection = Connection(kit.route(), kit.key, kit.parent_subjects.inbox(kit.name))
    try:
        yield connection
        connection.request(kit.parent_subjects.latest(kit.parent_subjects.request(kit.name)))  # all is processed
    finally:
        connection.close()


@pytest.mark.parametrize("trick", ["same process", "reply only", "earlier start", "stranger"])
def test_a_thief_who_imitates_the_agents_process_is_noticed(scene: Scene, link: Any, trick: str) -> None:
    """The thief reads the agent's heartbeats, which its stolen certificate allows, and sends the same names."""
    kit = Kit(scene.kits / "north")
    subjects = kit.parent_subjects.of_run(link.run)
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
