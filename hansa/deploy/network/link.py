"""The link to nodes in other organisations: envelopes through NATS JetStream, weights through the parent's blob server.

The broker stores the newest request to each child and the newest reply of each child on its disk (subjects.py). The id
of a request depends only on the run, the node and the request itself. After a restart of the broker, the parent or a
child, the stored messages are read again: a repeated request finds the reply that already exists. Correctness does not
depend on notifications; they only make replies arrive sooner.
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
from hansa.core.messages import NO_ANSWER, Failure, NodeId, Request, Train
from hansa.deploy.network.attendance import Attendance
from hansa.deploy.network.blob_protocol import digest
from hansa.deploy.network.blob_server import BlobServer
from hansa.deploy.network.connection import Connection, JetStreamError
from hansa.deploy.network.envelope import (
    LEAVE,
    Envelope,
    EnvelopeError,
    Identity,
    Ref,
    open_envelope,
    sign_envelope,
)
from hansa.deploy.network.journal import Journal
from hansa.deploy.network.presence import EARLIER_PROCESS, Presence
from hansa.deploy.network.retry import GaveUp
from hansa.deploy.network.session import Session
from hansa.deploy.network.subjects import Subjects
from hansa.privacy.policy.audit_heads import Anchors

POLL_SECONDS = 2.0  # between reads of the stored reply, when no notification arrives
MAX_WAIT_SECONDS = 7 * 86400.0  # where the federation sets no deadline
REPLY_QUOTA = 64 << 20  # bytes that a reply may have beside four times the size of its request
REPLY_TOO_LATE = "its reply belongs to a request that is no longer open"
DUPLICATE_REPLY = "it sent the same reply again"
STREAM_NAME_IN_USE = 10058  # JetStream's error code
FIRST_INBOX = 1 << 40  # inboxes of requests that are sent together, apart from those of single requests


@dataclass(frozen=True)
class PendingRequest:
    """A request that waits for its reply. ``sent``: its size in bytes."""

    envelope: Envelope
    sent: int


class MissingParts(RunFailed):
    """A reply was announced, but its parts are not at the blob server."""


class NatsLink:
    """The link to the children of a coordinator or a region; see the module.

    ``presence`` says which children are suspended; ``refused`` is called with the name of a node whose envelope was
    rejected, and the reason.
    """

    remote = True

    def __init__(
        self,
        identity: Identity,
        subjects: Subjects,
        children: Sequence[NodeId],
        session: Session,
        blobs: BlobServer,
        journal: Journal,
        presence: Presence,
        refused: Callable[[str, str], None],
    ) -> None:
        self._identity, self._subjects, self._presence = identity, subjects, presence
        self._session, self._blobs, self._journal, self._refused = session, blobs, journal, refused
        self._names: tuple[NodeId, ...] = ()
        self._children: dict[str, NodeId] = {}
        self.attendance = Attendance(journal, identity, presence)
        self.anchors: Anchors | None = None  # heads of audit logs, exchanged with every message
        self._one_at_a_time = threading.Lock()
        self._settings: Ref | None = None
        self._start: Ref | None = None
        self._pending: dict[NodeId, PendingRequest] = {}
        self._replies: dict[NodeId, Envelope] = {}
        self._sent_on = 0  # the connection on which requests were sent; a reply cannot be missed while it lasts
        self.serve(children)
        session.do(self._create_stream)

    def serve(self, children: Sequence[NodeId]) -> None:
        """Set the nodes that this link reaches."""
        self._names = tuple(children)
        self._children = {self._subjects.reply(name): name for name in children}
        self._journal.set_fact("children", list(children))

    @property
    def size(self) -> int:
        """How many nodes work at the same time: all children."""
        return len(self._children)

    @property
    def run(self) -> str:
        """The id of the run."""
        return self._journal.run

    def _create_stream(self, connection: Connection) -> None:
        """Create the stream that stores the newest request and reply of every child on the broker's disk."""
        wanted = {
            "name": self._subjects.stream,
            "subjects": [f"{self._subjects.root}.{kind}.*" for kind in ("req", "rep", "note")],
            "storage": "file",
            "max_msgs_per_subject": 1,
            "max_msg_size": 64 << 10,
            "allow_direct": True,
            "discard": "old",
        }
        try:
            connection.ask(f"STREAM.CREATE.{self._subjects.stream}", wanted)
        except JetStreamError as error:
            if error.code != STREAM_NAME_IN_USE:
                raise
            connection.ask(f"STREAM.UPDATE.{self._subjects.stream}", wanted)

    # ── what every child needs before it can work ─────────────────────────────────────────────────────────────────

    def share_settings(self, text: bytes) -> None:
        """Offer the federation's settings to all children; every request names them."""
        self._settings = self._blobs.offer(memoryview(text), self._names)

    def share_start(self, bundle: memoryview) -> None:
        """Offer the initial model, tokenizer and labels to all children; every request names them."""
        self._start = self._blobs.offer(bundle, self._names)

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        """Ask children and yield their answers in the order of the requests; see `hansa.core.link.Link`."""
        until = min(until or monotonic() + MAX_WAIT_SECONDS, monotonic() + MAX_WAIT_SECONDS)
        with self._one_at_a_time:
            offered = self._prepare(asks, until)
            try:
                self._send(list(asks), until)
                for node in asks:
                    yield self._await_answer(node, until)
                    self._close_request(node)
            finally:
                for node in [node for node in asks if node in self._pending]:
                    self._close_request(node)
                self._blobs.withdraw(offered)

    def _prepare(self, asks: Mapping[NodeId, Request], until: float) -> set[str]:
        """Make an envelope for every node and offer its parts; a part that several nodes get is digested once."""
        offered: set[str] = set()
        refs: dict[int, tuple[Ref, dict[str, Ref]]] = {}
        digests: dict[int, str] = {}  # of vectors, by address: different requests may carry the same model
        readers: dict[int, list[NodeId]] = {}
        for node, request in asks.items():
            readers.setdefault(id(request), []).append(node)
        for node, request in asks.items():
            self._delete_old_uploads(request)
            if id(request) not in refs:
                refs[id(request)] = self._offer(request, readers[id(request)], digests)
            text, vectors = refs[id(request)]
            offered |= {name for name, _ in (text, *vectors.values())}
            sent = text[1] + sum(size for _, size in vectors.values())
            self._pending[node] = PendingRequest(self._envelope(node, request, text, vectors, until), sent)
            self._blobs.allow_upload(node, self._pending[node].envelope.request, REPLY_QUOTA + 4 * sent)
        return offered

    def _offer(self, request: Request, readers: list[NodeId], digests: dict[int, str]) -> tuple[Ref, dict[str, Ref]]:
        text, vectors = wire.split(request)
        refs = {}
        for name, vector in vectors.items():
            view = wire.as_bytes(vector)
            if vector.data_ptr() not in digests:
                digests[vector.data_ptr()] = digest(view)
            refs[name] = self._blobs.offer(view, readers, digests[vector.data_ptr()])
        return self._blobs.offer(memoryview(text.encode()), readers), refs

    def _envelope(self, node: NodeId, request: Request, text: Ref, vectors: dict[str, Ref], until: float) -> Envelope:
        round = getattr(request, "round", 0)
        deadline = time() + until - monotonic()
        id = self._request_id(node, request, vectors)
        self._journal.record_request(id, node, round, type(request).__name__, deadline)
        return Envelope(
            sender=self._identity.name,
            receiver=node,
            run=self._journal.run,
            run_started=self._journal.run_started,
            request=id,
            sequence=self._journal.next_sequence(),
            kind=type(request).__name__,
            round=round,
            text=text,
            vectors=vectors,
            settings=self._settings,
            start=self._start,
            deadline=deadline,
            members=self._identity.serial,
            audit=self.anchors.head() if self.anchors is not None else "",
        )

    def _request_id(self, node: NodeId, request: Request, vectors: dict[str, Ref]) -> str:
        text, _ = wire.split(_repeatable(request))
        parts = [self._journal.run, self._identity.name, node, text, repr(sorted(vectors.items())), repr(self._start)]
        return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]

    def _delete_old_uploads(self, request: Request) -> None:
        """Delete what children uploaded for rounds that are checkpointed."""
        durable = getattr(request, "durable", 0)
        if durable:
            for node, name in self._journal.forget(durable):
                self._blobs.delete(node, [name])

    def _send(self, nodes: list[NodeId], until: float) -> None:
        """Publish the requests together; those that are not acknowledged are published again on the next connection."""
        left = dict.fromkeys(node for node in nodes if not self.attendance.reason_not_to_wait(node))
        self._sent_on = self._session.connections

        def send(connection: Connection) -> None:
            inboxes = {}
            for number, node in enumerate(left):
                inbox = connection.inbox(FIRST_INBOX + number)
                inboxes[inbox] = node
                data = sign_envelope(self._pending[node].envelope, self._identity.key)
                connection.publish(self._subjects.request(node), data, inbox)
            while inboxes:
                message = connection.expect(set(inboxes))
                connection.checked(message)
                left.pop(inboxes.pop(message.subject))

        try:
            self._session.do(send, until)
        except GaveUp:
            return  # the deadline passed without a broker: no child will answer

    # ── replies ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _await_answer(self, node: NodeId, until: float) -> Answer:
        pending = self._pending[node]
        while True:
            envelope = self._await_envelope(node, until)
            if envelope is None:
                reason = self.attendance.reason_not_to_wait(node) or NO_ANSWER
                self._journal.record_failure(pending.envelope.request, reason)
                return Answer(node, Failure(reason), pending.sent)
            try:
                return self._read_reply(node, pending, envelope)
            except MissingParts:
                del self._replies[node]
                self._send_again(node, until)

    def _send_again(self, node: NodeId, until: float) -> None:
        """Send a request once more, with a new sequence number."""
        pending = self._pending[node]
        again = replace(pending.envelope, sequence=self._journal.next_sequence(), sent_at=time())
        self._pending[node] = replace(pending, envelope=again)
        self._send([node], until)

    def _read_reply(self, node: NodeId, pending: PendingRequest, envelope: Envelope) -> Answer:
        """The reply that an envelope announces; its tensors are mapped from the blob server's files."""
        files = {name: self._blobs.find(node, ref) for name, ref in envelope.vectors.items()}
        text = self._blobs.find(node, envelope.text)
        if text is None or any(file is None for file in files.values()):
            raise MissingParts
        received = envelope.text[1] + sum(size for _, size in envelope.vectors.values())
        try:
            vectors = {name: _mapped(file, envelope.vectors[name][1]) for name, file in files.items() if file}
            reply: Any = wire.join(text.read_text(encoding="utf-8"), vectors)
            if isinstance(reply, Request):
                raise wire.BadMessage(f"a {type(reply).__name__} is not a reply")
            reply = Failure(printable(reply.reason)) if isinstance(reply, Failure) else reply
        except (wire.BadMessage, ValueError) as error:
            reply = Failure(f"its reply cannot be used: {printable(str(error))}")
            self._refused(node, printable(str(error)))
        self._journal.record_reply(envelope)
        return Answer(node, reply, pending.sent, received)

    def _await_envelope(self, node: NodeId, until: float) -> Envelope | None:
        """Wait for the reply of a node; None after the deadline. Replies of other nodes that arrive are kept."""
        checked = self._sent_on
        while node not in self._replies:
            if monotonic() >= until or self.attendance.reason_not_to_wait(node):
                return None
            if newer := self.attendance.overtaken(node, self._pending[node].envelope):
                self._journal.raise_sequence(newer)
                self._send_again(node, until)
            if checked != self._session.connections:  # a notification may have been missed between two connections
                checked = self._session.connections
                self._read_stored(node, until)
                checked = max(checked, self._session.connections)
                continue
            message = self._session.next(min(POLL_SECONDS, max(0.01, until - monotonic())), until)
            if message is None:
                checked = -1
            elif message.subject in self._children:
                self._receive(self._children[message.subject], message.payload, notified=True)
        return self._replies[node]

    def _read_stored(self, node: NodeId, until: float) -> None:
        """Read the newest reply of a node that the broker stores."""
        subject = self._subjects.latest(self._subjects.reply(node))
        try:
            message = self._session.do(lambda connection: connection.request(subject), until)
        except GaveUp:
            return
        if not message.status:
            self._receive(node, message.payload)

    def _receive(self, node: NodeId, data: bytes, notified: bool = False) -> None:
        """Keep the reply to the open request; count and drop everything else.

        ``notified``: it arrived just now, so it is not an old message that the broker still stores.
        """
        try:
            if not self._identity.trusts(node):
                raise EnvelopeError("its membership was revoked")
            envelope = open_envelope(data, node, self._identity.name, self._identity.public_key(node))
            if envelope.kind == LEAVE:  # from `hansa leave`, which is no agent and has no process of its own
                self._journal.record_leave(node)
                return
            if reason := self._presence.refusal(envelope, stored=not notified):
                if reason == EARLIER_PROCESS:
                    return  # its newer process sends the reply again
                raise EnvelopeError(reason)
        except EnvelopeError as error:
            self._refused(node, str(error))
            return
        pending = self._pending.get(node)
        asked = pending.envelope if pending is not None else None
        if asked is None or (envelope.run, envelope.request) != (asked.run, asked.request):
            if notified:
                self._refused(node, REPLY_TOO_LATE)
        elif envelope.kind == Failure.__name__ and envelope.sequence != asked.sequence:
            pass  # why an earlier copy of this request failed; the node tries again
        elif node not in self._replies:
            self._replies[node] = envelope
            self._journal.record_arrival(envelope.request)
            if self.anchors is not None:
                self.anchors.book.note(node, envelope.audit, data)
        elif notified:
            self._refused(node, DUPLICATE_REPLY)

    def _close_request(self, node: NodeId) -> None:
        self._pending.pop(node, None)
        self._replies.pop(node, None)
        self._blobs.end_upload(node)
        self._blobs.delete_except(node, self._journal.parts(node))


def _repeatable(request: Request) -> Request:
    """A request without what may differ when it is repeated after a restart: the newest checkpoint, the time left."""
    if not isinstance(request, Train):
        return request
    subtree = replace(request.subtree, time_limit=0.0) if request.subtree is not None else None
    return replace(request, durable=0, subtree=subtree)


def _mapped(file: Path, size: int) -> Tensor:
    """A vector that is mapped from a file, and read when it is used."""
    if size % 4:
        raise ValueError(f"{size} bytes are not a float32 vector")
    return torch.from_file(str(file), shared=False, size=size // 4, dtype=torch.float32) if size else torch.zeros(0)
