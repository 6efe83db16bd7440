"""A worker of an agent: a thread that takes up requests, works, and sends replies, one request at a time.

An agent has as many workers as its administrator allows runs at once (`hansa join --at-once`).
"""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import torch

from hansa.core import wire
from hansa.core.errors import UserError, place
from hansa.core.messages import Failure
from hansa.deploy.agent_state import PAUSED, paused
from hansa.deploy.identity_watch import IdentityWatch
from hansa.deploy.kit import Kit
from hansa.deploy.network.blob_client import BlobClient
from hansa.deploy.network.blob_protocol import InvalidRequest, RequestRefused
from hansa.deploy.network.envelope import Envelope, local_deadline, sign_envelope
from hansa.deploy.network.retry import GaveUp, Retry
from hansa.deploy.network.route import Route
from hansa.deploy.network.session import Session, no_log
from hansa.deploy.reply_store import TEXT, PackedReply, ReplyStore, unstored_reply
from hansa.deploy.request_reader import NodeService, RequestReader
from hansa.deploy.run_requests import RunRequests
from hansa.links.local import attempt, withheld_reason

WAIT_SECONDS = 5.0  # for a request, before the worker looks whether the agent may work again
RETRY_SECONDS = 5.0  # after a request failed
LOOK_SECONDS = 0.2  # between two looks whether a newer request has come
ATTEMPTS = 3  # at a request before its failure is sent to the parent
FINISH_SECONDS = 30.0  # for a reply that is being sent when the agent is stopped
PATH = re.compile(r"(?<![\w/:<])(?:[A-Za-z]:\\|~?/|\.\.?/)[^\s'\",;:()]+")  # of a file on this machine

Log = Callable[[str], None]


class RequestWorker:
    """Worker ``number`` of the agent of the node with ``kit``, whose files are in ``home``.

    ``service`` does the work; ``requests`` hands it out. ``phase`` is idle, fetching, working or sending. ``deadline``
    is when the parent stops waiting for the current reply, on the monotonic clock; None: the parent waits.
    """

    def __init__(
        self,
        number: int,
        kit: Kit,
        home: Path,
        service: NodeService,
        route: Route,
        requests: RunRequests,
        watch: IdentityWatch,
        log: Log,
        warn: Log,
    ) -> None:
        self._number, self._kit, self._home, self._service = number, kit, home, service
        self._route, self._requests, self._watch = route, requests, watch
        self._log, self._warn = log, warn
        self._reader = RequestReader(home, service)
        self._stop = threading.Event()
        self._stopped_at = 0.0
        self._current: Envelope | None = None
        self.phase = "idle"
        self.deadline: float | None = None
        self._thread = threading.Thread(target=self._work, name=f"hansa-work-{number}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end after the reply that is being sent, if any."""
        self._stopped_at = monotonic()
        self._stop.set()
        self._requests.wake()

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(seconds)

    @property
    def busy(self) -> bool:
        """Whether the thread runs; work that is not finished is repeated after a restart."""
        return self._thread.is_alive()

    def must_leave(self) -> bool:
        """Whether the worker was stopped, and is not sending a reply or has done so for too long."""
        if not self._stop.is_set():
            return False
        return self.phase != "sending" or monotonic() > self._stopped_at + FINISH_SECONDS

    @property
    def _halted(self) -> str:
        """Why nothing may be taken up or sent now: an alarm or a pause; empty if it may."""
        return self._watch.alarm or (PAUSED if paused(self._home) else "")

    def _retry(self) -> Retry:
        return Retry(self._log, lambda: self.must_leave() or self._superseded)

    @property
    def _superseded(self) -> bool:
        return self._current is not None and self._requests.superseded(self._current)

    def _work(self) -> None:
        """Process requests until the agent is stopped."""
        torch.set_num_threads(1)
        inbox = self._kit.parent_subjects.inbox(self._kit.name)
        session = Session(self._route, lambda: self._kit.key, inbox, [], no_log, self.must_leave)
        blobs = BlobClient(self._route, self._retry)
        failed = (("", -1), 0)  # the position of a request, and how often it failed
        while not self._stop.is_set():
            taken = self._requests.take(self._number, self._stop.is_set, lambda: not self._halted, WAIT_SECONDS)
            if taken is None:
                if not self._requests.holds(self._number):
                    self._reader.close()
                continue
            envelope, fresh = taken
            self._current = envelope
            if fresh:
                self._reader.close()
            try:
                self._process(envelope, session, blobs)
            except GaveUp:
                stopped = "stopped; it is repeated after the restart"
                self._log(f"{_title(envelope)}: {stopped if self._stop.is_set() else 'superseded by a newer request'}")
            except Exception as error:
                # No error may end the agent: the broker still stores the request, and it is read again.
                self._warn(f"{_title(envelope)}: failed ({type(error).__name__}: {error})")
                if isinstance(error, RequestRefused) and self._halted:
                    self._requests.repeat(envelope.run)  # it is taken up again when the alarm or the pause is over
                    self.phase = "idle"
                    continue
                failed = (envelope.position, failed[1] + 1 if failed[0] == envelope.position else 1)
                self._handle_failure(envelope, error, failed[1], session, blobs)
            self.phase = "idle"
        session.close()
        blobs.close()
        self._reader.close()

    def _handle_failure(
        self, envelope: Envelope, error: Exception, times: int, session: Session, blobs: BlobClient
    ) -> None:
        """Repeat a failed request later; after `ATTEMPTS`, send the failure, so that the parent can go on."""
        if times < ATTEMPTS:
            until = monotonic() + RETRY_SECONDS
            while monotonic() < until and not self._superseded and not self._stop.wait(LOOK_SECONDS):
                pass  # a newer request does not wait for an older one to be repeated
            self._requests.repeat(envelope.run)
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
        subject = self._kit.parent_subjects.of_run(envelope.run).reply(self._kit.name)
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
