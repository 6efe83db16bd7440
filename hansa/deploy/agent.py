"""The agent of a silo, or of a region towards its parent: it waits for requests, works, and sends replies.

The main thread receives envelopes and sends heartbeats; a worker thread processes the newest request. The agent opens
all connections, keeps the model loaded, and repeats every network operation until it succeeds.
"""

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from time import monotonic, time

import torch

from hansa.core import wire
from hansa.core.errors import UserError, place, printable
from hansa.core.messages import Failure
from hansa.deploy.agent_state import PAUSED, paused, state_of
from hansa.deploy.identity_watch import IdentityWatch
from hansa.deploy.kit import Kit
from hansa.deploy.leave import LEFT_FILE
from hansa.deploy.network.address import Proxy
from hansa.deploy.network.blob_client import BlobClient
from hansa.deploy.network.blob_protocol import InvalidRequest, RequestRefused
from hansa.deploy.network.connection import Connection
from hansa.deploy.network.envelope import Envelope, EnvelopeError, local_deadline, open_envelope, sign_envelope
from hansa.deploy.network.heartbeat import Heartbeat, sign_heartbeat
from hansa.deploy.network.note import list_in, open_note
from hansa.deploy.network.retry import GaveUp, Retry
from hansa.deploy.network.session import Session, no_log
from hansa.deploy.replay_guard import ReplayGuard
from hansa.deploy.reply_store import TEXT, PackedReply, ReplyStore, unstored_reply
from hansa.deploy.request_reader import NodeService, RequestReader
from hansa.links.local import attempt, withheld_reason

HEARTBEAT_SECONDS = 5.0
POLL_SECONDS = 10.0  # between reads of the stored request, when no notification arrives
RETRY_SECONDS = 5.0  # after a request failed
ATTEMPTS = 3  # at a request before its failure is sent to the parent
FINISH_SECONDS = 30.0  # for a reply that is being sent when the agent is stopped
PATH = re.compile(r"(?<![\w/:<])(?:[A-Za-z]:\\|~?/|\.\.?/)[^\s'\",;:()]+")  # of a file on this machine
MAX_REASONS = 200  # kept, so that invalid envelopes cannot fill the memory

Log = Callable[[str], None]


class Agent:
    """The agent of the node with ``kit``, whose files are in ``home`` and whose work is done by ``service``.

    ``log`` receives progress, ``warn`` problems. ``phase`` is idle, fetching, working or sending. ``deadline`` is when
    the parent stops waiting for the current reply, on the monotonic clock; None: the parent waits. ``trust``: the
    authorities of a proxy that inspects TLS.
    """

    def __init__(
        self,
        kit: Kit,
        home: Path,
        service: NodeService,
        log: Log,
        proxy: Proxy | None = None,
        warn: Log | None = None,
        trust: Path | None = None,
    ) -> None:
        self._kit, self._home, self._service = kit, home, service
        self._log, self._warn = log, warn or log
        self._subjects, self._parent = kit.parent_subjects, kit.parent
        kit.key.public_key()  # raises here if the key is damaged
        self._route = kit.route(proxy, trust)
        self._stop = threading.Event()
        self._stopped_at = 0.0
        self._worker = threading.Thread(target=self._work, name="hansa-work", daemon=True)
        self._changed = threading.Condition()
        self._newest: Envelope | None = None  # the newest request
        self._processed = ("", -1)  # position of the request that was taken up last
        self.phase = "idle"
        self.deadline: float | None = None
        self._reader = RequestReader(home, service)
        self._rejections: dict[str, int] = {}
        self._receiving: Session | None = None
        home.mkdir(parents=True, exist_ok=True)
        self._replay_guard = ReplayGuard(home / "state.json", self._warn)
        self._watch = IdentityWatch(kit, home, self._raise_alarm)
        kit.list.remember_in(home)

    def not_ready(self) -> str:
        """Why the agent cannot work now; empty if it can."""
        if alarm := self._watch.alarm:
            return alarm
        connected = self._receiving is not None and self._receiving.connected
        return "" if connected else f"no connection to the parent at {self._route}"

    def stop(self) -> None:
        """Let `run` return after the reply that is being sent, if any."""
        self._stopped_at = monotonic()
        self._stop.set()
        with self._changed:
            self._changed.notify_all()

    def _must_leave(self) -> bool:
        """Whether the agent was stopped, and is not sending a reply or has done so for too long."""
        if not self._stop.is_set():
            return False
        return self.phase != "sending" or monotonic() > self._stopped_at + FINISH_SECONDS

    @property
    def busy(self) -> bool:
        """Whether the worker still runs after `run` has returned; its work is repeated after a restart."""
        return self._worker.is_alive()

    # ── receiving ─────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Answer requests until `stop`."""
        self._worker.start()
        subscriptions = self._subjects.heard_by(self._kit.name)
        session = self._receiving = self._session(subscriptions, self._stop.is_set, self._log)
        connections, polled_at, heartbeat_at = 0, 0.0, 0.0
        try:
            while not self._stop.is_set():
                now = monotonic()
                if (self._home / LEFT_FILE).exists():
                    self._log("this silo has left the federation: the agent ends")
                    self.stop()
                    break
                if session.connections != connections or now - polled_at >= POLL_SECONDS:
                    self._read_stored(session)
                    connections, polled_at = session.connections, now
                if now - heartbeat_at >= HEARTBEAT_SECONDS:
                    session.do(self._send_heartbeat)
                    heartbeat_at = now
                message = session.next(1.0)
                if message is not None and self._hear(message.subject, bytes(message.payload)):
                    heartbeat_at = 0.0  # the next heartbeat is sent at once
        except GaveUp:
            pass
        finally:
            session.close()
            while self.busy and not self._must_leave():
                self._worker.join(0.1)
            self._worker.join(1.0)

    def _session(self, subscriptions: list[str], stop: Callable[[], bool], log: Log) -> Session:
        inbox = self._subjects.inbox(self._kit.name)
        return Session(self._route, lambda: self._kit.key, inbox, subscriptions, log, stop)

    def _send_heartbeat(self, connection: Connection) -> None:
        members = self._kit.list.current()
        heartbeat = Heartbeat(
            node=self._kit.name,
            parent=self._parent.node,
            instance=str(self._watch.instance),
            phase=PAUSED if paused(self._home) else self.phase,
            version=version("hansa"),
            at=time(),
            serial=members.serial,
            digest=members.digest,
            alarm=self._watch.own_alarm,
            position=self._replay_guard.position,
        )
        data = self._watch.sent(sign_heartbeat(heartbeat, self._kit.key))
        connection.publish(self._subjects.heartbeat(self._kit.name), data)
        done = self.phase == "idle" and not self._superseded
        noted = state_of(heartbeat, self._parent.all()[0], self._newest, done)
        replace(noted, alarm=self._watch.alarm, rejected=dict(self._rejections)).write(self._home)

    def _read_stored(self, session: Session) -> None:
        """Read the newest note and the newest request that the broker stores for this node."""
        name = self._kit.name
        for subject in (self._subjects.note(name), self._subjects.request(name)):
            latest = self._subjects.latest(subject)
            message = session.do(lambda connection, latest=latest: connection.request(latest))  # type: ignore[misc]
            if not message.status:
                self._hear(subject, bytes(message.payload))

    def _hear(self, subject: str, data: bytes) -> bool:
        """Take up a message of a subscription; return whether it is a request."""
        name = self._kit.name
        if subject == self._subjects.request(name):
            self._receive(data)
            return True
        if subject == self._subjects.note(name):
            self._receive_note(data)
        elif subject == self._subjects.heartbeat(name):
            self._watch.hear_heartbeat(data)
        elif subject == self._subjects.reply(name):
            self._watch.hear_reply(data)
        return False

    def _receive_note(self, data: bytes) -> None:
        """Use the list of members in a note, which the authority has signed, then what the parent says."""
        try:
            members = list_in(data)
            if members is not None and self._kit.list.offer(members):
                self._log(f"received list of members {self._kit.serial}")
            if self._kit.trusts(self._parent.node):
                public = self._kit.public_key(self._parent.node)
                self._watch.note(open_note(data, self._parent.node, self._kit.name, public))
        except (ValueError, OSError) as error:
            self._reject(f"a note: {printable(str(error))}")

    def _raise_alarm(self, reason: str) -> None:
        self._warn(f"ALARM: {reason}")
        self._service.log_refusal("Identity", 0, reason)

    def _receive(self, data: bytes) -> None:
        """Take up an envelope that the parent signed for this node, unless a newer one was accepted before."""
        try:
            if self._parent.node not in self._kit.members():
                raise EnvelopeError(f"its sender '{self._parent.node}' is not in list of members {self._kit.serial}")
            if not self._kit.trusts(self._parent.node):
                raise EnvelopeError(f"the membership of its sender '{self._parent.node}' was revoked")
            public = self._kit.public_key(self._parent.node)
            envelope = open_envelope(data, self._parent.node, self._kit.name, public)
            self._replay_guard.check(envelope)
            if self._service.anchors is not None:
                self._service.anchors.book.note(self._parent.node, envelope.audit, data)
            if envelope.members < self._kit.serial:
                self._note_once(
                    f"'{self._parent.node}' uses list of members {envelope.members}, and this node has "
                    f"{self._kit.serial}: the parent needs the newest members.json"
                )
        except EnvelopeError as error:
            self._reject(str(error))
            return
        except OSError as error:  # such as a full disk; the broker still stores the envelope, and it is read again
            self._reject(f"its sequence number cannot be stored ({error.strerror})")
            return
        with self._changed:
            if self._newest is None or envelope.position != self._newest.position:
                self._newest = envelope
                self._changed.notify_all()

    def _note_once(self, text: str) -> None:
        if text not in self._rejections and len(self._rejections) < MAX_REASONS:
            self._rejections[text] = 1
            self._warn(text)

    def _reject(self, reason: str) -> None:
        """Count a rejected envelope; log each reason once."""
        if reason not in self._rejections and len(self._rejections) >= MAX_REASONS:
            reason = f"other reasons (only {MAX_REASONS} are listed)"
        self._rejections[reason] = self._rejections.get(reason, 0) + 1
        if self._rejections[reason] == 1:
            self._warn(f"an envelope was rejected: {reason}")

    # ── working ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        """Process requests until the agent is stopped."""
        torch.set_num_threads(1)
        session = self._session([], self._must_leave, no_log)
        blobs = BlobClient(self._route, self._retry)
        failed = (("", -1), 0)  # the position of a request, and how often it failed
        while not self._stop.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._stop.is_set() or self._has_work, timeout=HEARTBEAT_SECONDS)
                envelope = self._newest if self._has_work else None
                self._processed = envelope.position if envelope else self._processed
            if envelope is None:
                continue
            try:
                self._process(envelope, session, blobs)
            except GaveUp:
                stopped = "stopped; it is repeated after the restart"
                self._log(f"{_title(envelope)}: {stopped if self._stop.is_set() else 'superseded by a newer request'}")
            except RequestRefused as error:
                self._warn(f"{_title(envelope)}: dropped ({error})")
                if self._halted:
                    self._processed = ("", -1)  # it is taken up again when the alarm or the pause is over
            except Exception as error:
                # No error may end the agent: the broker still stores the request, and it is read again.
                self._warn(f"{_title(envelope)}: failed ({type(error).__name__}: {error})")
                failed = (envelope.position, failed[1] + 1 if failed[0] == envelope.position else 1)
                self._handle_failure(envelope, error, failed[1], session, blobs)
            self.phase = "idle"
        session.close()
        blobs.close()

    def _handle_failure(
        self, envelope: Envelope, error: Exception, times: int, session: Session, blobs: BlobClient
    ) -> None:
        """Repeat a failed request later; after `ATTEMPTS`, send the failure, so that the parent can go on."""
        if times < ATTEMPTS:
            self._stop.wait(RETRY_SECONDS)
            self._processed = ("", -1)
            return
        reason = f"it failed {times} times: {type(error).__name__} (its message stays at the node)"
        try:
            self._send(envelope, _failure(reason), session, blobs)
        except Exception as why:  # nor may this end the agent
            self._warn(f"{_title(envelope)}: the failure cannot be sent ({type(why).__name__}: {why})")

    def _withheld(self, error: BaseException) -> str:
        """Log an error with its place; return what may leave of it."""
        self._warn(f"failed twice: {type(error).__name__} ({place(error)})")
        return withheld_reason(error)

    @property
    def _superseded(self) -> bool:
        """Whether there is a newer request than the one that was taken up last."""
        return self._newest is not None and self._newest.position != self._processed

    @property
    def _has_work(self) -> bool:
        return self._superseded and not self._halted

    @property
    def _halted(self) -> str:
        """Why nothing may be taken up or sent now: an alarm or a pause; empty if it may."""
        return self._watch.alarm or (PAUSED if paused(self._home) else "")

    def _retry(self) -> Retry:
        return Retry(self._log, lambda: self._must_leave() or self._superseded)

    def _process(self, envelope: Envelope, session: Session, blobs: BlobClient) -> None:
        """Send the stored reply to a request; compute it if there is none."""
        replies = ReplyStore(self._reader.folder(envelope) / "replies")
        packed = replies.find(envelope.request) or self._compute(envelope, blobs, replies)
        self._send(envelope, packed, session, blobs)

    def _send(self, envelope: Envelope, packed: PackedReply, session: Session, blobs: BlobClient) -> None:
        """Upload the parts of a reply, then announce it."""
        if halted := self._halted:
            raise RequestRefused(halted)
        self.phase = "sending"
        refs = {name: blobs.upload(view, envelope.request, ref) for name, (ref, view) in packed.parts.items()}
        reply = Envelope(
            sender=self._kit.name,
            receiver=envelope.sender,
            run=envelope.run,
            run_started=envelope.run_started,
            request=envelope.request,
            sequence=envelope.sequence,
            kind=packed.kind,
            round=envelope.round,
            text=refs.pop(TEXT),
            vectors=refs,
            members=self._kit.serial,
            instance=str(self._watch.instance),
            audit=self._service.anchors.head() if self._service.anchors is not None else "",
        )
        if halted := self._halted:
            raise RequestRefused(halted)
        data = self._watch.sent(sign_envelope(reply, self._kit.key))
        subject = self._subjects.reply(self._kit.name)
        session.do(lambda connection: connection.checked(connection.request(subject, data)))
        sent = "no data sent, only that there is no result" if packed.kind == Failure.__name__ else "reply sent"
        self._log(f"{_title(envelope)}: {sent}")

    def _compute(self, envelope: Envelope, blobs: BlobClient, replies: ReplyStore) -> PackedReply:
        """Fetch the request, work, and store the reply before any of it is sent.

        Failures are not stored: if the request is repeated, the node tries again.
        """
        self.phase = "fetching"
        try:
            answer, request = self._reader.read(envelope, blobs)
        except (InvalidRequest, wire.BadMessage, UserError) as error:
            detail = error.detail if isinstance(error, InvalidRequest) else str(error)
            self._warn(f"{_title(envelope)}: the request cannot be used ({detail})")
            self._service.log_refusal(envelope.kind, envelope.round, detail)
            if isinstance(error, UserError):
                return _failure(_own_mistake(error))
            return _failure(f"the request cannot be used: {error}")
        replies.forget(getattr(request, "durable", 0))
        self.phase, self.deadline = "working", local_deadline(envelope)
        self._log(f"{_title(envelope)}: started")
        try:
            reply = attempt(answer, request, self._withheld)
        except UserError as error:
            self._warn(f"{_title(envelope)}: {error}")
            reply = Failure(_own_mistake(error))
        text, vectors = wire.split(reply)
        if isinstance(reply, Failure):
            self._warn(f"{_title(envelope)}: {reply.reason}")
            return _failure(reply.reason)
        return replies.keep(envelope.request, envelope.round, type(reply).__name__, text, vectors)


def _own_mistake(error: UserError) -> str:
    """A mistake in the node's data or settings, without its message, which may name files, fields or labels."""
    return f"its data or settings cannot be used ({type(error).__name__}); see the log of the node"


def _title(envelope: Envelope) -> str:
    return f"{envelope.kind} of round {envelope.round}"


def _failure(reason: str) -> PackedReply:
    """A failure as it leaves the node. No reason should name a path; one that does loses it here."""
    reason = PATH.sub("(a path)", reason)
    return unstored_reply(Failure.__name__, wire.split(Failure(reason))[0])
