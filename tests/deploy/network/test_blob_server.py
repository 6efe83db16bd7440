"""The blob server: interrupted transfers continue; requests for blobs of others, or beyond the quota, are refused."""

import json
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.blob_client import BlobClient
from hansa.deploy.network.blob_protocol import CHUNK_BYTES, RequestRefused, digest, read_line, write_line
from hansa.deploy.network.blob_server import BlobServer
from hansa.deploy.network.retry import Retry
from tests.conftest import Build
from tests.deploy.conftest import free_ports, make_kits

REQUEST = "0" * 32


@pytest.fixture
def kits(federation: Build, tmp_path: Path) -> Any:
    return make_kits(federation(), tmp_path / "kits")


def response(connection: socket.socket) -> dict[str, Any]:
    line = read_line(connection)
    assert line is not None, "the connection ended"
    return line


class Stage:
    """A blob server, and clients of silos."""

    def __init__(self, kits: Any, folder: Any) -> None:
        self.kits = kits
        self.refusals: list[tuple[str, str]] = []
        kit = Kit(kits / COORDINATOR)
        self.address = ("localhost", free_ports(1)[0])
        refused = lambda node, reason: self.refusals.append((node, reason))  # noqa: E731
        self.blobs = BlobServer(folder / "blobs", self.address, kit.server_tls(), kit.identify, refused)

    def client(self, name: Any, seconds: float = 120.0) -> Any:
        from time import monotonic

        until = monotonic() + seconds
        return BlobClient(self.address, Kit(self.kits / name).client_tls(), lambda: Retry(print, lambda: False, until))

    @contextmanager
    def plain(self, name: Any) -> Iterator[Any]:
        """A TLS connection on which any bytes can be sent."""
        connection = socket.create_connection(self.address, timeout=120)
        with Kit(self.kits / name).client_tls().wrap_socket(connection, server_hostname="localhost") as secured:
            yield secured


@pytest.fixture
def stage(kits: Any, tmp_path: Path) -> Iterator[Any]:
    stage = Stage(kits, tmp_path)
    yield stage
    stage.blobs.close()


def test_offered_blobs_are_fetched_and_uploads_are_stored(stage: Any) -> None:
    data = os.urandom(3 * CHUNK_BYTES + 17)
    ref = stage.blobs.offer(memoryview(data), ["north"])
    target = memoryview(bytearray(len(data)))
    north = stage.client("north")
    north.fetch(ref, target)
    assert bytes(target) == data
    stage.blobs.allow_upload("north", REQUEST, 10 * CHUNK_BYTES)
    uploaded = north.upload(memoryview(data), REQUEST)
    assert stage.blobs.find("north", uploaded).read_bytes() == data
    assert stage.blobs.find("south", uploaded) is None, "uploads of one node are not another's"
    assert north.upload(memoryview(data), REQUEST) == uploaded, "a repeated upload is stored once"
    assert north.upload(memoryview(b""), REQUEST)[1] == 0
    north.close()


def test_an_interrupted_transfer_continues_where_it_stopped(stage: Any) -> None:
    data = memoryview(os.urandom(4 * CHUNK_BYTES))
    name = digest(data)
    stage.blobs.allow_upload("north", REQUEST, len(data))
    with stage.plain("north") as connection:
        write_line(connection, {"put": name, "size": len(data), "request": REQUEST})
        assert read_line(connection) == {"offset": 0}
        connection.sendall(data[: 2 * CHUNK_BYTES + 5])
    part = stage.blobs.folder / "north" / f"{name}.part"
    for _ in range(6000):
        if part.exists() and part.stat().st_size == 2 * CHUNK_BYTES + 5:
            break
        threading.Event().wait(0.01)
    with stage.plain("north") as connection:
        write_line(connection, {"put": name, "size": len(data), "request": REQUEST})
        start = response(connection)["offset"]
        assert start == 2 * CHUNK_BYTES + 5, "all bytes of the first attempt are stored"
        connection.sendall(data[start:])
        assert read_line(connection) == {"done": True}
    assert stage.blobs.find("north", (name, len(data))).read_bytes() == bytes(data)
    ref = stage.blobs.offer(data, ["north"])
    with stage.plain("north") as connection:
        write_line(connection, {"get": ref[0], "offset": 3 * CHUNK_BYTES})
        assert read_line(connection) == {"size": len(data), "offset": 3 * CHUNK_BYTES}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"get": "f" * 32, "offset": 0}, "no blob of that name is offered"),
        ({"get": "OFFERED", "offset": 0}, "no blob of that name is offered"),
        ({"get": "../../kit.json", "offset": 0}, "no blob of that name is offered"),
        ({"get": "f" * 32, "offset": -5}, "malformed request"),
        ({"put": "f" * 32, "size": 10 << 30, "request": REQUEST}, "exceed the quota"),
        ({"put": "f" * 32, "size": 5, "request": "1" * 32}, "no longer open"),
        ({"put": "../../../tmp/x", "size": 5, "request": REQUEST}, "not a digest"),
        ({"put": "f" * 32, "size": "5", "request": REQUEST}, "malformed request"),
        ({"put": "f" * 32, "size": -1, "request": REQUEST}, "malformed request"),
        ({"run": "rm"}, "malformed request"),
    ],
)
def test_invalid_requests_are_refused_and_counted(stage: Any, line: Any, reason: Any) -> None:
    name, _ = stage.blobs.offer(memoryview(b"for south alone"), ["south"])
    stage.blobs.allow_upload("north", REQUEST, 1000)
    before = sorted(stage.blobs.folder.rglob("*"))
    with stage.plain("north") as connection:
        write_line(connection, {key: name if value == "OFFERED" else value for key, value in line.items()})
        assert reason in response(connection)["error"]
    assert reason in stage.refusals[-1][1]
    assert stage.refusals[-1][0] == "north"
    assert sorted(stage.blobs.folder.rglob("*")) == before, "nothing was written"


def test_the_quota_is_for_all_parts_together(stage: Any) -> None:
    stage.blobs.allow_upload("north", REQUEST, 100)
    north = stage.client("north")
    north.upload(memoryview(b"x" * 60), REQUEST)
    with pytest.raises(RequestRefused, match="120 bytes exceed the quota of 100"):
        north.upload(memoryview(b"y" * 60), REQUEST)
    north.close()


def test_an_upload_with_another_digest_is_not_kept(stage: Any) -> None:
    stage.blobs.allow_upload("north", REQUEST, 1000)
    for _ in range(2):
        with stage.plain("north") as connection:
            write_line(connection, {"put": digest(b"honest"), "size": 6, "request": REQUEST})
            assert read_line(connection) == {"offset": 0}
            connection.sendall(b"forged")
            assert read_line(connection) == {"resend": True}
    assert stage.blobs.find("north", (digest(b"honest"), 6)) is None


def test_an_endless_line_and_a_slow_writer_do_not_block_others(stage: Any) -> None:
    data = memoryview(os.urandom(CHUNK_BYTES))
    stage.blobs.allow_upload("north", REQUEST, 10 * CHUNK_BYTES)
    stage.blobs.allow_upload("south", REQUEST, 10 * CHUNK_BYTES)
    with stage.plain("north") as endless, stage.plain("north") as slow:
        write_line(slow, {"put": digest(data), "size": len(data), "request": REQUEST})
        slow.sendall(data[:10])
        with pytest.raises(OSError):  # noqa: PT012
            for _ in range(64):
                endless.sendall(b"x" * 4096)
            while endless.recv(1):
                pass
            raise ConnectionError
        south = stage.client("south")
        assert south.upload(data, REQUEST)[1] == len(data), "south is served while north is slow"
        south.close()


def test_the_number_of_connections_of_a_member_is_bounded(stage: Any) -> None:
    from contextlib import ExitStack

    with ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(stage.plain("north"))
            write_line(connection, {"get": "f" * 32, "offset": 0})
            assert "error" in response(connection)
        extra = stack.enter_context(stage.plain("north"))
        with pytest.raises((OSError, AssertionError)):  # noqa: PT012
            write_line(extra, {"get": "f" * 32, "offset": 0})
            assert read_line(extra) is not None
    assert ("north", "it opened too many connections to the blob server") in stage.refusals


def test_an_upload_waits_while_the_disk_is_full(stage: Any) -> None:
    """While the operating system limits files to 64 kB, the upload waits; afterwards it arrives."""
    data = memoryview(os.urandom(4 * CHUNK_BYTES))
    stage.blobs.allow_upload("north", REQUEST, len(data))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    north = stage.client("north", seconds=300.0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, before[1]))
    try:
        thread = threading.Thread(target=north.upload, args=(data, REQUEST))
        thread.start()
        for _ in range(30000):
            if any("the disk cannot take its upload" in reason for _, reason in stage.refusals):
                break
            threading.Event().wait(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    thread.join(300)
    assert any("the disk cannot take its upload" in reason for _, reason in stage.refusals)
    assert stage.blobs.find("north", (digest(data), len(data))) is not None
    north.close()


def test_a_line_that_is_not_an_object_ends_the_connection(stage: Any) -> None:
    with stage.plain("north") as connection:
        connection.sendall(json.dumps([1, 2]).encode() + b"\n")
        assert connection.recv(1) == b""
