"""Attacks with connections and subscriptions, of strangers and of members: real sockets, a real broker."""

import resource
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
import pytest

from hansa.deploy import nats_config
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.address import ConnectionLost
from hansa.deploy.network.blob_client import BlobClient
from hansa.deploy.network.connection import Connection
from hansa.deploy.network.connection_table import ConnectionLimits, ConnectionTable
from hansa.deploy.network.retry import GaveUp, Retry
from hansa.deploy.server_session import server_session
from tests.conftest import Build
from tests.deploy.conftest import make_kits
from tests.deploy.stage import Stage

# ── a stranger's idle sockets ─────────────────────────────────────────────────────────────────────────────────────────

IDLE_SOCKETS = 1100
DESCRIPTORS = 1024  # the usual limit of a process
BLOB = b"weights" * 1000
NO_LIMITS = ConnectionLimits(pending=10**9, pending_share=1.0, first_request_seconds=3600.0)


def serve_blob(folder: str, kits: str, limits: ConnectionLimits | None, ready: Any) -> None:
    """A process with a port that offers one blob to north."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    if limits == NO_LIMITS:
        ConnectionTable.make_room = lambda self: None  # type: ignore[method-assign]
    stage = Stage(Path(kits), Path(folder), limits)
    ready.put(stage.blobs.offer(memoryview(BLOB), ["north"]))
    threading.Event().wait()


@contextmanager
def idle_sockets(port: int, many: int) -> Iterator[None]:
    """A stranger that keeps connections open and sends nothing; each one that is closed is opened again."""
    stop, opened = threading.Event(), threading.Event()
    selector = selectors.DefaultSelector()

    def connect() -> None:
        one = socket.socket()
        one.setblocking(False)
        with suppress(BlockingIOError):
            one.connect(("127.0.0.1", port))
        selector.register(one, selectors.EVENT_READ)

    def attack() -> None:
        for _ in range(many):
            connect()
        sleep(1.0)
        opened.set()
        while not stop.is_set():
            for key, _ in selector.select(0.05):
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
                connect()

    thread = threading.Thread(target=attack, daemon=True)
    thread.start()
    try:
        assert opened.wait(60)
        yield
    finally:
        stop.set()
        thread.join()
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        selector.close()


def fetched(kits: Path, ref: Any, seconds: float) -> bool:
    """Whether north gets its blob in time."""
    until = monotonic() + seconds
    target = memoryview(bytearray(len(BLOB)))
    retry = lambda: Retry(lambda _: None, lambda: monotonic() > until, until)  # noqa: E731
    client = BlobClient(Kit(kits / "north").route(), retry)
    found: list[bool] = []

    def fetch() -> None:
        with suppress(GaveUp):
            client.fetch(ref, target)
            found.append(bytes(target) == BLOB)

    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(seconds + 1)
    in_time = found == [True]
    thread.join()  # a connection attempt that is under way has a bound of its own
    client.close()
    return in_time


@pytest.mark.parametrize(("limits", "served"), [(NO_LIMITS, False), (None, True)], ids=["off", "on"])
def test_idle_sockets_of_a_stranger_do_not_turn_members_away(
    federation: Build, tmp_path: Path, limits: Any, served: bool
) -> None:
    """The stranger has the same address as the member: the harder case."""
    kits = make_kits(federation(), tmp_path / "kits")
    port = Kit(kits / COORDINATOR).endpoint.port
    context = get_context("forkserver")
    ready = context.Queue()
    process = context.Process(target=serve_blob, args=(str(tmp_path / "blobs"), str(kits), limits, ready))
    process.start()
    try:
        ref = ready.get(timeout=120)
        assert fetched(kits, ref, 30), "without an attack north gets its blob"
        with idle_sockets(port, IDLE_SOCKETS):
            attempts = [fetched(kits, ref, 30 if served else 4) for _ in range(5 if served else 1)]
            assert set(attempts) == {served}
    finally:
        process.kill()
        process.join()


# ── subscriptions and connections of a member at the broker ───────────────────────────────────────────────────────────

SUBSCRIPTIONS = 60_000


@pytest.mark.parametrize("defended", [False, True], ids=["off", "on"])
def test_a_member_cannot_fill_the_brokers_memory_with_subscriptions(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    if not defended:
        monkeypatch.setattr(nats_config, "MAX_SUBSCRIPTIONS", 0)  # NATS: no limit
    kits = make_kits(federation(), tmp_path / "kits")
    north, south = Kit(kits / "north"), Kit(kits / "south")
    with server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, print):
        memory = psutil.Process(int((tmp_path / "server" / "broker" / "nats.pid").read_text())).memory_info
        before, inbox = memory().rss, north.parent_subjects.inbox("north")
        accepted = subscribed(north, inbox)
        grown = memory().rss - before
        print(f"{accepted} subscriptions, {grown / 2**20:.0f} MB more")
        assert (accepted == SUBSCRIPTIONS) is not defended
        assert (grown > 20 << 20) is not defended
        connection(south).close()


def connection(kit: Kit) -> Connection:
    return Connection(kit.route(), kit.key, kit.parent_subjects.inbox(kit.name))


@pytest.mark.parametrize("defended", [False, True], ids=["off", "on"])
def test_a_member_cannot_take_all_connections_to_the_broker(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """North opens as many connections as it can; then south wants one."""
    monkeypatch.setattr(nats_config, "MAX_CONNECTIONS", 60)
    if not defended:
        monkeypatch.setattr(ConnectionTable, "admit", lambda *_: True)
    kits = make_kits(federation(), tmp_path / "kits")
    north, south = Kit(kits / "north"), Kit(kits / "south")
    held: list[Connection] = []
    with server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, print):
        try:
            with suppress(ConnectionLost):
                for _ in range(80):
                    held.append(connection(north))
            assert (len(held) == 80) is defended, "north loses its own old connections, and opens new ones"
            assert connects(south, 10 if defended else 1) is defended
        finally:
            for one in held:
                one.close()


def connects(kit: Kit, seconds: float) -> bool:
    until = monotonic() + seconds
    while True:
        try:
            connection(kit).close()
            return True
        except ConnectionLost:
            if monotonic() > until:
                return False
            sleep(0.1)


def subscribed(kit: Kit, inbox: str) -> int:
    """How many subscriptions the broker accepts on connections that are opened again when they are closed."""
    done = 0
    for _ in range(3):
        one = connection(kit)
        try:
            while done < SUBSCRIPTIONS:
                words = [f"SUB {inbox}.{number}.{'x' * 60} {number + 10}\r\n" for number in range(done, done + 1000)]
                for at in range(0, 1000, 250):
                    one._send("".join(words[at : at + 250]).encode())
                one._send(b"PING\r\n")
                one._await_pong(monotonic() + 30)
                done += 1000
        except (ConnectionLost, TimeoutError, OSError):
            pass  # the broker refused the subscriptions
        finally:
            one.close()
    return done
