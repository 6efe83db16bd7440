"""The blob server: interrupted transfers continue; requests for blobs of others, or beyond the quota, are refused."""

import json
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hansa.deploy.network.blob_protocol import CHUNK_BYTES, RequestRefused, digest
from hansa.deploy.network.blob_server import BlobServer
from hansa.deploy.network.blob_servers import BlobServers
from hansa.deploy.network.http_stream import HttpStream
from tests.conftest import Build
from tests.deploy.conftest import make_kits
from tests.deploy.stage import Stage, answer, ask, content

REQUEST = "0" * 32


@pytest.fixture
def kits(federation: Build, tmp_path: Path) -> Any:
    return make_kits(federation(), tmp_path / "kits")


@pytest.fixture
def stage(kits: Any, tmp_path: Path) -> Iterator[Any]:
    stage = Stage(kits, tmp_path)
    yield stage
    stage.close()


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


def ignore(node: str, reason: str) -> None:
    """A refusal that nobody counts."""


def test_a_blob_of_two_runs_is_sent_as_long_as_one_of_them_offers_it(stage: Any, tmp_path: Path) -> None:
    data = b"the same request of two runs"
    other, target, north = BlobServer(tmp_path / "other", ignore), bytearray(len(data)), stage.client("north")
    runs = BlobServers(BlobServer(tmp_path / "none", ignore))
    with runs.serving(stage.blobs), runs.serving(other):
        ref = stage.blobs.offer(memoryview(data), ["north"])
        other.offer(memoryview(data), ["north"])
        stage.blobs.withdraw([ref[0]])  # after the port has chosen this run for the request
        north.fetch(ref, memoryview(target))
        assert target == data
        other.withdraw([ref[0]])
        with pytest.raises(RequestRefused, match="no blob of that name"):
            north.fetch(ref, memoryview(target))
    north.close()


def test_an_interrupted_transfer_continues_where_it_stopped(stage: Any) -> None:
    data = memoryview(os.urandom(4 * CHUNK_BYTES))
    name = digest(data)
    stage.blobs.allow_upload("north", REQUEST, len(data))
    target = f"/replies/{REQUEST}/{name}"
    with stage.plain("north") as connection:
        found = ask(connection, f"GET {target}", {"Upload-Length": str(len(data))})
        assert content(found) == {"offset": 0}
        send_part(connection, target, 0, data, stop=2 * CHUNK_BYTES + 5)
    part = stage.blobs.folder / "north" / f"{name}.part"
    for _ in range(6000):
        if part.exists() and part.stat().st_size == 2 * CHUNK_BYTES + 5:
            break
        threading.Event().wait(0.01)
    with stage.plain("north") as connection:
        start = content(ask(connection, f"GET {target}", {"Upload-Length": str(len(data))}))["offset"]
        assert start == 2 * CHUNK_BYTES + 5, "all bytes of the first attempt are stored"
        send_part(connection, target, start, data)
        assert content(answer(HttpStream(connection))) == {"done": True}
    assert stage.blobs.find("north", (name, len(data))).read_bytes() == bytes(data)
    ref = stage.blobs.offer(data, ["north"])
    with stage.plain("north") as connection:
        head, body = ask(connection, f"GET /blobs/{ref[0]}", {"Range": f"bytes={3 * CHUNK_BYTES}-"})
        assert (head.status, body) == (206, bytes(data[3 * CHUNK_BYTES :]))
        size = len(data)
        assert head.headers["content-range"] == f"bytes {3 * CHUNK_BYTES}-{size - 1}/{size}"


def send_part(connection: Any, target: str, start: int, data: memoryview, stop: int | None = None) -> None:
    """Upload a blob from byte ``start`` on; with ``stop``, only until there."""
    size = len(data)
    headers = {"Host": "localhost", "Content-Range": f"bytes {start}-{size - 1}/{size}"}
    HttpStream(connection).send_head(f"PUT {target} HTTP/1.1", {**headers, "Content-Length": str(size - start)})
    connection.sendall(data[start:stop])


ASKED = f"/replies/{REQUEST}"


@pytest.mark.parametrize(
    ("line", "headers", "status", "reason"),
    [
        (f"GET /blobs/{'f' * 32}", {}, 403, "no blob of that name is offered"),
        ("GET /blobs/OFFERED", {}, 403, "no blob of that name is offered"),
        ("GET /blobs/../../kit.json", {}, 403, "malformed request"),
        ("GET /blobs/%2e%2e%2f%2e%2e%2fkit.json", {}, 403, "malformed request"),
        (f"GET /blobs/{'f' * 32}", {"Range": "bytes=-5"}, 403, "malformed range"),
        (f"GET {ASKED}/{'f' * 32}", {"Upload-Length": str(10 << 30)}, 403, "exceed the quota"),
        (f"GET {ASKED}/{'f' * 32}", {}, 403, "the size of the blob is missing"),
        (f"GET {ASKED}/{'f' * 32}", {"Upload-Length": "-1"}, 403, "the size of the blob is missing"),
        (f"GET /replies/{'1' * 32}/{'f' * 32}", {"Upload-Length": "5"}, 403, "no longer open"),
        (f"PUT /replies/{'1' * 32}/{'f' * 32}", {"Content-Range": "bytes 0-4/5"}, 403, "no longer open"),
        (f"PUT {ASKED}/{'f' * 32}", {"Content-Range": f"bytes 0-4/{10 << 30}"}, 403, "exceed the quota"),
        (f"PUT {ASKED}/{'f' * 32}", {"Content-Range": "bytes 3-4/5"}, 400, "Content-Length is not that"),
        (f"PUT {ASKED}/{'f' * 32}", {"Content-Range": "bytes 9-4/5"}, 403, "after the end"),
        (f"PUT {ASKED}/{'f' * 32}", {}, 403, "malformed range"),
        ("PUT /replies/../../../tmp/x", {"Content-Range": "bytes 0-4/5"}, 403, "malformed request"),
        ("DELETE /blobs/OFFERED", {}, 403, "malformed request"),
    ],
)
def test_invalid_requests_are_refused_and_counted(
    stage: Any, line: Any, headers: Any, status: Any, reason: Any
) -> None:
    name, _ = stage.blobs.offer(memoryview(b"for south alone"), ["south"])
    stage.blobs.allow_upload("north", REQUEST, 1000)
    before = sorted(stage.blobs.folder.rglob("*"))
    with stage.plain("north") as connection:
        found = ask(connection, line.replace("OFFERED", name), headers, b"12345" if line.startswith("PUT") else b"")
        assert found[0].status == status
        assert reason in content(found)["error"]
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
            send_part(connection, f"{ASKED}/{digest(b'honest')}", 0, memoryview(b"forged"))
            assert content(answer(HttpStream(connection))) == {"resend": True}
    assert stage.blobs.find("north", (digest(b"honest"), 6)) is None


def test_an_endless_head_and_a_slow_writer_do_not_block_others(stage: Any) -> None:
    data = memoryview(os.urandom(CHUNK_BYTES))
    stage.blobs.allow_upload("north", REQUEST, 10 * CHUNK_BYTES)
    stage.blobs.allow_upload("south", REQUEST, 10 * CHUNK_BYTES)
    with stage.plain("north") as endless, stage.plain("north") as slow:
        send_part(slow, f"{ASKED}/{digest(data)}", 0, data, stop=10)
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
    """A fourth connection ends the member's oldest one, and nobody else's."""
    line = f"GET /blobs/{'f' * 32}"
    with ExitStack() as stack:
        south = stack.enter_context(stage.plain("south"))
        assert ask(south, line)[0].status == 403
        held = []
        for _ in range(4):
            held.append(stack.enter_context(stage.plain("north")))
            assert ask(held[-1], line)[0].status == 403
        assert held[0].recv(1) == b"", "the oldest one has ended"
        for connection in (*held[1:], south):
            assert ask(connection, line)[0].status == 403


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


def test_bytes_that_are_not_http_end_the_connection(stage: Any) -> None:
    with stage.plain("north") as connection:
        connection.sendall(json.dumps([1, 2]).encode() + b"\r\n\r\n")
        assert answer(HttpStream(connection))[0].status == 400
        assert connection.recv(1) == b""


def test_an_upload_sent_again_from_the_start_is_accepted(stage: Any) -> None:
    """An old connection still writes while the client has begun again: every byte is written at its own offset."""
    data = memoryview(os.urandom(2 * CHUNK_BYTES))
    target = f"{ASKED}/{digest(data)}"
    stage.blobs.allow_upload("north", REQUEST, len(data))
    with stage.plain("north") as old, stage.plain("north") as new:
        send_part(old, target, 0, data, stop=CHUNK_BYTES)
        send_part(new, target, 0, data)
        assert content(answer(HttpStream(new))) == {"done": True}
        old.sendall(data[CHUNK_BYTES:])
        assert content(answer(HttpStream(old))) == {"done": True}
    assert stage.blobs.find("north", (digest(data), len(data))).read_bytes() == bytes(data)
