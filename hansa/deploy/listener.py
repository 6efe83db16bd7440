"""A parent's listener: it hears the heartbeats of the children and who leaves, and sends them notes.

It has a connection of its own, in a thread, and serves all runs. Heartbeats go to the journal, from which `hansa
status` reads, and to `Presence`, which suspends a name that two processes use. Notes tell every child the newest list
of members, the open runs, and whether it is suspended; the broker stores them for children that are away.
"""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, time

from hansa.core.errors import printable
from hansa.deploy.kit import Kit
from hansa.deploy.network.connection import Connection, JetStreamError
from hansa.deploy.network.envelope import LEAVE, EnvelopeError, open_envelope
from hansa.deploy.network.heartbeat import Heartbeat, describe, open_heartbeat
from hansa.deploy.network.journal import HEARTBEAT, Journal
from hansa.deploy.network.note import MAX_RUNS, Note, pack_list, sign_note
from hansa.deploy.network.presence import Presence
from hansa.deploy.network.retry import GaveUp
from hansa.deploy.network.session import Session

NOTE_SECONDS = 0.5  # between two looks at what the children should be told
MAX_COMPARED = 1000  # differing lists that are remembered

Log = Callable[[str], None]


class ChildListener:
    """Listens to the children of the node with ``kit`` and sends them notes.

    ``open`` makes a session that ends when its argument returns true; ``runs`` returns the ids of the open runs;
    ``refused`` is called with a node and the reason why its heartbeat was refused.
    """

    def __init__(
        self,
        open: Callable[[Callable[[], bool]], Session],
        kit: Kit,
        journal: Journal,
        presence: Presence,
        runs: Callable[[], tuple[str, ...]],
        refused: Callable[[str, str], None],
        log: Log,
    ) -> None:
        self._runs = runs
        self._stop = threading.Event()
        self._kit, self._journal, self._presence = kit, journal, presence
        self._refused, self._log = refused, log
        self._subjects = kit.child_subjects
        self._noted: dict[str, tuple[int, str, tuple[str, ...]]] = {}  # what the newest note to a child says
        self._names: tuple[int, dict[str, str]] = (-1, {})  # subject → child, in a list of members
        self._connections = 0
        self._compared: set[tuple[str, int, str]] = set()
        self._session = open(self._stop.is_set)
        self._session.do(lambda connection: None)  # connect before any request is sent, to miss no heartbeat
        self._thread = threading.Thread(target=self._listen, name="hansa-heartbeats", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._stop.set()
        self._thread.join()

    def _listen(self) -> None:
        notes_at = 0.0
        try:
            while not self._stop.is_set():
                if monotonic() >= notes_at:
                    if self._connections != self._session.connections:  # messages may have been missed
                        self._connections = self._session.connections
                        self._noted = {}  # the broker may have lost its store
                        self._read_leaves()
                    self._send_notes()
                    notes_at = monotonic() + NOTE_SECONDS
                message = self._session.next(0.5)
                if message is not None:
                    self._receive(message.subject, bytes(message.payload))
        except GaveUp:
            pass
        finally:
            self._session.close()

    def _receive(self, subject: str, data: bytes) -> None:
        if self._names[0] != self._kit.serial:
            names = {self._subjects.heartbeat(name): name for name in self._kit.children}
            names |= {self._subjects.reply(name): name for name in self._kit.children}
            self._names = self._kit.serial, names
        node = self._names[1].get(subject)
        if node is None or not self._kit.trusts(node):
            return
        if subject == self._subjects.reply(node):
            self._receive_leave(node, data)
            return
        try:
            heartbeat = open_heartbeat(data, node, self._kit.name, self._kit.public_key(node))
        except ValueError as error:
            self._refused(node, printable(str(error)))
            return
        self._compare(heartbeat)
        with suppress(sqlite3.OperationalError):  # a full disk; the next heartbeat comes soon
            self._presence.heard(heartbeat)
            self._journal.set_fact(HEARTBEAT + node, describe(heartbeat, time()))

    def _read_leaves(self) -> None:
        """Read which children have said, perhaps while this node was away, that they leave for good."""
        for node in self._kit.children:
            stored = self._subjects.latest(self._subjects.reply(node))
            message = self._session.do(lambda connection, s=stored: connection.request(s))  # type: ignore[misc]
            if not message.status and self._kit.trusts(node):
                self._receive_leave(node, bytes(message.payload))

    def _receive_leave(self, node: str, data: bytes) -> None:
        """Note that a child leaves: `hansa leave` says so in an envelope that belongs to no run."""
        try:
            envelope = open_envelope(data, node, self._kit.name, self._kit.public_key(node))
            if envelope.kind == LEAVE:
                self._journal.record_leave(node, self._kit.public_key(node).public_bytes_raw().hex())
        except EnvelopeError as error:
            self._refused(node, printable(str(error)))

    def _compare(self, heartbeat: Heartbeat) -> None:
        """Log, once, that a child's list of members differs from this node's."""
        own = self._kit.list.current()
        seen = heartbeat.node, heartbeat.serial, heartbeat.digest
        if (heartbeat.serial, heartbeat.digest) == (own.serial, own.digest) or seen in self._compared:
            return
        if len(self._compared) >= MAX_COMPARED:
            return
        if heartbeat.serial == own.serial:
            self._log(
                f"{heartbeat.node} has another list of members with serial number {own.serial}: two copies of the "
                "authority sign lists; ask the authority"
            )
        elif heartbeat.serial > own.serial:
            self._log(
                f"{heartbeat.node} has list of members {heartbeat.serial}, and this node has {own.serial}: copy the "
                f"newest members.json into {self._kit.folder}"
            )
        self._compared.add(seen)

    def _send_notes(self) -> None:
        """Send a note to every child for which something has changed."""
        serial, suspended, runs = self._kit.serial, self._presence.all_suspended(), self._runs()[-MAX_RUNS:]
        wanted = {name: (serial, suspended.get(name, ""), runs) for name in self._kit.children}
        changed = {name: state for name, state in wanted.items() if self._noted.get(name) != state}
        if not changed:
            return
        members = pack_list(self._kit.list.current().text)
        if not members:
            self._log("the list of members is too long for a note: copy members.json into the kits of all members")
        for name, state in changed.items():
            note = Note(self._kit.name, name, time(), state[1], members, runs)
            data = sign_note(note, self._kit.key)
            try:
                self._session.do(lambda connection, n=name, d=data: self._publish(connection, n, d))  # type: ignore[misc]
            except JetStreamError as error:
                self._log(f"a note to {name} cannot be stored ({error}); 'hansa serve' tries again")
                return
            self._noted[name] = state

    def _publish(self, connection: Connection, node: str, data: bytes) -> None:
        connection.checked(connection.request(self._subjects.note(node), data))
