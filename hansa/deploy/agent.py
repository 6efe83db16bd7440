"""The agent of a silo, or of a region towards its parent: it waits for requests, works, and sends replies.

The main thread receives envelopes and sends heartbeats; worker threads (request_worker.py) process the newest request
of each run. The agent opens all connections, keeps models loaded, and repeats every network operation until it
succeeds.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from time import monotonic, time

from hansa.core.errors import printable
from hansa.deploy.agent_state import PAUSED, paused, state_of
from hansa.deploy.identity_watch import IdentityWatch
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.leave import LEFT_FILE
from hansa.deploy.network.address import Proxy
from hansa.deploy.network.connection import Connection
from hansa.deploy.network.envelope import EnvelopeError, open_envelope
from hansa.deploy.network.heartbeat import MAX_RUNS, Heartbeat, sign_heartbeat
from hansa.deploy.network.note import Note, list_in, open_note
from hansa.deploy.network.retry import GaveUp
from hansa.deploy.network.session import Session
from hansa.deploy.replay_guard import ReplayGuard
from hansa.deploy.request_reader import NodeService
from hansa.deploy.request_worker import RequestWorker
from hansa.deploy.run_requests import RunRequests

VERSION = version("hansa")  # heartbeats state it
HEARTBEAT_SECONDS = 5.0
POLL_SECONDS = 10.0  # between reads of the stored request, when no notification arrives
PHASES = ("sending", "working", "fetching")  # of several workers, the first of these is the agent's
MAX_REASONS = 200  # kept, so that invalid envelopes cannot fill the memory

Log = Callable[[str], None]


class Agent:
    """The agent of the node with ``kit``, whose files are in ``home`` and whose work is done by ``service``.

    ``log`` receives progress, ``warn`` problems. ``trust``: the authorities of a proxy that inspects TLS. ``services``:
    to work on several runs at once, one service for each of them, in place of ``service``; each is used by one thread.
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
        services: Sequence[NodeService] = (),
    ) -> None:
        self._kit, self._home, self._service = kit, home, service
        self._log, self._warn = log, warn or log
        self._subjects, self._parent = kit.parent_subjects, kit.parent
        kit.key.public_key()  # raises here if the key is damaged
        self._route = kit.route(proxy, trust)
        self._stop = threading.Event()
        self._note: Note | None = None  # the newest one of the parent
        self._ended: set[str] = set()  # runs that earlier notes listed
        self._rejections: dict[str, int] = {}
        self._receiving: Session | None = None
        home.mkdir(parents=True, exist_ok=True)
        self._replay_guard = ReplayGuard(home / "state.json", self._warn)
        self._watch = IdentityWatch(kit, home, self._raise_alarm)
        working = list(services) or [service]
        self.requests = RunRequests(len(working))
        self._workers = [
            RequestWorker(number, kit, home, one, self._route, self.requests, self._watch, log, self._warn)
            for number, one in enumerate(working)
        ]
        kit.list.remember_in(home)

    def not_ready(self) -> str:
        """Why the agent cannot work now; empty if it can."""
        if alarm := self._watch.alarm:
            return alarm
        connected = self._receiving is not None and self._receiving.connected
        return "" if connected else f"no connection to the parent at {self._route}"

    def stop(self) -> None:
        """Let `run` return after the replies that are being sent, if any."""
        self._stop.set()
        for worker in self._workers:
            worker.stop()

    @property
    def phase(self) -> str:
        """What the agent does: idle, fetching, working or sending."""
        found = {worker.phase for worker in self._workers}
        return next((phase for phase in PHASES if phase in found), "idle")

    @property
    def deadline(self) -> float | None:
        """When the parent stops waiting for the current reply, on the monotonic clock; None: the parent waits."""
        return self._workers[0].deadline

    @property
    def busy(self) -> bool:
        """Whether a worker still runs after `run` has returned; its work is repeated after a restart."""
        return any(worker.busy for worker in self._workers)

    # ── receiving ─────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Answer requests until `stop`."""
        for worker in self._workers:
            worker.start()
        subjects, name = self._subjects, self._kit.name
        session = self._receiving = Session(
            self._route,
            lambda: self._kit.key,
            subjects.inbox(name),
            subjects.heard_by(name),
            self._log,
            self._stop.is_set,
        )
        connections, runs, polled_at, heartbeat_at = 0, self._open_runs, 0.0, 0.0
        try:
            while not self._stop.is_set():
                now = monotonic()
                if (self._home / LEFT_FILE).exists():
                    self._log("this silo has left the federation: the agent ends")
                    self.stop()
                    break
                if (session.connections, self._open_runs) != (connections, runs) or now - polled_at >= POLL_SECONDS:
                    self._read_stored(session)
                    connections, runs, polled_at = session.connections, self._open_runs, now
                if now - heartbeat_at >= HEARTBEAT_SECONDS:
                    self._ended = {run for run in self._ended if not self.requests.end(run)}
                    session.do(self._send_heartbeat)
                    heartbeat_at = now
                message = session.next(1.0)
                if message is not None and self._hear(message.subject, bytes(message.payload)):
                    heartbeat_at = 0.0  # the next heartbeat is sent at once
        except GaveUp:
            pass
        finally:
            session.close()
            for worker in self._workers:
                while worker.busy and not worker.must_leave():
                    worker.join(0.1)
                worker.join(1.0)

    def _send_heartbeat(self, connection: Connection) -> None:
        members = self._kit.list.current()
        heartbeat = Heartbeat(
            node=self._kit.name,
            parent=self._parent.node,
            instance=str(self._watch.instance),
            phase=PAUSED if paused(self._home) else self.phase,
            version=VERSION,
            at=time(),
            serial=members.serial,
            digest=members.digest,
            alarm=self._watch.own_alarm,
            positions=tuple(self._replay_guard.positions[:MAX_RUNS]),
            runs=tuple(self.requests.working()[:MAX_RUNS]),
        )
        data = self._watch.sent(sign_heartbeat(heartbeat, self._kit.key))
        connection.publish(self._subjects.heartbeat(self._kit.name), data)
        noted = state_of(heartbeat, self._parent.all()[0], self.requests.newest(), self.requests.open())
        replace(noted, alarm=self._watch.alarm, rejected=dict(self._rejections)).write(self._home)

    def _read_stored(self, session: Session) -> None:
        """Read the newest note that the broker stores for this node, and the newest request of every open run."""
        name = self._kit.name
        self._read_latest(session, self._subjects.note(name))
        for run in self._open_runs:
            self._read_latest(session, self._subjects.of_run(run).request(name))

    def _read_latest(self, session: Session, subject: str) -> None:
        latest = self._subjects.latest(subject)
        message = session.do(lambda connection: connection.request(latest))
        if not message.status:
            self._hear(subject, bytes(message.payload))

    @property
    def _open_runs(self) -> tuple[str, ...]:
        """The runs that are open at the parent, by its newest note."""
        return self._note.runs if self._note is not None else ()

    def _hear(self, subject: str, data: bytes) -> bool:
        """Take up a message of a subscription; return whether it is a request."""
        name, same_run = self._kit.name, self._subjects.of_run(subject.rpartition(".")[2])
        if subject == same_run.request(name):
            self._receive(data, same_run.run)
            return True
        if subject == self._subjects.note(name):
            self._receive_note(data)
        elif subject == self._subjects.heartbeat(name):
            self._watch.hear_heartbeat(data)
        elif subject == same_run.reply(name):
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
                note = open_note(data, self._parent.node, self._kit.name, public)
                self._watch.note(note)
                if self._note is None or note.at >= self._note.at:
                    before, self._note = self._open_runs, note
                    self._ended = (self._ended | set(before)) - set(note.runs)
        except (ValueError, OSError) as error:
            self._reject(f"a note: {printable(str(error))}")
        if reason := self._distrusted():
            self._reject(reason)

    def _distrusted(self) -> str:
        """Why nothing that the parent signs counts; empty if it does."""
        sender = self._parent.node
        if sender not in self._kit.members():
            return f"its sender '{sender}' is not in list of members {self._kit.serial}"
        return "" if self._kit.trusts(sender) else f"the membership of its sender '{sender}' was revoked"

    def _raise_alarm(self, reason: str) -> None:
        self._warn(f"ALARM: {reason}")
        self._service.log_refusal("Identity", 0, reason)

    def _receive(self, data: bytes, run: str | None = None) -> None:
        """Take up an envelope that the parent signed for this node, unless a newer one was accepted before.

        ``run``: the run on whose subject it arrived.
        """
        try:
            if reason := self._distrusted():
                raise EnvelopeError(reason)
            public = self._kit.public_key(self._parent.node)
            envelope = open_envelope(data, self._parent.node, self._kit.name, public)
            if run is not None and envelope.run != run:
                raise EnvelopeError("the envelope belongs to another run than the subject on which it arrived")
            self._replay_guard.check(envelope, self._open_runs)
            if self._service.anchors is not None:
                parent, log = self._parent.node, envelope.run if self._parent.node == COORDINATOR else ""
                self._service.anchors.book.note(parent, envelope.audit, data, envelope.run, log)
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
        self.requests.put(envelope)

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
