"""The server session of a coordinator or a region: its port, broker, journal, and the link that uses them."""

import resource
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import time
from typing import Any

from hansa.core.errors import HansaError, UserError, printable
from hansa.deploy.broker import Broker
from hansa.deploy.kit import Kit
from hansa.deploy.listener import ChildListener
from hansa.deploy.lock_file import lock_folder
from hansa.deploy.network.address import Address, parse_address
from hansa.deploy.network.blob_server import BlobServer
from hansa.deploy.network.front import Front
from hansa.deploy.network.journal import MAX_REASONS, Journal
from hansa.deploy.network.link import NatsLink
from hansa.deploy.network.page_server import serve_pages
from hansa.deploy.network.presence import Presence
from hansa.deploy.network.route import Route
from hansa.deploy.network.sealed import SessionTable
from hansa.deploy.network.session import Session, no_log
from hansa.deploy.status import JOURNAL, WaitingLog

SUPERVISE_SECONDS = 0.25

Log = Callable[[str], None]


@contextmanager
def server_session(
    kit: Kit,
    folder: Path,
    nats: str | None,
    log: Log,
    children: Sequence[str] | None = None,
    listen: str | None = None,
    pages: Any | None = None,
) -> Iterator[NatsLink]:
    """Serve the children of a node, by default all members below it, and yield the link to them.

    ``folder`` holds everything that survives a crash: a session that is started there again continues. ``nats``: the
    URLs of existing NATS servers; by default the kit's, or one that is started here. ``log`` receives problems.
    ``listen``: PORT or HOST:PORT, by default the port of the kit's first address. ``pages``: an ASGI application that
    answers all paths of the port that are not the members'.
    """
    with ExitStack() as stack:
        stack.enter_context(lock_folder(folder, "hansa serve"))
        kit.list.remember_in(folder)
        journal = Journal(folder / JOURNAL)
        stack.callback(journal.close)
        presence = Presence(kit, journal, log)

        uncounted: set[tuple[str, str]] = set()

        def refused(node: str, reason: str) -> None:
            try:
                first = journal.count_refusal(node, reason)
            except sqlite3.Error:  # a full disk, which is worth a line, or the session ends
                first = (node, reason) not in uncounted and len(uncounted) < MAX_REASONS
                uncounted.add((node, reason))
            if first:
                log(f"{printable(node)}: {printable(reason)}")

        blobs = BlobServer(folder / "blobs", refused, lambda node: bool(presence.suspended(node)))
        broker, route = None, nats_route(kit, nats)
        address = parse_listen(listen) if listen is not None else default_listen(kit)
        if route is None:
            check_port(address)
            broker = Broker(kit, folder / "broker", log)
            stack.callback(broker.close)
            route = Route(broker.addresses, None)
        allow_descriptors()
        sessions = SessionTable(kit, kit.info.federation)
        behind = stack.enter_context(serve_pages(pages)) if pages is not None else None
        try:
            front = Front(address, kit.server_tls(), kit.identify, sessions, refused, blobs.handlers, route, behind)
        except OSError as error:
            raise port_taken(address, error) from None
        stack.callback(front.close)
        stack.callback(_start_supervisor(kit, front, broker, journal, log))
        subjects = kit.child_subjects
        inbox = subjects.inbox(kit.name)
        session = Session(route, lambda: kit.key, inbox, [f"{subjects.root}.rep.*"], log)
        stack.callback(session.close)
        served = kit.children if children is None else children
        link = NatsLink(kit, subjects, served, session, blobs, journal, presence, refused, route.replicas)

        def heartbeats(stop: Callable[[], bool]) -> Session:
            subject = f"{subjects.root}.heartbeat.*"
            return Session(route, lambda: kit.key, inbox, [subject], no_log, stop)

        stack.callback(ChildListener(heartbeats, kit, journal, presence, refused, log).close)
        yield link


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


def _start_supervisor(kit: Kit, front: Front, broker: Broker | None, journal: Journal, log: Log) -> Callable[[], None]:
    """Restart a dead broker, disconnect revoked members and log awaited nodes, in a thread.

    Returns how to stop it.
    """
    stop = threading.Event()
    waiting = WaitingLog(journal, log)

    def supervise() -> None:
        read = kit.serial
        while not stop.wait(SUPERVISE_SECONDS):
            try:
                if broker is not None:
                    broker.restart_if_dead()
                waiting.update(time())
                if (now := kit.serial) != read:
                    read = now
                    log(f"the list of members has changed: its serial number is {now}")
                    front.disconnect(kit.trusts)
                    if broker is not None:
                        broker.reload()
            except (HansaError, OSError, sqlite3.Error) as error:
                log(f"{error}; trying again in a second")
                stop.wait(1.0)

    thread = threading.Thread(target=supervise, name="hansa-supervisor", daemon=True)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    return end
