"""Nodes in other organisations: asked by letters through NATS JetStream, weights through the asker's depot.

Each child has two letter boxes at the broker (subjects.py), kept on its disk, each holding the newest. A question
has an id that depends on nothing but the run, the node and what is asked. Whoever starts again, broker, asker or child,
looks into its letter box and goes on: the same question again finds the answer that is already there. So nothing
depends on what was heard when; notifications only make it fast.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, time
from typing import Any

import torch
from torch import Tensor

from hansa.core import wire
from hansa.core.errors import RunFailed, printable
from hansa.core.link import Answer
from hansa.core.messages import NO_ANSWER, Failure, NodeId, Request
from hansa.deploy.network.blob_server import BlobServer, digest
from hansa.deploy.network.connection import Connection, Refused
from hansa.deploy.network.envelope import Envelope, EnvelopeError, Identity, Ref, seal, unseal
from hansa.deploy.network.journal import Journal
from hansa.deploy.network.retry import GaveUp
from hansa.deploy.network.session import Session
from hansa.deploy.network.subjects import Subjects

LOOK_SECONDS = 2.0  # between looks into the letter box, when nothing is heard
LONGEST_WAIT = 7 * 86400.0  # where the federation sets no deadline
ROOM = 64 << 20  # what an answer may hold beside four times what was asked with
NOT_PART_OF_THE_QUESTION = ("durable", "within")
LATE = "its letter answers a question that nobody waits for any more"
TWICE = "its letter came twice"


@dataclass(frozen=True)
class Pending:
    """A question on its way."""

    envelope: Envelope
    sent: int  # bytes


class NatsLink:
    """Nodes in other organisations; see the module."""

    remote = True

    def __init__(
        self,
        identity: Identity,
        subjects: Subjects,
        children: Sequence[NodeId],
        session: Session,
        depot: BlobServer,
        journal: Journal,
        refused: Callable[[str, str], None],
    ) -> None:
        """``refused`` hears whose letter was not taken, and why."""
        self._identity, self._subjects, self._names = identity, subjects, tuple(children)
        self._session, self._depot, self._journal, self._refuse = session, depot, journal, refused
        self._children = {subjects.reply(name): name for name in children}
        self._one_at_a_time = threading.Lock()
        self._settings: Ref | None = None
        self._start: Ref | None = None
        self._pending: dict[NodeId, Pending] = {}
        self._answers: dict[NodeId, Envelope] = {}
        self._posted = 0  # on which connection: whoever hears there needs not look
        journal.note("children", list(children))
        session.do(self._prepare)

    @property
    def size(self) -> int:
        """How many work at the same time."""
        return len(self._children)

    @property
    def run(self) -> str:
        """The number of the run, as the nodes below are told."""
        return self._journal.run

    def _prepare(self, connection: Connection) -> None:
        """The stream of letter boxes, on the broker's disk."""
        wanted = {
            "name": self._subjects.stream,
            "subjects": [f"{self._subjects.root}.req.*", f"{self._subjects.root}.rep.*"],
            "storage": "file",
            "max_msgs_per_subject": 1,
            "max_msg_size": 64 << 10,
            "allow_direct": True,
            "discard": "old",
        }
        try:
            connection.ask(f"STREAM.CREATE.{self._subjects.stream}", wanted)
        except Refused as refusal:
            if refusal.code != NAME_IN_USE:
                raise
            connection.ask(f"STREAM.UPDATE.{self._subjects.stream}", wanted)

    # ── what every node must know before it can work ──────────────────────────────────────────────────────────────

    def share_settings(self, text: bytes) -> None:
        self._settings = self._depot.offer(memoryview(text), self._names)

    def share_start(self, bundle: memoryview) -> None:
        self._start = self._depot.offer(bundle, self._names)

    # ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        until = min(until or monotonic() + LONGEST_WAIT, monotonic() + LONGEST_WAIT)
        with self._one_at_a_time:
            offered = self._write(asks, until)
            try:
                self._post(list(asks), until)
                for node in asks:
                    yield self._take(node, until)
                    self._let_go(node)
            finally:
                for node in [node for node in asks if node in self._pending]:
                    self._let_go(node)
                self._depot.withdraw(offered)

    def _write(self, asks: Mapping[NodeId, Request], until: float) -> set[str]:
        """An envelope for every node; what many are sent is digested and offered once."""
        offered: set[str] = set()
        written: dict[int, tuple[Ref, dict[str, Ref]]] = {}
        digests: dict[int, str] = {}  # of vectors, by where they lie: different questions may carry the same model
        readers: dict[int, list[NodeId]] = {}
        for node, request in asks.items():
            readers.setdefault(id(request), []).append(node)
        for node, request in asks.items():
            self._tidy(request)
            if id(request) not in written:
                written[id(request)] = self._offer(request, readers[id(request)], digests)
            text, vectors = written[id(request)]
            offered |= {name for name, _ in (text, *vectors.values())}
            sent = text[1] + sum(size for _, size in vectors.values())
            self._pending[node] = Pending(self._envelope(node, request, text, vectors, until), sent)
            self._depot.expect(node, self._pending[node].envelope.request, ROOM + 4 * sent)
        return offered

    def _offer(self, request: Request, readers: list[NodeId], digests: dict[int, str]) -> tuple[Ref, dict[str, Ref]]:
        text, vectors = wire.split(request)
        refs = {}
        for name, vector in vectors.items():
            view = wire.as_bytes(vector)
            if vector.data_ptr() not in digests:
                digests[vector.data_ptr()] = digest(view)
            refs[name] = self._depot.offer(view, readers, digests[vector.data_ptr()])
        return self._depot.offer(memoryview(text.encode()), readers), refs

    def _envelope(self, node: NodeId, request: Request, text: Ref, vectors: dict[str, Ref], until: float) -> Envelope:
        round = getattr(request, "round", 0)
        at = time() + until - monotonic()
        name = self._question(node, request, vectors)
        self._journal.asked(name, node, round, type(request).__name__, at)
        return Envelope(
            sender=self._identity.name,
            receiver=node,
            run=self._journal.run,
            begun=self._journal.begun,
            request=name,
            sequence=self._journal.sequence(),
            kind=type(request).__name__,
            round=round,
            text=text,
            vectors=vectors,
            settings=self._settings,
            start=self._start,
            until=at,
        )

    def _question(self, node: NodeId, request: Request, vectors: dict[str, Ref]) -> str:
        changes = {name: 0 for name in NOT_PART_OF_THE_QUESTION if hasattr(request, name)}
        text, _ = wire.split(replace(request, **changes))  # type: ignore[arg-type]
        parts = [self._journal.run, self._identity.name, node, text, repr(sorted(vectors.items())), repr(self._start)]
        return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]

    def _tidy(self, request: Request) -> None:
        """What silos brought for rounds that are checkpointed is not needed again."""
        durable = getattr(request, "durable", 0)
        if durable:
            for node, name in self._journal.forget(durable):
                self._depot.discard(node, [name])

    def _post(self, nodes: list[NodeId], until: float) -> None:
        """Into all letter boxes at once; whatever was not acknowledged is posted again on the next connection."""
        left = dict.fromkeys(node for node in nodes if not self._revoked(node))
        self._posted = self._session.connections

        def post(connection: Connection) -> None:
            replies = {}
            for number, node in enumerate(left):
                reply = connection.inbox(FIRST_INBOX + number)
                replies[reply] = node
                letter = seal(self._pending[node].envelope, self._identity.key)
                connection.publish(self._subjects.request(node), letter, reply)
            while replies:
                message = connection.expect(set(replies))
                connection.checked(message)
                left.pop(replies.pop(message.subject))

        try:
            self._session.do(post, until)
        except GaveUp:
            return  # the deadline passed without a broker: every node will be lost

    # ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, node: NodeId, until: float) -> Answer:
        pending = self._pending[node]
        while True:
            envelope = self._wait(node, until)
            if envelope is None:
                reason = "it was revoked" if self._revoked(node) else NO_ANSWER
                self._journal.lost(pending.envelope.request, reason)
                return Answer(node, Failure(reason), pending.sent)
            try:
                return self._opened(node, pending, envelope)
            except Missing:
                del self._answers[node]
                again = replace(pending.envelope, sequence=self._journal.sequence(), at=time())
                self._pending[node] = replace(pending, envelope=again)
                self._post([node], until)

    def _opened(self, node: NodeId, pending: Pending, envelope: Envelope) -> Answer:
        """The reply itself, its tensors where the depot keeps them."""
        files = {name: self._depot.found(node, ref) for name, ref in envelope.vectors.items()}
        text = self._depot.found(node, envelope.text)
        if text is None or any(file is None for file in files.values()):
            raise Missing
        received = envelope.text[1] + sum(size for _, size in envelope.vectors.values())
        try:
            vectors = {name: _mapped(file, envelope.vectors[name][1]) for name, file in files.items() if file}
            reply: Any = wire.join(text.read_text(encoding="utf-8"), vectors)
            if isinstance(reply, Request):
                raise wire.BadMessage(f"a {type(reply).__name__} is no reply")
            reply = Failure(printable(reply.reason)) if isinstance(reply, Failure) else reply
        except (wire.BadMessage, ValueError) as error:
            reply = Failure(f"its reply cannot be used: {printable(str(error))}")
            self._refuse(node, printable(str(error)))
        self._journal.answered(envelope)
        return Answer(node, reply, pending.sent, received)

    def _wait(self, node: NodeId, until: float) -> Envelope | None:
        """Until this node has answered, or nobody waits any more. What others say meanwhile is kept."""
        looked = self._posted
        while node not in self._answers:
            if monotonic() >= until or self._revoked(node):
                return None
            if looked != self._session.connections:  # a new connection may have missed something
                looked = self._session.connections
                self._look(node, until)
                looked = max(looked, self._session.connections)
                continue
            message = self._session.next(min(LOOK_SECONDS, max(0.01, until - monotonic())), until)
            if message is None:
                looked = -1
            elif message.subject in self._children:
                self._hear(self._children[message.subject], message.payload, fresh=True)
        return self._answers[node]

    def _look(self, node: NodeId, until: float) -> None:
        """Into the letter box itself."""
        question = self._subjects.latest(self._subjects.reply(node))
        try:
            message = self._session.do(lambda connection: connection.request(question), until)
        except GaveUp:
            return
        if not message.status:
            self._hear(node, message.payload)

    def _hear(self, node: NodeId, letter: bytes, fresh: bool = False) -> None:
        """Keep an answer to the present question; anything else is counted and dropped. ``fresh``: it came just now,
        and does not lie in its box from before."""
        try:
            if self._revoked(node):
                raise EnvelopeError("it is no member any more")
            envelope = unseal(letter, node, self._identity.name, self._identity.public(node))
        except EnvelopeError as why:
            self._refuse(node, str(why))
            return
        pending = self._pending.get(node)
        asked = pending.envelope if pending is not None else None
        if asked is None or (envelope.run, envelope.request) != (asked.run, asked.request):
            if fresh:
                self._refuse(node, LATE)
        elif envelope.kind == Failure.__name__ and envelope.sequence != asked.sequence:
            pass  # why it gave no answer when it was asked before; asked again, it looks again
        elif node not in self._answers:
            self._answers[node] = envelope
            self._journal.arrived(envelope.request)
        elif fresh:
            self._refuse(node, TWICE)

    def _revoked(self, node: NodeId) -> bool:
        return not self._identity.trusts(node)

    def _let_go(self, node: NodeId) -> None:
        self._pending.pop(node, None)
        self._answers.pop(node, None)
        self._depot.expect_no_more(node)
        self._depot.keep_only(node, self._journal.parts(node))


class Missing(RunFailed):
    """An answer was announced, and its parts are not there."""


NAME_IN_USE = 10058
FIRST_INBOX = 1 << 40  # apart from those of single requests


def _mapped(file: Path, size: int) -> Tensor:
    """A vector that lies in a file: read where it is, when it is needed."""
    if size % 4:
        raise ValueError(f"{size} bytes are no float32 vector")
    return torch.from_file(str(file), shared=False, size=size // 4, dtype=torch.float32) if size else torch.zeros(0)
