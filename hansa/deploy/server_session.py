"""The server session of a coordinator or a region: broker, blob server, journal, and the link that uses them."""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import time

from hansa.core.errors import HansaError, UserError, printable
from hansa.deploy.broker import Broker
from hansa.deploy.kit import Kit
from hansa.deploy.listener import ChildListener
from hansa.deploy.lock_file import lock_folder
from hansa.deploy.network.address import Loopback
from hansa.deploy.network.blob_server import BlobServer
from hansa.deploy.network.journal import MAX_REASONS, Journal
from hansa.deploy.network.link import NatsLink
from hansa.deploy.network.presence import Presence
from hansa.deploy.network.session import Session, no_log
from hansa.deploy.status import JOURNAL, WaitingLog

SUPERVISE_SECONDS = 0.25

Log = Callable[[str], None]


@contextmanager
def server_session(
    kit: Kit, folder: Path, nats: str | None, log: Log, children: Sequence[str] | None = None
) -> Iterator[NatsLink]:
    """Serve the children of a node, by default all members below it, and yield the link to them.

    ``folder`` holds everything that survives a crash: a session that is started there again continues. ``nats``: the
    URL of an existing NATS server; by default the kit's, or one that is started here. ``log`` receives problems.
    """
    endpoint = kit.endpoint
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

        def identify(names: list[str]) -> str:
            node = kit.identify(names)
            return "" if node and presence.suspended(node) else node

        host = "127.0.0.1" if endpoint.host in ("localhost", "127.0.0.1") else ""
        try:
            address = (host, endpoint.blob_port)
            blobs = BlobServer(folder / "blobs", address, kit.server_tls(), identify, refused)
        except OSError as error:
            raise UserError(
                f"port {endpoint.blob_port}, for the blob server, cannot be opened ({error.strerror}); free it"
            ) from None
        stack.callback(blobs.close)
        broker, broker_address, proxy = None, parse_url(nats) if nats is not None else endpoint.broker_address, None
        if nats is None and not endpoint.broker_host:
            broker = Broker(kit, folder / "broker", log)
            stack.callback(broker.close)
            proxy = Loopback()
        stack.callback(_start_supervisor(kit, blobs, broker, journal, presence, log))
        subjects = kit.child_subjects
        inbox = subjects.inbox(kit.name)
        session = Session(broker_address, kit.client_tls(), inbox, [f"{subjects.root}.rep.*"], log, proxy=proxy)
        stack.callback(session.close)
        served = kit.children if children is None else children
        link = NatsLink(kit, subjects, served, session, blobs, journal, presence, refused)

        def heartbeats(stop: Callable[[], bool]) -> Session:
            subject = f"{subjects.root}.heartbeat.*"
            return Session(broker_address, kit.client_tls(), inbox, [subject], no_log, stop, proxy)

        stack.callback(ChildListener(heartbeats, kit, journal, presence, refused, log).close)
        yield link


def parse_url(url: str) -> tuple[str, int]:
    """The host and port of a NATS URL; raises `UserError` if it is not one."""
    host, _, port = url.removeprefix("tls://").removeprefix("nats://").partition(":")
    if not host or not (port or "4222").isdigit():
        raise UserError(f"--nats {url!r}: write it as tls://HOST:PORT")
    return host, int(port or 4222)


def _start_supervisor(
    kit: Kit, blobs: BlobServer, broker: Broker | None, journal: Journal, presence: Presence, log: Log
) -> Callable[[], None]:
    """Restart a dead broker, disconnect revoked and suspended members and log awaited nodes, in a thread.

    Returns how to stop it.
    """
    stop = threading.Event()
    waiting = WaitingLog(journal, log)

    def supervise() -> None:
        read, suspended = kit.serial, set[str]()
        while not stop.wait(SUPERVISE_SECONDS):
            try:
                if broker is not None:
                    broker.restart_if_dead()
                    broker.limit_connections()
                waiting.update(time())
                if suspended != (found := set(presence.all_suspended())):
                    suspended = found
                    blobs.disconnect_revoked()
                if (now := kit.serial) != read:
                    read = now
                    log(f"the list of members has changed: its serial number is {now}")
                    blobs.disconnect_revoked()
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
