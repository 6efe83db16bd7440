"""A coordinator that asks for what cannot be: answered with the reason at once, noted in the silo's audit log, and the
silo goes on."""

import pickle
import threading
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic, time

import pytest

from hansa.core import wire
from hansa.core.messages import CollectVocabulary, DescribeData, Failure, VocabularyCounts
from hansa.deploy.agent import Agent
from hansa.deploy.coordinator import public
from hansa.deploy.join import SiloService
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.envelope import Envelope
from hansa.deploy.network.link import ROOM, Pending
from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.deploy.server_session import server_session
from hansa.privacy.policy.audit_log import entries, verify
from tests.deploy.conftest import make_kits

PATIENCE = 120.0
HUGE = ("0" * 32, 10 << 30)


@contextmanager
def alive(agent):
    thread = threading.Thread(target=agent.run, daemon=True)
    thread.start()
    try:
        yield agent
    finally:
        agent.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def module_federation(tmp_path_factory):
    """Two of the silos' federation; made once for this file."""
    from tests.conftest import WORDS, write_words

    folder = tmp_path_factory.mktemp("data")
    from hansa.config.file import parse

    files = {name: write_words(folder / f"{name}.jsonl", words, 30) for name, words in WORDS.items()}
    return parse({"name": "small", "model": "mini", "silos": {n: str(f) for n, f in files.items()}, "rounds": 1})


class Stage:
    """North's agent, and a coordinator that can write any letter it likes."""

    def __init__(self, settings, folder, link):
        self.link, self.home = link, folder / "north"
        self.settings = link._blobs.offer(memoryview(public(settings).model_dump_json().encode()), ["north"])
        self._numbers = iter(range(1, 10_000))

    def ask(self, body, **changes):
        journal = self.link._journal
        letter = Envelope(
            sender=COORDINATOR,
            receiver="north",
            run=journal.run,
            begun=journal.begun,
            request=f"{next(self._numbers):032x}",
            sequence=journal.sequence(),
            kind="Train",
            round=1,
            text=self.link._blobs.offer(memoryview(body), ["north"]),
            settings=self.settings,
            until=time() + PATIENCE,
        )
        letter = replace(letter, **changes)
        self.link._pending["north"] = Pending(letter, 0)
        self.link._blobs.expect("north", letter.request, ROOM)
        until = monotonic() + PATIENCE
        self.link._post(["north"], until)
        answer = self.link._take("north", until)
        self.link._let_go("north")
        return answer.reply

    def refusals(self):
        return [e["reason"] for e in entries(self.home / "audit.jsonl") if e["event"] == "refusal"]


@pytest.fixture(scope="module")
def stage(module_federation, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stage")
    kits = make_kits(module_federation, folder / "kits")
    kit = Kit(kits / "north")
    service = SiloService(kit, module_federation.silos["north"].sources, (), PolicyEnforcer.load(kit, None, folder / "north"))
    agent = Agent(kit, folder / "north", service, lambda text: None)
    with server_session(Kit(kits / COORDINATOR), folder / "server", None, lambda text: None) as link, alive(agent):
        yield Stage(module_federation, folder, link)


def said(message) -> bytes:
    return wire.split(message)[0].encode()


UNUSABLE = {
    "a vector of ten gigabytes": (said(DescribeData()), {"vectors": {"model": HUGE}}, "more than 8 models"),
    "a text of ten gigabytes": (said(DescribeData()), {"text": HUGE}, "more than 8 models"),
    "a start of a thousand terabytes": (said(DescribeData()), {"start": ("0" * 32, 1 << 50)}, "are free"),
    "settings of ten gigabytes": (said(DescribeData()), {"start": ("1" * 32, 4), "settings": HUGE}, "are the most"),
    "no settings": (said(DescribeData()), {"start": ("2" * 32, 4), "settings": None}, "no settings"),
    "a pickle": (pickle.dumps(print), {}, "not UTF-8"),
    "no message": (b"hello", {}, "not a message header"),
    "an unknown message": (b'{"type": "os.system", "body": {}, "vectors": []}', {}, "unknown message type"),
    "a type that is none": (b'{"type": [], "body": {}, "vectors": []}', {}, "unknown message type"),
    "endless brackets": (b"[" * 100_000, {}, "not a message header"),
    "a reply": (said(Failure("hello")), {}, "a Lost is no request"),
    "a field of another type": (b'{"type": "Describe", "body": {"x": 1}, "vectors": []}', {}, "what came is different"),
    "half a float": (said(DescribeData()), {"vectors": {"model": ("0" * 32, 7)}}, "no float32 vector"),
}  # fmt: skip


@pytest.mark.parametrize("what", UNUSABLE)
def test_an_unusable_request_is_answered_with_the_reason_at_once(stage, what):
    body, changes, reason = UNUSABLE[what]
    reply = stage.ask(body, **changes)
    assert isinstance(reply, Failure)
    assert reason in reply.reason
    assert any(reason in refused for refused in stage.refusals())
    told = stage.ask(said(CollectVocabulary(5)), kind="CollectVocabulary")
    assert isinstance(told, VocabularyCounts), "and the next is answered"
    assert verify(stage.home / "audit.jsonl").sound


def test_why_there_was_no_answer_is_not_kept(module_federation, tmp_path):
    """The operator mends what was wrong; asked the same again, the silo looks again, and answers."""
    kits = make_kits(module_federation, tmp_path / "kits")
    kit = Kit(kits / "north")
    policy = kit.folder / "policy.yaml"
    good = policy.read_text()
    policy.write_text("rules: {}")
    service = SiloService(
        kit, module_federation.silos["north"].sources, (), PolicyEnforcer.load(kit, None, tmp_path / "north")
    )
    agent = Agent(kit, tmp_path / "north", service, lambda text: None)
    with server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, lambda text: None) as link, alive(agent):
        link.share_settings(public(module_federation).model_dump_json().encode())
        [refused] = link.ask({"north": CollectVocabulary(5)}, monotonic() + PATIENCE)
        assert isinstance(refused.reply, Failure)
        assert "it has no rules" in refused.reply.reason
        policy.write_text(good)
        [told] = link.ask({"north": CollectVocabulary(5)}, monotonic() + PATIENCE)
        assert not isinstance(told.reply, Failure)


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"run": 3}', '{"run": "x", "begun": "y", "sequence": 1}', "\x00" * 50]
)
def test_a_damaged_state_is_survived_and_said(module_federation, tmp_path, damage):
    kits = make_kits(module_federation, tmp_path / "kits")
    (tmp_path / "north").mkdir()
    (tmp_path / "north" / "state.json").write_text(damage)
    lines: list[str] = []
    Agent(Kit(kits / "north"), tmp_path / "north", None, lines.append)
    assert any("is damaged" in line for line in lines)


def test_a_disk_that_is_full_when_a_letter_comes_is_survived(module_federation, tmp_path, monkeypatch):
    """The letter is refused for now; it lies in its box, and is taken up when there is room again."""
    from hansa.deploy.network.envelope import sign_envelope

    kits = make_kits(module_federation, tmp_path / "kits")
    lines: list[str] = []
    agent = Agent(Kit(kits / "north"), tmp_path / "north", None, lines.append)
    digest = ("0" * 32, 4)
    letter = Envelope(COORDINATOR, "north", "a" * 16, time(), "b" * 32, 1, "Train", 1, digest)
    sealed = sign_envelope(letter, Kit(kits / COORDINATOR).key)
    with monkeypatch.context() as full:
        full.setattr("hansa.deploy.agent.os.replace", _no_room)
        agent._hear(sealed)
        agent._hear(sealed)
        assert agent._letter is None
    assert sum("No space left" in line for line in lines) == 1, "said once, counted twice"
    assert sum(agent._refusals.values()) == 2
    agent._hear(sealed)
    assert agent._letter == letter


def _no_room(*_):
    raise OSError(28, "No space left on device")


def test_reasons_without_end_are_not_kept_without_end(module_federation, tmp_path):
    kits = make_kits(module_federation, tmp_path / "kits")
    lines: list[str] = []
    agent = Agent(Kit(kits / "north"), tmp_path / "north", None, lines.append)
    for size in range(1, 600):
        agent._hear(b"x" * (50_000 + size))
    assert len(agent._refusals) == len(lines) == 201
    assert sum(agent._refusals.values()) == 599
