"""The port for weights: transfers that break off continue; who asks for others' things, or too much, gets nothing."""

import json
import os
import resource
import socket
import threading
from contextlib import contextmanager

import pytest

from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.blob_client import BlobClient
from hansa.deploy.network.blob_server import CHUNK_BYTES, BlobServer, RequestRefused, digest, read_line, write_line
from hansa.deploy.network.retry import Retry
from tests.deploy.conftest import free_ports, make_kits

REQUEST = "0" * 32


@pytest.fixture
def kits(federation, tmp_path):
    return make_kits(federation(), tmp_path / "kits")


class Place:
    """A blobs, and how silos get there."""

    def __init__(self, kits, folder):
        self.kits, self.refusals = kits, []
        kit = Kit(kits / COORDINATOR)
        self.address = ("localhost", free_ports(1)[0])
        say = lambda node, reason: self.refusals.append((node, reason))  # noqa: E731
        self.blobs = BlobServer(folder / "blobs", self.address, kit.server_tls(), kit.identify, say)

    def porter(self, name, seconds=120.0):
        from time import monotonic

        until = monotonic() + seconds
        return BlobClient(self.address, Kit(self.kits / name).client_tls(), lambda: Retry(print, lambda: False, until))

    @contextmanager
    def plain(self, name):
        """A TLS connection without manners."""
        connection = socket.create_connection(self.address, timeout=120)
        with Kit(self.kits / name).client_tls().wrap_socket(connection, server_hostname="localhost") as secured:
            yield secured


@pytest.fixture
def place(kits, tmp_path):
    place = Place(kits, tmp_path)
    yield place
    place.blobs.close()


def test_what_is_offered_is_fetched_and_what_is_brought_is_found(place):
    data = os.urandom(3 * CHUNK_BYTES + 17)
    ref = place.blobs.offer(memoryview(data), ["north"])
    target = memoryview(bytearray(len(data)))
    north = place.porter("north")
    north.fetch(ref, target)
    assert bytes(target) == data
    place.blobs.expect("north", REQUEST, 10 * CHUNK_BYTES)
    brought = north.upload(memoryview(data), REQUEST)
    assert place.blobs.found("north", brought).read_bytes() == data
    assert place.blobs.found("south", brought) is None, "what one brought is not another's"
    assert north.upload(memoryview(data), REQUEST) == brought, "twice is once"
    assert north.upload(memoryview(b""), REQUEST)[1] == 0
    north.close()


def test_an_interrupted_transfer_continues_where_it_stopped(place):
    data = memoryview(os.urandom(4 * CHUNK_BYTES))
    name = digest(data)
    place.blobs.expect("north", REQUEST, len(data))
    with place.plain("north") as connection:
        write_line(connection, {"put": name, "size": len(data), "for": REQUEST})
        assert read_line(connection) == {"from": 0}
        connection.sendall(data[: 2 * CHUNK_BYTES + 5])
    part = place.blobs.folder / "north" / f"{name}.part"
    for _ in range(6000):
        if part.exists() and part.stat().st_size == 2 * CHUNK_BYTES + 5:
            break
        threading.Event().wait(0.01)
    with place.plain("north") as connection:
        write_line(connection, {"put": name, "size": len(data), "for": REQUEST})
        start = read_line(connection)["from"]
        assert start == 2 * CHUNK_BYTES + 5, "all of the first attempt is there"
        connection.sendall(data[start:])
        assert read_line(connection) == {"done": True}
    assert place.blobs.found("north", (name, len(data))).read_bytes() == bytes(data)
    ref = place.blobs.offer(data, ["north"])
    with place.plain("north") as connection:
        write_line(connection, {"get": ref[0], "from": 3 * CHUNK_BYTES})
        assert read_line(connection) == {"size": len(data), "from": 3 * CHUNK_BYTES}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"get": "f" * 32, "from": 0}, "nothing of that name is offered"),
        ({"get": "OFFERED", "from": 0}, "nothing of that name is offered"),
        ({"get": "../../kit.json", "from": 0}, "nothing of that name is offered"),
        ({"get": "f" * 32, "from": -5}, "no question"),
        ({"put": "f" * 32, "size": 10 << 30, "for": REQUEST}, "more than the"),
        ({"put": "f" * 32, "size": 5, "for": "1" * 32}, "nobody waits"),
        ({"put": "../../../tmp/x", "size": 5, "for": REQUEST}, "not a digest"),
        ({"put": "f" * 32, "size": "5", "for": REQUEST}, "no question"),
        ({"put": "f" * 32, "size": -1, "for": REQUEST}, "no question"),
        ({"run": "rm"}, "no question"),
    ],
)
def test_whoever_asks_for_too_much_is_refused_and_counted(place, line, reason):
    name, _ = place.blobs.offer(memoryview(b"for south alone"), ["south"])
    place.blobs.expect("north", REQUEST, 1000)
    before = sorted(place.blobs.folder.rglob("*"))
    with place.plain("north") as connection:
        write_line(connection, {key: name if value == "OFFERED" else value for key, value in line.items()})
        assert reason in read_line(connection)["error"]
    assert reason in place.refusals[-1][1]
    assert place.refusals[-1][0] == "north"
    assert sorted(place.blobs.folder.rglob("*")) == before, "nothing was written"


def test_many_small_things_are_not_more_than_the_room(place):
    place.blobs.expect("north", REQUEST, 100)
    north = place.porter("north")
    north.upload(memoryview(b"x" * 60), REQUEST)
    with pytest.raises(RequestRefused, match="120 bytes are more than the 100"):
        north.upload(memoryview(b"y" * 60), REQUEST)
    north.close()


def test_other_bytes_than_announced_are_asked_for_again_and_not_kept(place):
    place.blobs.expect("north", REQUEST, 1000)
    for _ in range(2):
        with place.plain("north") as connection:
            write_line(connection, {"put": digest(b"honest"), "size": 6, "for": REQUEST})
            assert read_line(connection) == {"from": 0}
            connection.sendall(b"forged")
            assert read_line(connection) == {"again": True}
    assert place.blobs.found("north", (digest(b"honest"), 6)) is None


def test_a_line_without_an_end_and_a_slow_writer_disturb_nobody(place):
    data = memoryview(os.urandom(CHUNK_BYTES))
    place.blobs.expect("north", REQUEST, 10 * CHUNK_BYTES)
    place.blobs.expect("south", REQUEST, 10 * CHUNK_BYTES)
    with place.plain("north") as endless, place.plain("north") as slow:
        write_line(slow, {"put": digest(data), "size": len(data), "for": REQUEST})
        slow.sendall(data[:10])
        with pytest.raises(OSError):  # noqa: PT012
            for _ in range(64):
                endless.sendall(b"x" * 4096)
            while endless.recv(1):
                pass
            raise ConnectionError
        south = place.porter("south")
        assert south.upload(data, REQUEST)[1] == len(data), "south is served while north dawdles"
        south.close()


def test_a_member_opens_a_few_connections_and_no_more(place):
    from contextlib import ExitStack

    with ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(place.plain("north"))
            write_line(connection, {"get": "f" * 32, "from": 0})
            assert "error" in read_line(connection)
        crowd = stack.enter_context(place.plain("north"))
        with pytest.raises((OSError, AssertionError)):  # noqa: PT012
            write_line(crowd, {"get": "f" * 32, "from": 0})
            assert read_line(crowd) is not None
    assert ("north", "it opened too many connections to the blobs") in place.refusals


def test_a_full_disk_is_waited_for(place):
    """The operating system takes no file larger than 64 kB; what is brought arrives when it does again."""
    data = memoryview(os.urandom(4 * CHUNK_BYTES))
    place.blobs.expect("north", REQUEST, len(data))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    north = place.porter("north", seconds=300.0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, before[1]))
    try:
        thread = threading.Thread(target=north.upload, args=(data, REQUEST))
        thread.start()
        for _ in range(30000):
            if any("no room" in reason for _, reason in place.refusals):
                break
            threading.Event().wait(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    thread.join(300)
    assert any("no room" in reason for _, reason in place.refusals)
    assert place.blobs.found("north", (digest(data), len(data))) is not None
    north.close()


def test_json_that_is_no_question_ends_the_connection(place):
    with place.plain("north") as connection:
        connection.sendall(json.dumps([1, 2]).encode() + b"\n")
        assert connection.recv(1) == b""
