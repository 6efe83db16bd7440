"""Requests that cannot be used: the silo answers with the reason, logs it in its audit log, and goes on."""

import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, time
from typing import Any

import pytest

from hansa.config.shared import for_members
from hansa.core import wire
from hansa.core.messages import CollectVocabulary, DescribeData, Failure, VocabularyCounts
from hansa.deploy import request_worker
from hansa.deploy.agent import Agent
from hansa.deploy.join import SiloService
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.blob_client import BlobClient
from hansa.deploy.network.blob_protocol import RequestRefused
from hansa.deploy.network.envelope import Envelope
from hansa.deploy.network.open_requests import PendingRequest
from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.deploy.server_session import server_session
from hansa.privacy.policy.audit_log import entries, verify
from tests.deploy.conftest import NoService, make_kits

WAIT_SECONDS = 120.0
HUGE = ("0" * 32, 10 << 30)


@contextmanager
def alive(agent: Any) -> Iterator[Any]:
    thread = threading.Thread(target=agent.run, daemon=True)
    thread.start()
    try:
        yield agent
    finally:
        agent.stop()
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def module_federation(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A federation that is made once for this file."""
    from tests.conftest import WORDS, write_words

    folder = tmp_path_factory.mktemp("data")
    from hansa.config.file import parse

    files = {name: write_words(folder / f"{name}.jsonl", words, 30) for name, words in WORDS.items()}
    return parse({"name": "small", "model": "mini", "silos": {n: str(f) for n, f in files.items()}, "rounds": 1})


class Stage:
    """A coordinator that can send any envelope to the agent of north."""

    def __init__(self, settings: Any, folder: Any, link: Any) -> None:
        self.link, self.home = link, folder / "north"
        self.settings = link._blobs.offer(memoryview(for_members(settings)), ["north"])
        self._numbers = iter(range(1, 10_000))

    def ask(self, body: Any, **changes: Any) -> Any:
        journal = self.link._journal
        envelope = Envelope(
            sender=COORDINATOR,
            receiver="north",
            run=journal.run,
            run_started=journal.run_started,
            request=f"{next(self._numbers):032x}",
            sequence=journal.next_sequence(),
            kind="Train",
            round=1,
            text=self.link._blobs.offer(memoryview(body), ["north"]),
            settings=self.settings,
            deadline=time() + WAIT_SECONDS,
        )
        envelope = replace(envelope, **changes)
        self.link._open.add(envelope.request, PendingRequest("north", envelope, 0, frozenset()))
        until = monotonic() + WAIT_SECONDS
        self.link._send([envelope.request], until)
        answer = self.link._await_answer(envelope.request, until)
        self.link._close_request(envelope.request)
        return answer.reply

    def refusals(self) -> Any:
        return [e["reason"] for e in entries(self.home / "audit.jsonl") if e["event"] == "refusal"]


@pytest.fixture(scope="module")
def stage(module_federation: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("stage")
    kits = make_kits(module_federation, folder / "kits")
    kit = Kit(kits / "north")
    service = SiloService(
        kit, module_federation.silos["north"].sources, (), PolicyEnforcer.load(kit, None, folder / "north")
    )
    agent = Agent(kit, folder / "north", service, lambda text: None)
    with server_session(Kit(kits / COORDINATOR), folder / "server", None, lambda text: None) as link, alive(agent):
        yield Stage(module_federation, folder, link)


def text_of(message: Any) -> bytes:
    return wire.split(message)[0].encode()


INVALID: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "a vector of ten gigabytes": (text_of(DescribeData()), {"vectors": {"model": HUGE}}, "more than 8 models"),
    "a text of ten gigabytes": (text_of(DescribeData()), {"text": HUGE}, "more than 8 models"),
    "a start of a thousand terabytes": (text_of(DescribeData()), {"start": ("0" * 32, 1 << 50)}, "are free"),
    "settings of ten gigabytes": (
        text_of(DescribeData()),
        {"start": ("1" * 32, 4), "settings": HUGE},
        "more than the limit",
    ),
    "no settings": (text_of(DescribeData()), {"start": ("2" * 32, 4), "settings": None}, "no settings"),
    "a pickle": (pickle.dumps(print), {}, "not UTF-8"),
    "not a message": (b"hello", {}, "not a message header"),
    "an unknown message": (b'{"type": "os.system", "body": {}, "vectors": []}', {}, "unknown message type"),
    "a type that is not a text": (b'{"type": [], "body": {}, "vectors": []}', {}, "unknown message type"),
    "endless brackets": (b"[" * 100_000, {}, "not a message header"),
    "a reply": (text_of(Failure("hello")), {}, "a Failure is not a request"),
    "a field of another type": (
        b'{"type": "DescribeData", "body": {"x": 1}, "vectors": []}',
        {},
        "DescribeData has no field x",
    ),
    "half a float": (text_of(DescribeData()), {"vectors": {"model": ("0" * 32, 7)}}, "not a float32 vector"),
}


@pytest.mark.parametrize("what", INVALID)
def test_an_invalid_request_is_answered_with_the_reason(stage: Any, what: Any) -> None:
    body, changes, reason = INVALID[what]
    reply = stage.ask(body, **changes)
    assert isinstance(reply, Failure)
    assert reason in reply.reason
    assert any(reason in refused for refused in stage.refusals())
    reply = stage.ask(text_of(CollectVocabulary(5)), kind="CollectVocabulary")
    assert isinstance(reply, VocabularyCounts), "the next request is answered"
    assert verify(stage.home / "audit.jsonl").sound


@pytest.mark.parametrize("times", [1, 100])
def test_a_request_whose_parts_are_refused_is_repeated_and_then_answered_with_a_failure(
    stage: Any, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a newer request, the parent would wait until its deadline, or for ever."""
    monkeypatch.setattr(request_worker, "RETRY_SECONDS", 0.1)
    honest, left = BlobClient.fetch, [times]

    def fetch(self: BlobClient, ref: Any, target: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise RequestRefused("no blob of that name is offered")
        honest(self, ref, target)

    monkeypatch.setattr(BlobClient, "fetch", fetch)
    reply = stage.ask(text_of(CollectVocabulary(5)), kind="CollectVocabulary")
    if times == 1:
        assert isinstance(reply, VocabularyCounts)
    else:
        assert isinstance(reply, Failure)
        assert "it failed 3 times: RequestRefused" in reply.reason


def test_failures_are_not_stored(module_federation: Any, tmp_path: Path) -> None:
    """After the operator has repaired the policy, the silo answers the same request."""
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
        link.share_settings(for_members(module_federation))
        [refused] = link.ask({"north": CollectVocabulary(5)}, monotonic() + WAIT_SECONDS)
        assert isinstance(refused.reply, Failure)
        assert "its policy refuses" in refused.reply.reason
        policy.write_text(good)
        [answer] = link.ask({"north": CollectVocabulary(5)}, monotonic() + WAIT_SECONDS)
        assert not isinstance(answer.reply, Failure)


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"run": 3}', '{"run": "x", "run_started": "y", "sequence": 1}', "\x00" * 50]
)
def test_a_damaged_state_file_is_reported(module_federation: Any, tmp_path: Path, damage: Any) -> None:
    kits = make_kits(module_federation, tmp_path / "kits")
    (tmp_path / "north").mkdir()
    (tmp_path / "north" / "state.json").write_text(damage)
    lines: list[str] = []
    Agent(Kit(kits / "north"), tmp_path / "north", NoService(), lines.append)
    assert any("is damaged" in line for line in lines)


def test_a_full_disk_rejects_an_envelope_until_there_is_space(
    module_federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker still stores the envelope, which is accepted when there is space again."""
    from hansa.deploy.network.envelope import sign_envelope

    kits = make_kits(module_federation, tmp_path / "kits")
    lines: list[str] = []
    agent = Agent(Kit(kits / "north"), tmp_path / "north", NoService(), lines.append)
    digest = ("0" * 32, 4)
    envelope = Envelope(COORDINATOR, "north", "a" * 16, time(), "b" * 32, 1, "Train", 1, digest)
    data = sign_envelope(envelope, Kit(kits / COORDINATOR).key)
    with monkeypatch.context() as full:
        full.setattr("hansa.deploy.replay_guard.os.replace", _disk_full)
        agent._receive(data)
        agent._receive(data)
        assert agent.requests.newest() is None
    assert sum("No space left" in line for line in lines) == 1, "logged once, counted twice"
    assert sum(agent._rejections.values()) == 2
    agent._receive(data)
    assert agent.requests.newest() == envelope


def _disk_full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_the_number_of_reasons_is_bounded(module_federation: Any, tmp_path: Path) -> None:
    kits = make_kits(module_federation, tmp_path / "kits")
    lines: list[str] = []
    agent = Agent(Kit(kits / "north"), tmp_path / "north", NoService(), lines.append)
    for size in range(1, 600):
        agent._receive(b"x" * (50_000 + size))
    assert len(agent._rejections) == len(lines) == 201
    assert sum(agent._rejections.values()) == 599
