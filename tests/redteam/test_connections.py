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
from hansa.deploy.broker import Broker
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.blob_client import BlobClient
from hansa.deploy.network.blob_server import BlobServer
from hansa.deploy.network.connection import Connection, ConnectionLost
from hansa.deploy.network.connection_table import ConnectionLimits, ConnectionTable
from hansa.deploy.network.retry import GaveUp, Retry
from tests.conftest import Build
from tests.deploy.conftest import free_ports, make_kits

# ── a stranger's idle sockets at the blob server ──────────────────────────────────────────────────────────────────────

IDLE_SOCKETS = 1100
DESCRIPTORS = 1024  # the usual limit of a process
BLOB = b"weights" * 1000
NO_LIMITS = ConnectionLimits(pending=10**9, pending_per_address=10**9, handshake_seconds=3600.0)


def serve_blob(folder: str, kits: str, port: int, limits: ConnectionLimits | None, ready: Any) -> None:
    """A process with a blob server that offers one blob to north."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    if limits == NO_LIMITS:
        ConnectionTable.make_room = lambda self: None  # type: ignore[method-assign]
    kit = Kit(Path(kits) / COORDINATOR)
    server = BlobServer(Path(folder), ("127.0.0.1", port), kit.server_tls(), kit.identify, lambda *_: None, limits)
    ready.put(server.offer(memoryview(BLOB), ["north"]))
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


def fetched(kits: Path, port: int, ref: Any, seconds: float) -> bool:
    """Whether north gets its blob in time."""
    until = monotonic() + seconds
    target = memoryview(bytearray(len(BLOB)))
    client = BlobClient(
        ("localhost", port),
        Kit(kits / "north").client_tls(),
        lambda: Retry(lambda _: None, lambda: monotonic() > until, until),
    )
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
    kits, [port] = make_kits(federation(), tmp_path / "kits"), free_ports(1)
    context = get_context("forkserver")
    ready = context.Queue()
    process = context.Process(target=serve_blob, args=(str(tmp_path / "blobs"), str(kits), port, limits, ready))
    process.start()
    try:
        ref = ready.get(timeout=120)
        assert fetched(kits, port, ref, 30), "without an attack north gets its blob"
        with idle_sockets(port, IDLE_SOCKETS):
            attempts = [fetched(kits, port, ref, 30 if served else 4) for _ in range(5 if served else 1)]
            assert set(attempts) == {served}
    finally:
        process.kill()
        process.join()


# ── subscriptions of a member at the broker ───────────────────────────────────────────────────────────────────────────

SUBSCRIPTIONS = 60_000


@pytest.mark.parametrize("defended", [False, True], ids=["off", "on"])
def test_a_member_cannot_fill_the_brokers_memory_with_subscriptions(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    if not defended:
        monkeypatch.setattr(nats_config, "MAX_SUBSCRIPTIONS", 0)  # NATS: no limit
    kits = make_kits(federation(), tmp_path / "kits")
    kit, north = Kit(kits / COORDINATOR), Kit(kits / "north")
    broker = Broker(kit, tmp_path / "broker", print)
    try:
        memory = psutil.Process(broker.pid).memory_info
        before, inbox = memory().rss, north.parent_subjects.inbox("north")
        accepted = subscribed(north, inbox)
        grown = memory().rss - before
        print(f"{accepted} subscriptions, {grown / 2**20:.0f} MB more")
        assert (accepted == SUBSCRIPTIONS) is not defended
        assert (grown > 20 << 20) is not defended
        south = Kit(kits / "south")
        Connection(south.parent.broker_address, south.client_tls(), south.parent_subjects.inbox("south")).close()
    finally:
        broker.close()


@pytest.mark.parametrize("defended", [False, True], ids=["off", "on"])
def test_a_member_cannot_take_all_connections_to_the_broker(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """North opens as many connections as it can; then south wants one."""
    monkeypatch.setattr(nats_config, "MAX_CONNECTIONS", 100)
    monkeypatch.setattr("hansa.deploy.broker.COUNT_SECONDS", 0.0)
    kits = make_kits(federation(), tmp_path / "kits")
    north, south, said = Kit(kits / "north"), Kit(kits / "south"), list[str]()
    broker = Broker(Kit(kits / COORDINATOR), tmp_path / "broker", said.append)
    held, tls = [], north.client_tls()
    try:
        with suppress(ConnectionLost):
            for _ in range(120):
                held.append(Connection(north.parent.broker_address, tls, north.parent_subjects.inbox("north")))
        assert len(held) == 100
        until = monotonic() + 10
        while defended and not said and monotonic() < until:
            broker.limit_connections()
        assert bool(said) is defended
        assert connects(south, 10 if defended else 1) is defended
        assert connects(north, 1) is False
    finally:
        for connection in held:
            connection.close()
        broker.close()


def connects(kit: Kit, seconds: float) -> bool:
    until = monotonic() + seconds
    while True:
        try:
            address, inbox = kit.parent.broker_address, kit.parent_subjects.inbox(kit.name)
            Connection(address, kit.client_tls(), inbox).close()
            return True
        except ConnectionLost:
            if monotonic() > until:
                return False
            sleep(0.1)


def subscribed(kit: Kit, inbox: str) -> int:
    """How many subscriptions the broker accepts on connections that are opened again when they are closed."""
    done = 0
    for _ in range(3):
        connection = Connection(kit.parent.broker_address, kit.client_tls(), inbox)
        try:
            while done < SUBSCRIPTIONS:
                for number in range(done, done + 1000):
                    connection.subscribe(f"{inbox}.{number}.{'x' * 60}")
                connection._send(b"PING\r\n")
                connection._await_pong(monotonic() + 30)
                done += 1000
        except (ConnectionLost, TimeoutError, OSError):
            pass  # the broker refused the subscriptions
        finally:
            connection.close()
    return done
