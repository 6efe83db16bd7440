"""The place from which a coordinator or a region asks: broker, depot, journal, and the link that uses them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import time

from hansa.core.errors import HansaError, UserError, printable
from hansa.deploy.broker import Broker
from hansa.deploy.kit import Kit
from hansa.deploy.lock_file import lock_folder
from hansa.deploy.network.address import Here
from hansa.deploy.network.blob_server import BlobServer
from hansa.deploy.network.journal import Journal
from hansa.deploy.network.link import NatsLink
from hansa.deploy.network.session import Session, unsaid
from hansa.deploy.status import Awaited, Roster

TEND_SECONDS = 0.25

Say = Callable[[str], None]


@contextmanager
def server_session(kit: Kit, folder: Path, nats: str | None, say: Say) -> Iterator[NatsLink]:
    """Everything below ``folder`` survives a crash; whoever sits down there again continues."""
    place = kit.card.serves
    if place is None:
        raise UserError(f"{kit.folder} is a silo's kit: it serves nobody; use 'hansa join'")
    with ExitStack() as stack:
        stack.enter_context(lock_folder(folder, "hansa serve"))
        journal = Journal(folder / "journal.sqlite")
        stack.callback(journal.close)

        def refused(node: str, reason: str) -> None:
            if journal.refused(node, reason):
                say(f"{printable(node)}: {printable(reason)}")

        host = "127.0.0.1" if place.host in ("localhost", "127.0.0.1") else ""
        try:
            depot = BlobServer(folder / "depot", (host, place.bulk), kit.server_tls(), kit.identified, refused)
        except OSError as error:
            raise UserError(f"port {place.bulk}, for weights, cannot be opened ({error.strerror}); free it") from None
        stack.callback(depot.close)
        broker, address, through = None, parse_url(nats) if nats is not None else place.letters, None
        if nats is None and not place.broker:
            broker = Broker(kit, folder / "broker", say)
            stack.callback(broker.close)
            through = Here()
        stack.callback(_caretaker(kit, depot, broker, journal, say))
        subjects = kit.below
        listen = [f"{subjects.root}.rep.*"]
        session = Session(address, kit.client_tls(), subjects.inbox(kit.name), listen, say, proxy=through)
        stack.callback(session.close)
        link = NatsLink(kit, subjects, kit.card.children, session, depot, journal, refused)

        def listening(stop: Callable[[], bool]) -> Session:
            lives = [f"{subjects.root}.life.*"]
            return Session(address, kit.client_tls(), subjects.inbox(kit.name), lives, unsaid, stop, through)

        roster = Roster(listening, {subjects.life(name): name for name in kit.card.children}, journal)
        stack.callback(roster.close)
        yield link


def parse_url(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("tls://").removeprefix("nats://").partition(":")
    if not host or not (port or "4222").isdigit():
        raise UserError(f"--nats {url!r}: write it as tls://HOST:PORT")
    return host, int(port or 4222)


def _caretaker(kit: Kit, depot: BlobServer, broker: Broker | None, journal: Journal, say: Say) -> Callable[[], None]:
    """Restart the broker if it dies, cut off whoever was revoked, and tell who is awaited; returns how to stop."""
    stop = threading.Event()
    file = kit.folder / "members.json"
    patience = Awaited(journal, say)

    def tend() -> None:
        seen = file.stat().st_mtime_ns
        while not stop.wait(TEND_SECONDS):
            try:
                if broker is not None:
                    broker.tend()
                patience.tell(time())
                if (now := file.stat().st_mtime_ns) != seen:
                    seen = now
                    say("the list of members has changed")
                    depot.drop_strangers()
                    if broker is not None:
                        broker.reload()
            except (HansaError, OSError) as error:
                say(f"{error}; looked at again in a moment")
                stop.wait(1.0)

    thread = threading.Thread(target=tend, name="hansa-caretaker", daemon=True)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    return end
