"""Attacks at the one port: strangers on every path, smuggled and replayed requests, a proxy that inspects TLS."""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.address import ConnectionLost, Proxy
from hansa.deploy.network.blob_protocol import CHUNK_BYTES, digest
from hansa.deploy.network.connection import Connection
from hansa.deploy.network.connection_table import ConnectionLimits
from hansa.deploy.network.http_stream import HttpStream
from hansa.deploy.network.retry import GaveUp
from hansa.deploy.network.route import Route
from hansa.deploy.network.sealed import SealError, SessionTable, answer_challenge
from hansa.deploy.server_session import server_session
from tests.conftest import Build
from tests.deploy.conftest import make_kits
from tests.deploy.inspector import Inspector
from tests.deploy.stage import Stage, answer, ask

REQUEST = "0" * 32
SECRET = b"PATIENT-0815-HAS-A-SECRET"
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
    "Sec-WebSocket-Version": "13",
}


@pytest.fixture
def kits(federation: Build, tmp_path: Path) -> Any:
    return make_kits(federation(), tmp_path / "kits")


@pytest.fixture
def stage(kits: Any, tmp_path: Path) -> Iterator[Any]:
    found = Stage(kits, tmp_path)
    yield found
    found.close()


@pytest.fixture
def inspector(kits: Any, tmp_path: Path) -> Iterator[Any]:
    with Inspector(tmp_path / "proxy", kits / COORDINATOR / "ca.pem") as found:
        yield found


# ── a stranger ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "headers", "body", "status"),
    [
        ("GET /blobs/OFFERED", {}, b"", 401),
        ("GET /blobs/OFFERED", {"Authorization": f"Hansa-Sealed {'0' * 32} 1 {'0' * 32}"}, b"", 401),
        ("GET /blobs/OFFERED", {"Authorization": "Basic bm9ydGg6"}, b"", 401),
        ("GET /blobs/OFFERED", {"X-Hansa-Member": "north"}, b"", 401),
        (f"GET /replies/{REQUEST}/{'f' * 32}", {"Upload-Length": "5"}, b"", 401),
        (f"PUT /replies/{REQUEST}/{'f' * 32}", {"Content-Range": "bytes 0-4/5"}, b"12345", 401),
        ("GET /nats", UPGRADE, b"", 401),
        ("POST /session", {}, b"{}", 401),
        ("POST /session", {}, b"not JSON", 400),
        ("GET /", {}, b"", 404),
        ("GET /kit.json", {}, b"", 404),
    ],
)
def test_a_stranger_gets_nothing_on_any_path(stage: Any, line: Any, headers: Any, body: Any, status: Any) -> None:
    name, _ = stage.blobs.offer(memoryview(SECRET), ["north", ""])
    stage.blobs.allow_upload("north", REQUEST, 1000)
    stage.blobs.allow_upload("", REQUEST, 1000)
    with stage.plain(None) as connection:
        head, found = ask(connection, line.replace("OFFERED", name), headers, body)
        assert head.status == status
        assert SECRET not in found
        assert connection.recv(1) == b"", "the connection ends"
    assert list(stage.blobs.folder.rglob("*")) == []
    with stage.plain("north") as connection:
        assert ask(connection, f"GET /blobs/{name}")[1] == SECRET, "a member gets it"


def test_strangers_that_are_slow_have_a_deadline_and_leave_places_for_members(kits: Any, tmp_path: Path) -> None:
    """Strangers keep all places for guests with half a request each; a member is served, and the strangers end."""
    limits = ConnectionLimits(guests=4, guests_per_address=4, first_request_seconds=2.0)
    stage = Stage(kits, tmp_path, limits)
    name, _ = stage.blobs.offer(memoryview(SECRET), ["north"])
    try:
        with ExitStack() as stack:
            held = [stack.enter_context(stage.plain(None)) for _ in range(8)]
            for stranger in held:
                stranger.sendall(b"POST /session HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")  # no body
            with stage.plain("north") as connection:
                assert ask(connection, f"GET /blobs/{name}")[1] == SECRET
            began = monotonic()
            for stranger in held:
                while stranger.recv(4096):
                    pass
        assert monotonic() - began < 30
    finally:
        stage.close()


SMUGGLED = f"GET /blobs/{'f' * 32} HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length : 5\r\n",
        "Content-Length: 0x5\r\n",
        "Range: bytes=0-\r\nRange: bytes=5-\r\n",
        " folded: x\r\n",
        "X: a\rContent-Length: 5\r\n",
        f"X: {'x' * 9000}\r\n",
    ],
)
def test_smuggled_requests_are_not_answered(stage: Any, head: str) -> None:
    """A request whose length can be read in two ways ends the connection, and with it what follows."""
    with stage.plain("north") as connection:
        first = f"PUT /replies/{REQUEST}/{'f' * 32} HTTP/1.1\r\nHost: x\r\nContent-Range: bytes 0-4/5\r\n{head}\r\n"
        connection.sendall(first.encode() + b"12345" + SMUGGLED.encode())
        answers = b""
        try:
            while data := connection.recv(65536):
                answers += data
        except OSError:
            pass  # the server closed the connection while bytes were under way
    assert answers.count(b"HTTP/1.1 ") <= 1
    assert b"HTTP/1.1 2" not in answers
    assert not any("no blob of that name" in reason for _, reason in stage.refusals), "the second one was not read"


# ── a proxy that inspects TLS ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_inspecting_proxy_sees_no_weights(stage: Any, inspector: Any) -> None:
    data = memoryview(SECRET * 100_000)  # more than two chunks
    ref = stage.blobs.offer(data, ["north"])
    stage.blobs.allow_upload("north", REQUEST, 2 * len(data))
    proxy = Proxy("127.0.0.1", inspector.port)
    north = stage.client("north", trust=inspector.trust, proxy=proxy)
    target = memoryview(bytearray(len(data)))
    north.fetch(ref, target)
    assert bytes(target) == bytes(data)
    uploaded = north.upload(data[:-7], REQUEST)
    assert north.upload(memoryview(b""), REQUEST)[1] == 0
    assert stage.blobs.find("north", uploaded).read_bytes() == bytes(data[:-7])
    north.close()
    assert ref[0].encode() in inspector.seen, "it sees the names of blobs, which are digests"
    assert len(inspector.seen) > len(data)
    assert len(inspector.answered) > len(data)
    assert SECRET[:8] not in inspector.seen + inspector.answered


def test_without_sealing_the_proxy_would_see_everything_and_the_server_refuses(stage: Any, inspector: Any) -> None:
    """The negative control: the same proxy, a client that relies on TLS alone, and a body that is not sealed."""
    ref = stage.blobs.offer(memoryview(SECRET), ["north"])
    kit, proxy = Kit(stage.kits / "north"), Proxy("127.0.0.1", inspector.port)
    route = Route(kit.parent.all, kit.client_tls(inspector.trust), proxy)
    for _ in range(20):  # the server may refuse by the head, before the proxy has read the body
        channel = route.open()
        head, body = ask(channel.socket, f"PUT /blobs/{ref[0]}", {}, SECRET)  # type: ignore[arg-type]
        channel.socket.close()
        assert (head.status, SECRET in body) == (401, False)
        if SECRET in inspector.seen:
            break
    assert SECRET in inspector.seen
    with pytest.raises(ConnectionLost, match="certificate verify failed"):
        Route(kit.parent.all, kit.client_tls(), proxy).open()


def test_an_inspecting_proxy_cannot_repeat_or_change_requests(stage: Any, inspector: Any) -> None:
    ref = stage.blobs.offer(memoryview(SECRET), ["north"])
    proxy = Proxy("127.0.0.1", inspector.port)
    north = stage.client("north", trust=inspector.trust, proxy=proxy)
    north.fetch(ref, memoryview(bytearray(len(SECRET))))
    recorded = bytes(inspector.seen)
    fetch = recorded[recorded.index(b"GET /blobs/") :]
    other, _ = stage.blobs.offer(memoryview(b"other"), ["north"])
    found = re.search(rb"authorization: Hansa-Sealed (\w+) (\d+) (\w+)", fetch)
    assert found is not None
    later = fetch.replace(b" %s %s" % (found[2], found[3]), b" %d %s" % (int(found[2]) + 1, found[3]))
    attempts = {
        "the request was sent before": fetch,
        "what arrived was changed on its way": fetch.replace(ref[0].encode(), other.encode()),
        "sealed by another node": later,
    }
    for reason, data in attempts.items():
        with stage.plain(None) as connection:
            connection.sendall(data)
            head, body = answer(HttpStream(connection))
            assert (head.status, SECRET in body) == (401, False)
        assert reason in stage.refusals[-1][1]
    opening = re.search(rb"POST /session .*?\}", recorded, re.DOTALL)
    assert opening is not None
    with stage.plain(None) as connection:
        connection.sendall(opening[0])
        assert answer(HttpStream(connection))[0].status == 401
    assert stage.refusals[-1][1] == "the challenge was answered before"
    north.close()


def test_a_body_that_the_proxy_changes_is_refused_and_sent_again(stage: Any, inspector: Any) -> None:
    data = memoryview(os.urandom(2 * CHUNK_BYTES))
    stage.blobs.allow_upload("north", REQUEST, len(data))
    changed: list[int] = []

    def flip(piece: bytes) -> bytes:
        if not changed and len(piece) > 8192:
            changed.append(1)
            return piece[:-1] + bytes([piece[-1] ^ 1])
        return piece

    inspector.change = flip
    north = stage.client("north", trust=inspector.trust, proxy=Proxy("127.0.0.1", inspector.port))
    assert north.upload(data, REQUEST) == (digest(data), len(data))
    north.close()
    assert changed
    assert any("changed on its way" in reason for _, reason in stage.refusals)
    assert stage.blobs.find("north", (digest(data), len(data))).read_bytes() == bytes(data)


def test_a_proxy_that_answers_as_the_coordinator_gets_no_session(stage: Any, kits: Any, federation: Build) -> None:
    """The challenge must be signed by the coordinator whose key is in the kit."""
    north = Kit(kits / "north")
    impostor = SessionTable(Kit(kits / "south"), north.info.federation)
    with pytest.raises(SealError, match="the other end of the connection is not 'coordinator'"):
        north._answer_challenge(impostor.challenge())
    real = SessionTable(Kit(kits / COORDINATOR), north.info.federation)
    key = Kit(kits / COORDINATOR).key.public_key()
    stolen, _ = answer_challenge(
        Kit(kits / "south").key, north.info.federation, "north", COORDINATOR, key, real.challenge()
    )
    with pytest.raises(SealError, match="the signature is not the member's"):
        real.open(stolen)
    good, _ = north._answer_challenge(real.challenge())
    assert real.open(good).member == "north"


def test_sessions_and_challenges_end(kits: Any) -> None:
    clock = [1000.0]
    table, north = SessionTable(Kit(kits / COORDINATOR), "small", lambda: clock[0]), Kit(kits / "north")
    late, _ = north._answer_challenge(table.challenge())
    clock[0] += 61
    with pytest.raises(SealError, match="too old"):
        table.open(late)
    good, session = north._answer_challenge(table.challenge())
    table.open(good)
    for _ in range(16):
        table.open(north._answer_challenge(table.challenge())[0])
    _, header = session.authorize("GET", "/x", {})
    with pytest.raises(SealError, match="no such session"):
        table.check(header["authorization"], b"")


def test_nats_through_an_inspecting_proxy(kits: Any, inspector: Any, tmp_path: Path) -> None:
    north = Kit(kits / "north")
    subjects, proxy = north.parent_subjects, Proxy("127.0.0.1", inspector.port)
    with server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, print):
        connection = Connection(north.route(proxy, inspector.trust), north.key, subjects.inbox("north"))
        assert connection.request(subjects.latest(subjects.request("north"))).status == 404
        connection.close()
        upgrade = bytes(inspector.seen[inspector.seen.index(b"GET /nats") :])
        kit = Kit(kits / "north")
        again = Route(kit.parent.all, kit.client_tls(inspector.trust), proxy).open().socket
        again.sendall(upgrade[: upgrade.index(b"\r\n\r\n") + 4])
        assert b"401" in again.recv(100), "the recorded request opens no second WebSocket"
        again.close()


def test_a_member_that_was_revoked_has_no_sealed_session(kits: Any, stage: Any, inspector: Any) -> None:
    from hansa.deploy import authority

    ref = stage.blobs.offer(memoryview(SECRET), ["north"])
    proxy = Proxy("127.0.0.1", inspector.port)
    north = stage.client("north", 3.0, inspector.trust, proxy)
    north.fetch(ref, memoryview(bytearray(len(SECRET))))
    authority.revoke(kits, "north")
    sleep(0.1)
    with pytest.raises(GaveUp):
        north.fetch(ref, memoryview(bytearray(len(SECRET))))
    north.close()


def test_the_pages_get_no_forged_headers_and_no_members_paths(kits: Any, tmp_path: Path) -> None:
    """An ASGI application behind the port: it sees who connects, and a client cannot pretend to be a member."""
    from hansa.deploy.network.page_server import serve_pages

    seen: list[dict[str, str]] = []
    visitors: list[str] = []

    async def pages(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        visitors.append(scope["client"][0])
        seen.append({k.decode(): v.decode() for k, v in scope["headers"]} | {"path": scope["path"]})
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"hello"})

    with serve_pages(pages) as route:
        stage = Stage(kits, tmp_path, pages=route)
        try:
            forged = {"X-Hansa-Member": "south", "X-Forwarded-For": "10.0.0.1", "Forwarded": "for=10.0.0.1"}
            with stage.plain(None) as connection:
                assert ask(connection, "GET /pages/runs?x=1", forged)[1] == b"hello"
            with stage.plain("north") as connection:
                assert ask(connection, "GET /pages", forged)[1] == b"hello"
            with stage.plain(None, "127.0.0.2") as connection:
                assert ask(connection, "GET /pages", forged)[1] == b"hello"
            with stage.plain(None) as connection:
                assert ask(connection, f"GET /blobs/{'f' * 32}")[0].status == 401
        finally:
            stage.close()
    assert [(one["path"], one["x-forwarded-for"], one.get("x-hansa-member")) for one in seen] == [
        ("/pages/runs", "127.0.0.1", None),
        ("/pages", "127.0.0.1", "north"),
        ("/pages", "127.0.0.2", None),
    ]
    assert visitors == ["127.0.0.1", "127.0.0.1", "127.0.0.2"], "attempts to log in are counted by the real address"
    assert not any("forwarded" in one for one in seen)
