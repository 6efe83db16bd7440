"""The standing part of a coordinator or a region: its port, its NATS server and what it knows about its children.

A `StandingServer` lasts as long as the process. Runs are opened on it, one after another or several at the same time;
each has its own journal, spool, subjects and link. Heartbeats, suspensions and departures concern all runs, so they are
in the journal of the standing server.
"""

import os
import resource
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic, time
from typing import Any

from hansa.core.errors import HansaError, UserError, printable
from hansa.deploy.broker import Broker
from hansa.deploy.kit import Kit
from hansa.deploy.listener import ChildListener
from hansa.deploy.lock_file import lock_folder
from hansa.deploy.network.address import Address, parse_address
from hansa.deploy.network.attendance import Attendance
from hansa.deploy.network.blob_server import BlobServer
from hansa.deploy.network.blob_servers import BlobServers
from hansa.deploy.network.connection import Connection, JetStreamError
from hansa.deploy.network.front import Front
from hansa.deploy.network.journal import MAX_REASONS, Journal
from hansa.deploy.network.link import NatsLink
from hansa.deploy.network.page_server import serve_pages
from hansa.deploy.network.presence import Presence
from hansa.deploy.network.retry import GaveUp
from hansa.deploy.network.route import Route
from hansa.deploy.network.sealed import SessionTable
from hansa.deploy.network.session import Session, no_log
from hansa.deploy.network.stream import create_stream, purge_run
from hansa.deploy.network.tls import public_tls
from hansa.deploy.public_certificate import PublicCertificate, self_signed
from hansa.deploy.status import CHILDREN, JOURNAL, OPEN_RUNS, STANDING, WaitingLog

SUPERVISE_SECONDS = 0.25
PURGE_SECONDS = 5.0  # for deleting the messages of a run that has ended
BLOBS_FOLDER = "blobs"

Log = Callable[[str], None]
Refused = Callable[[str, str], None]


class StandingServer:
    """The open port of the node with ``kit``, on which runs are opened; made by `standing_server`.

    ``folder`` holds what survives a crash, ``journal`` what is known about the children; ``route`` leads to the NATS
    server.
    """

    def __init__(self, kit: Kit, folder: Path, journal: Journal, presence: Presence, route: Route, log: Log) -> None:
        self.kit, self.folder, self.journal = kit, folder, journal
        self._presence, self._route = presence, route
        self._lock = threading.Lock()
        self._runs: dict[str, tuple[Path, WaitingLog]] = {}
        self.refused = refusal_counter(journal, log)
        self.blobs = BlobServers(BlobServer(folder / BLOBS_FOLDER, self.refused, self._suspended))
        journal.set_fact(OPEN_RUNS, {})

    def _suspended(self, node: str) -> bool:
        return bool(self._presence.suspended(node))

    def runs(self) -> tuple[str, ...]:
        """The ids of the open runs, in the order in which they were opened."""
        with self._lock:
            return tuple(self._runs)

    def session(self, subscriptions: list[str], log: Log, stop: Callable[[], bool] = lambda: False) -> Session:
        """A lasting connection of this node to the NATS server."""
        kit = self.kit
        return Session(self._route, lambda: kit.key, kit.child_subjects.inbox(kit.name), subscriptions, log, stop)

    @contextmanager
    def open_run(self, folder: Path, children: Sequence[str], log: Log) -> Iterator[NatsLink]:
        """Open the run whose files are in ``folder``, for some of the children, and yield the link to them.

        ``folder`` holds everything that survives a crash: a run that is opened there again continues. It may be the
        standing server's own folder, where there is only one run. ``log`` receives problems of the run.
        """
        with ExitStack() as stack:
            journal = self.journal
            if folder != self.folder:
                stack.enter_context(lock_folder(folder, "hansa serve"))
                journal = Journal(folder / JOURNAL)
                stack.callback(journal.close)
                journal.set_fact(STANDING, os.path.relpath(self.folder / JOURNAL, folder))
            refused = refusal_counter(journal, log)
            blobs = BlobServer(folder / BLOBS_FOLDER, refused, self._suspended)
            subjects = self.kit.child_subjects.of_run(journal.run)
            session = self.session([subjects.replies], log)
            stack.callback(session.close)
            attendance = Attendance(self.journal, self.kit, self._presence)
            link = NatsLink(self.kit, subjects, children, session, blobs, journal, attendance, self._presence, refused)
            stack.enter_context(self.blobs.serving(blobs))
            self._register(journal, folder, log)
            stack.callback(self._unregister, journal.run)
            yield link
            if folder != self.folder:
                with suppress(GaveUp, JetStreamError):
                    session.do(lambda connection: purge_run(connection, subjects), monotonic() + PURGE_SECONDS)

    def _register(self, journal: Journal, folder: Path, log: Log) -> None:
        with self._lock:
            if journal.run in self._runs:
                raise UserError(
                    f"{folder} is a copy of a run that this coordinator is already working on: stop that run, or "
                    "remove the copy"
                )
            self._runs[journal.run] = folder, WaitingLog(journal, log)
            self._note_runs()

    def _unregister(self, run: str) -> None:
        with self._lock:
            del self._runs[run]
            with suppress(sqlite3.Error):  # a full disk
                self._note_runs()

    def _note_runs(self) -> None:
        own = self.folder.resolve()
        found = {run: str(folder.resolve()) for run, (folder, _) in self._runs.items() if folder.resolve() != own}
        self.journal.set_fact(OPEN_RUNS, found)

    def note_children(self) -> None:
        """Note all children for `hansa status`, unless a run has its own list in this journal."""
        with self._lock:
            if all(folder != self.folder for folder, _ in self._runs.values()):
                self.journal.set_fact(CHILDREN, list(self.kit.children))

    def log_waiting(self, now: float) -> None:
        """Log, for every run, which nodes it waits for."""
        with self._lock:
            waiting = [one for _, one in self._runs.values()]
            for one in waiting:
                one.update(now)


@contextmanager
def standing_server(
    kit: Kit,
    folder: Path,
    nats: str | None,
    log: Log,
    listen: str | None = None,
    pages: Any | None = None,
    public: PublicCertificate | None = None,
) -> Iterator[StandingServer]:
    """Open the port of a node, and serve its children until the body ends.

    ``folder`` holds what survives a crash. ``nats``: the URLs of existing NATS servers; by default the kit's, or one
    that is started here. ``log`` receives problems. ``listen``: PORT or HOST:PORT, by default the port of the kit's
    first address. ``pages``: an ASGI application that answers all paths of the port that are not the members'.
    ``public``: the certificate for browsers and for proxies that inspect TLS; by default one that is signed here.
    """
    with ExitStack() as stack:
        stack.enter_context(lock_folder(folder, "hansa serve"))
        kit.list.remember_in(folder)
        journal = Journal(folder / JOURNAL)
        stack.callback(journal.close)
        presence = Presence(kit, journal, log)
        broker, route = None, nats_route(kit, nats)
        address = parse_listen(listen) if listen is not None else default_listen(kit)
        if route is None:
            check_port(address)
            broker = Broker(kit, folder / "broker", log)
            stack.callback(broker.close)
            route = Route(broker.addresses, None)
        server = StandingServer(kit, folder, journal, presence, route, log)
        allow_descriptors()
        sessions = SessionTable(kit, kit.info.federation)
        behind = stack.enter_context(serve_pages(pages)) if pages is not None else None
        handlers = server.blobs.handlers
        shown = public or self_signed(folder, list(dict.fromkeys(host for host, _ in kit.endpoint.all())))
        if pages is not None:
            log(f"the certificate for browsers has the SHA-256 fingerprint {shown.fingerprint}")
        tls, others = kit.server_tls(), public_tls(*shown)
        try:
            front = Front(address, tls, kit.identify, sessions, server.refused, handlers, route, behind, public=others)
        except OSError as error:
            raise port_taken(address, error) from None
        stack.callback(front.close)
        stack.callback(_start_supervisor(server, front, broker, log))
        subjects, replicas = kit.child_subjects, route.replicas

        def heard(stop: Callable[[], bool]) -> Session:
            """A session that receives the children's heartbeats and replies until ``stop`` returns true."""
            return server.session([f"{subjects.root}.heartbeat.*", subjects.replies], no_log, stop)

        def prepare(connection: Connection) -> None:
            """Create the stream of the children's messages at the broker."""
            create_stream(connection, subjects, replicas)

        first = server.session([], log)
        try:
            first.do(prepare)
        finally:
            first.close()
        server.note_children()
        stack.callback(ChildListener(heard, kit, journal, presence, server.runs, server.refused, log).close)
        yield server


def refusal_counter(journal: Journal, log: Log) -> Refused:
    """Return what counts a refusal in a journal, and logs the first of every kind."""
    uncounted: set[tuple[str, str]] = set()

    def refused(node: str, reason: str) -> None:
        """Count a refusal of a node; log it if the journal, or without one this process, has not seen it before."""
        try:
            first = journal.count_refusal(node, reason)
        except sqlite3.Error:  # a full disk, which is worth a line, or the session ends
            first = (node, reason) not in uncounted and len(uncounted) < MAX_REASONS
            uncounted.add((node, reason))
        if first:
            log(f"{printable(node)}: {printable(reason)}")

    return refused


def default_listen(kit: Kit) -> Address:
    """Where a server listens by default: at the port of its first address, on the loopback interface if it is there."""
    endpoint = kit.endpoint
    return ("127.0.0.1" if endpoint.host in ("localhost", "127.0.0.1") else "", endpoint.port)


def parse_listen(text: str) -> Address:
    """The address of --listen, PORT or HOST:PORT; raises `UserError` if it is something else."""
    try:
        return parse_address(text) if ":" in text else ("", parse_address(f"x:{text}")[1])
    except ValueError as error:
        raise UserError(f"--listen {text!r}: {error}; write it as PORT or HOST:PORT") from None


def allow_descriptors() -> None:
    """Let this process open as many files and sockets as the system permits it; each member needs five."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def check_port(address: Address) -> None:
    """Raise `UserError` at once if the port cannot be opened."""
    try:
        socket.create_server(address).close()
    except OSError as error:
        raise port_taken(address, error) from None


def port_taken(address: Address, error: OSError) -> UserError:
    """The error of a port that cannot be opened."""
    return UserError(
        f"port {address[1]} cannot be opened ({error.strerror}); free it, or choose another one with --listen"
    )


def nats_route(kit: Kit, nats: str | None) -> Route | None:
    """The way to existing NATS servers: those of ``nats``, or the kit's; None if there are none."""
    addresses = parse_urls(nats) if nats is not None else [parse_address(one) for one in kit.endpoint.nats]
    return Route(lambda: addresses, kit.client_tls()) if addresses else None


def parse_urls(text: str) -> list[Address]:
    """The addresses in wss://HOST:PORT,wss://HOST:PORT…; raises `UserError` if it is something else."""
    try:
        return [parse_address(one.strip().removeprefix("wss://"), 443) for one in text.split(",")]
    except ValueError:
        raise UserError(f"--nats {text!r}: write it as wss://HOST:PORT, several with commas between") from None


def _start_supervisor(server: StandingServer, front: Front, broker: Broker | None, log: Log) -> Callable[[], None]:
    """Restart a dead broker, disconnect revoked members and log awaited nodes, in a thread.

    Returns how to stop it.
    """
    stop, kit = threading.Event(), server.kit

    def supervise() -> None:
        """The loop of the thread, which reads the list of members again whenever its serial number changes."""
        read = kit.serial
        while not stop.wait(SUPERVISE_SECONDS):
            try:
                if broker is not None:
                    broker.restart_if_dead()
                server.log_waiting(time())
                if (now := kit.serial) != read:
                    read = now
                    log(f"the list of members has changed: its serial number is {now}")
                    server.note_children()
                    front.disconnect(kit.trusts)
                    if broker is not None:
                        broker.reload()
            except (HansaError, OSError, sqlite3.Error) as error:
                log(f"{error}; trying again in a second")
                stop.wait(1.0)

    thread = threading.Thread(target=supervise, name="hansa-supervisor", daemon=True)
    thread.start()

    def end() -> None:
        """Stop the thread, and wait until it has ended."""
        stop.set()
        thread.join()

    return end
