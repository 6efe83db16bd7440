"""The link to nodes in other organisations: envelopes through NATS JetStream, weights through the parent's blob server.

The link is that of one run. The broker stores the run's newest request to each child and the newest reply of each
child on its disk (subjects.py). The id of a request depends only on the run, the node and the request itself. After a
restart of the broker, the parent or a child, the stored messages are read again: a repeated request finds the reply
that already exists. Correctness does not depend on notifications; they only make replies arrive sooner.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic, time

from hansa.core import wire
from hansa.core.errors import RunFailed, printable
from hansa.core.link import Answer, Posting
from hansa.core.messages import NO_ANSWER, Failure, NodeId, Request
from hansa.deploy.network.attendance import Attendance
from hansa.deploy.network.blob_protocol import digest
from hansa.deploy.network.blob_server import BlobServer
from hansa.deploy.network.connection import Connection
from hansa.deploy.network.envelope import Envelope, EnvelopeError, Identity, Ref, open_envelope, sign_envelope
from hansa.deploy.network.journal import Journal
from hansa.deploy.network.open_requests import OpenRequests, PendingRequest, request_id
from hansa.deploy.network.presence import EARLIER_PROCESS, Presence
from hansa.deploy.network.reply_files import read_reply
from hansa.deploy.network.retry import GaveUp
from hansa.deploy.network.session import Session
from hansa.deploy.network.subjects import Subjects
from hansa.privacy.policy.audit_heads import Anchors

POLL_SECONDS = 2.0  # between reads of the stored reply, when no notification arrives
MAX_WAIT_SECONDS = 7 * 86400.0  # where the federation sets no deadline
REPLY_QUOTA = 64 << 20  # bytes that a reply may have beside four times the size of its request, or of the model
REPLY_TOO_LATE = "its reply belongs to a request that is no longer open"
DUPLICATE_REPLY = "it sent the same reply again"
FIRST_INBOX = 1 << 40  # inboxes of requests that are sent together


class MissingParts(RunFailed):
    """A reply was announced, but its parts are not at the blob server."""


class NatsLink:
    """The link to the children of a coordinator or a region in one run; see the module.

    ``subjects`` are those of the run, and ``journal`` is the run's own; ``attendance`` and ``presence`` say which
    children are awaited, and which are suspended; ``refused`` is called with the name of a node whose envelope was
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
        attendance: Attendance,
        presence: Presence,
        refused: Callable[[str, str], None],
    ) -> None:
        self._identity, self._subjects, self._presence = identity, subjects, presence
        self._session, self._blobs, self._journal, self._refused = session, blobs, journal, refused
        self._names: tuple[NodeId, ...] = ()
        self._children: dict[str, NodeId] = {}
        self.attendance = attendance
        self.anchors: Anchors | None = None  # heads of audit logs, exchanged with every message
        self.on_wait: Callable[[], None] = lambda: None  # called again and again while replies are awaited
        self._one_at_a_time = threading.Lock()
        self._settings: Ref | None = None
        self._start: Ref | None = None
        self._open = OpenRequests()
        self._sent_on = 0  # the connection on which requests were sent; a reply cannot be missed while it lasts
        self.serve(children)

    def serve(self, children: Sequence[NodeId]) -> None:
        """Set the nodes that this link reaches."""
        self._names = tuple(children)
        self._children = {self._subjects.reply(name): name for name in children}
        self._journal.set_fact("children", list(children))  # for `hansa status`

    @property
    def size(self) -> int:
        """How many nodes work at the same time: all children."""
        return len(self._children)

    @property
    def posting(self) -> Posting:
        """Requests whose replies are collected later."""
        return self

    @property
    def run(self) -> str:
        """The id of the run."""
        return self._journal.run

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
        until = _bounded(until)
        with self._one_at_a_time:
            ids = self._prepare(asks, until)
            try:
                self._send(self._open.ask(ids.values()), until)
                for id in ids.values():
                    yield self._await_answer(id, until)
                    self._close_request(id)
            finally:
                for id in ids.values():
                    self._close_request(id)
                self._resume(_bounded(None))

    def post(self, asks: Mapping[NodeId, Request], arrival: bool = True) -> None:
        """Send requests and return; see `hansa.core.link.Posting`."""
        until = _bounded(None)
        with self._one_at_a_time:
            ids = self._prepare(asks, until)
            self._send(self._open.post(ids.values(), arrival), until)

    def next_arrival(self, nodes: Collection[NodeId], until: float | None) -> NodeId | None:
        """Wait for a reply to a posted request; see `hansa.core.link.Posting`."""
        until = _bounded(until)
        with self._one_at_a_time:
            checked = self._sent_on
            while True:
                open = self._open.unreported(nodes)
                for id in open:
                    if id in self._open.replies or self.attendance.is_gone(self._open.pending[id].node):
                        return self._open.report(id)
                if monotonic() >= until:
                    return None
                if checked != self._session.connections:  # a notification may have been missed
                    checked = self._session.connections
                    for id in open:
                        self._repeat_if_overtaken(id, until)
                        self._read_stored(self._open.pending[id].node, until)
                elif not self._hear(until):
                    checked = -1

    def posted_failure(self, node: NodeId) -> str:
        """Why a node has no result; see `hansa.core.link.Posting`."""
        with self._one_at_a_time:
            id = self._open.reported(node)
            envelope = self._open.replies.get(id)
            if envelope is not None and envelope.kind != Failure.__name__:
                return ""
            answer = self._await_answer(id, monotonic())
            self._close_request(id)
            return answer.reply.reason if isinstance(answer.reply, Failure) else ""

    def _prepare(self, asks: Mapping[NodeId, Request], until: float) -> dict[NodeId, str]:
        """Make an envelope for every node and offer its parts; a part that several nodes get is digested once.

        Returns the ids of the requests. One that is open already stays as it is.
        """
        ids: dict[NodeId, str] = {}
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
            ids[node] = key = request_id(self._journal.run, self._identity.name, node, request, vectors, self._start)
            if key in self._open.pending:
                continue
            sent = text[1] + sum(size for _, size in vectors.values())
            offered = frozenset(name for name, _ in (text, *vectors.values()))
            envelope = self._envelope(node, request, key, text, vectors, until)
            self._open.add(key, PendingRequest(node, envelope, sent, offered, 4 * getattr(request, "capacity", 0)))
        return ids

    def _offer(self, request: Request, readers: list[NodeId], digests: dict[int, str]) -> tuple[Ref, dict[str, Ref]]:
        text, vectors = wire.split(request)
        refs = {}
        for name, vector in vectors.items():
            view = wire.as_bytes(vector)
            if vector.data_ptr() not in digests:
                digests[vector.data_ptr()] = digest(view)
            refs[name] = self._blobs.offer(view, readers, digests[vector.data_ptr()])
        return self._blobs.offer(memoryview(text.encode()), readers), refs

    def _envelope(
        self, node: NodeId, request: Request, id: str, text: Ref, vectors: dict[str, Ref], until: float
    ) -> Envelope:
        round = getattr(request, "round", 0)
        deadline = time() + until - monotonic()
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

    def _delete_old_uploads(self, request: Request) -> None:
        """Delete what children uploaded for rounds that are checkpointed."""
        durable = getattr(request, "durable", 0)
        if durable:
            for node, name in self._journal.forget(durable):
                self._blobs.delete(node, [name])

    def _send(self, ids: list[str], until: float) -> None:
        """Publish the requests together; those that are not acknowledged are published again on the next connection."""
        for id in ids:
            pending = self._open.pending[id]
            self._blobs.allow_upload(pending.node, id, REPLY_QUOTA + 4 * max(pending.sent, pending.update))
        # A node that is away finds posted requests when it comes back.
        awaited = (id for id in ids if not self.attendance.reason_not_to_wait(self._open.pending[id].node))
        left = dict.fromkeys([*filter(self._open.is_posted, ids), *awaited])
        self._sent_on = self._session.connections

        def send(connection: Connection) -> None:
            """Publish all requests that are left, then wait for the broker's acknowledgement of each."""
            inboxes = {}
            for number, id in enumerate(left):
                inbox = connection.inbox(FIRST_INBOX + number)
                inboxes[inbox] = id
                pending = self._open.pending[id]
                data = sign_envelope(pending.envelope, self._identity.key)
                connection.publish(self._subjects.request(pending.node), data, inbox)
            while inboxes:
                message = connection.expect(set(inboxes))
                connection.checked(message)
                left.pop(inboxes.pop(message.subject))

        with suppress(GaveUp):  # the deadline passed without a broker: no child will answer
            self._session.do(send, until)

    # ── replies ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _await_answer(self, id: str, until: float) -> Answer:
        while True:
            pending = self._open.pending[id]
            envelope = self._await_envelope(id, until)
            if envelope is None:
                reason = self.attendance.reason_not_to_wait(pending.node) or NO_ANSWER
                self._journal.record_failure(id, reason)
                return Answer(pending.node, Failure(reason), pending.sent)
            try:
                return self._read_reply(pending.node, pending, envelope)
            except MissingParts:
                del self._open.replies[id]
                self._send_again(id, until)

    def _send_again(self, id: str, until: float) -> None:
        """Send a request once more, with a new sequence number."""
        pending = self._open.pending[id]
        again = replace(pending.envelope, sequence=self._journal.next_sequence(), sent_at=time())
        self._open.pending[id] = replace(pending, envelope=again)
        self._send([id], until)

    def _repeat_if_overtaken(self, id: str, until: float) -> None:
        """Send a request again if its node has accepted a later one of this parent, before a backup was restored."""
        if newer := self.attendance.overtaken(self._open.pending[id].node, self._open.pending[id].envelope):
            self._journal.raise_sequence(newer)
            self._send_again(id, until)

    def _read_reply(self, node: NodeId, pending: PendingRequest, envelope: Envelope) -> Answer:
        """The reply that an envelope announces; its tensors are mapped from the blob server's files."""
        files = {name: self._blobs.find(node, ref) for name, ref in envelope.vectors.items()}
        text = self._blobs.find(node, envelope.text)
        if text is None or any(file is None for file in files.values()):
            raise MissingParts
        received = envelope.text[1] + sum(size for _, size in envelope.vectors.values())
        try:
            reply = read_reply(text, {name: (file, envelope.vectors[name][1]) for name, file in files.items() if file})
        except (wire.BadMessage, ValueError) as error:
            reply = Failure(f"its reply cannot be used: {printable(str(error))}")
            self._refused(node, printable(str(error)))
        self._journal.record_reply(envelope)
        return Answer(node, reply, pending.sent, received)

    def _await_envelope(self, id: str, until: float) -> Envelope | None:
        """Wait for the reply to a request; None after the deadline. Other replies that arrive are kept."""
        checked, node = self._sent_on, self._open.pending[id].node
        while id not in self._open.replies:
            if monotonic() >= until or self.attendance.reason_not_to_wait(node):
                return None
            self._repeat_if_overtaken(id, until)
            if checked != self._session.connections:  # a notification may have been missed between two connections
                checked = self._session.connections
                self._read_stored(node, until)
                checked = max(checked, self._session.connections)
                continue
            if not self._hear(until):
                checked = -1
        return self._open.replies[id]

    def _hear(self, until: float) -> bool:
        """Wait for a message and take it up; False if none came. Nodes that have answered go on with posted work."""
        self.on_wait()
        message = self._session.next(min(POLL_SECONDS, max(0.01, until - monotonic())), until)
        if message is not None and (node := self._children.get(message.subject)) is not None:
            self._receive(node, message.payload, notified=True)
        self._resume(until)
        return message is not None

    def _resume(self, until: float) -> None:
        """Send paused requests to the nodes that are free."""
        for id in self._open.resumed():
            self._send_again(id, until)

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
            if reason := self._presence.refusal(envelope, stored=not notified):
                if reason == EARLIER_PROCESS:
                    return  # its newer process sends the reply again
                raise EnvelopeError(reason)
        except EnvelopeError as error:
            self._refused(node, str(error))
            return
        pending = self._open.pending.get(envelope.request)
        if pending is None or (envelope.run, node) != (pending.envelope.run, pending.node):
            if notified:
                self._refused(node, REPLY_TOO_LATE)
        elif envelope.kind == Failure.__name__ and envelope.sequence != pending.envelope.sequence:
            pass  # why an earlier copy of this request failed; the node tries again
        elif envelope.request not in self._open.replies:
            self._open.replies[envelope.request] = envelope
            self._journal.record_arrival(envelope.request)
            if self.anchors is not None:
                self.anchors.book.note(node, envelope.audit, data)
        elif notified:
            self._refused(node, DUPLICATE_REPLY)

    def _close_request(self, id: str) -> None:
        """Forget a request and its reply; nothing changes if it is closed already."""
        if (closed := self._open.close(id)) is None:
            return
        request, blobs, last = closed
        self._blobs.withdraw(blobs)
        if last:  # else uploads of the node may be under way
            self._blobs.end_upload(request.node)
            self._blobs.delete_except(request.node, self._journal.parts(request.node))


def _bounded(until: float | None) -> float:
    """A time to wait for, on the monotonic clock, that is not too far away."""
    return min(until or monotonic() + MAX_WAIT_SECONDS, monotonic() + MAX_WAIT_SECONDS)
