"""Uploads and downloads over TLS: the one port's own loops, against uvicorn with the same blobs.

Two clients at a time, the same client code against both servers; both write uploads to files. It is why the port is not
served by an ASGI server: see docs/design.md, "Over a network". And a stranger's idle sockets: how much longer members'
transfers take while it holds them.
"""

import os
import socket
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from _far import free_ports
from _figures import Figures

from hansa.config.file import parse
from hansa.deploy import authority
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.blob_protocol import CHUNK_BYTES, digest
from hansa.deploy.network.blob_server import BlobServer
from hansa.deploy.network.front import Front
from hansa.deploy.network.http_stream import HttpStream, parse_response
from hansa.deploy.network.sealed import SessionTable

MB = 1 << 20
REQUEST = "0" * 32
SILOS = ("s0", "s1")


def serve_own(kits: str, port: int, size: int, ready: Any) -> None:
    kit = Kit(Path(kits) / COORDINATOR)
    blobs = BlobServer(Path(kits) / "blobs", print)
    sessions = SessionTable(kit, kit.info.federation)
    Front(("127.0.0.1", port), kit.server_tls(), kit.identify, sessions, lambda *_: None, blobs.handlers)
    blobs.offer(memoryview(bytes(size)), SILOS)
    for silo in SILOS:
        blobs.allow_upload(silo, REQUEST, 100 * size)
    ready.set()
    time.sleep(3600)


def serve_uvicorn(kits: str, port: int, size: int, ready: Any) -> None:
    import uvicorn

    data = memoryview(bytes(size))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            ready.set()
            return
        if scope["method"] == "GET":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
            for at in range(0, size, CHUNK_BYTES):
                more = at + CHUNK_BYTES < size
                body = bytes(data[at : at + CHUNK_BYTES])
                await send({"type": "http.response.body", "body": body, "more_body": more})
            return
        file, done, more = os.open(f"{kits}/up-{scope['client'][1]}", os.O_RDWR | os.O_CREAT, 0o600), 0, True
        while more:
            message = await receive()
            more = message.get("more_body", False)
            done += os.pwrite(file, message.get("body", b""), done)
        os.close(file)
        await send({"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    folder = f"{kits}/{COORDINATOR}"
    ready.set()
    uvicorn.run(
        app,
        port=port,
        ssl_certfile=f"{folder}/cert.pem",
        ssl_keyfile=f"{folder}/key.pem",
        log_level="error",
        http="h11",
    )


def client(kits: str, silo: str, port: int, size: int, pipe: Any) -> None:
    """At every word: fetch everything, then send as much."""
    kit, buffer = Kit(Path(kits) / silo), memoryview(bytearray(size))
    name, number = digest(memoryview(bytes(size))), 0
    while True:
        try:
            plain = socket.create_connection(("localhost", port), timeout=600)
            break
        except OSError:
            time.sleep(0.1)
    stream = HttpStream(kit.client_tls().wrap_socket(plain, server_hostname="localhost"))
    pipe.send("ready")
    while pipe.recv():
        number += 1
        began = perf_counter()
        stream.send_head(f"GET /blobs/{name} HTTP/1.1", {"Host": "x"})
        parse_response(stream.read_head(600))
        stream.socket.settimeout(600)
        stream.read_into(buffer)
        middle = perf_counter()
        buffer[:8] = number.to_bytes(8, "big")
        headers = {"Host": "x", "Content-Length": str(size), "Content-Range": f"bytes 0-{size - 1}/{size}"}
        stream.send_head(f"PUT /replies/{REQUEST}/{digest(buffer)} HTTP/1.1", headers)
        for at in range(0, size, CHUNK_BYTES):
            stream.socket.sendall(buffer[at : at + CHUNK_BYTES])
        head = parse_response(stream.read_head(600))
        assert head.status == 201, head
        stream.read(head.length)
        pipe.send((middle - began, perf_counter() - middle))


def hold(port: int, many: int, ready: Any) -> None:
    """A stranger that keeps idle connections open, and opens again those that are closed."""
    import selectors

    selector = selectors.DefaultSelector()

    def connect() -> None:
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        selector.register(one, selectors.EVENT_READ)

    for number in range(many):
        connect()
        if number % 500 == 499:
            time.sleep(0.1)
    ready.set()
    while True:
        for key, _ in selector.select(1.0):
            selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
            connect()


def measure(
    kits: str, server: Callable[..., None], size: int, rounds: int, strangers: int = 0
) -> tuple[float, float, float]:
    """The shortest download, upload and both, of two clients at a time, in seconds."""
    context, [port] = get_context("fork"), free_ports(1)
    ready = context.Event()
    started = [context.Process(target=server, args=(kits, port, size, ready), daemon=True)]
    started[0].start()
    ready.wait(120)
    pipes, times = [], []
    for silo in SILOS:
        ours, theirs = context.Pipe()
        started.append(context.Process(target=client, args=(kits, silo, port, size, theirs), daemon=True))
        started[-1].start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()

    def transfer() -> list[tuple[float, float]]:
        for pipe in pipes:
            pipe.send(True)
        return [pipe.recv() for pipe in pipes]

    transfer()  # members ask for something as soon as they have connected; who does not is taken for a stranger
    if strangers:
        held = context.Event()
        started.append(context.Process(target=hold, args=(port, strangers, held), daemon=True))
        started[-1].start()
        held.wait(120)
    for _ in range(rounds):
        found = transfer()
        times.append([max(one[0] for one in found), max(one[1] for one in found)])
    for process in reversed(started):
        process.kill()
        process.join()
    down, up = (min(column) for column in zip(*times, strict=True))
    return down, up, min(sum(one) for one in times)


def idle_sockets(smoke: bool) -> int:
    """As many as this system lets one process open, at most 10,000."""
    import resource

    return 100 if smoke else min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2 - 200)


def main() -> None:
    figures = Figures.from_arguments()
    size, rounds = (MB, 1) if figures.smoke else (200 * MB, 3)
    with tempfile.TemporaryDirectory() as kits:
        authority.create(parse({"name": "bench", "silos": dict.fromkeys(SILOS, "x")}), Path(kits) / "all", {}, 30)
        folder = str(Path(kits) / "all")
        theirs = measure(folder, serve_uvicorn, size, rounds)
        ours = measure(folder, serve_own, size, rounds)
        many = idle_sockets(figures.smoke)
        attacked = measure(folder, serve_own, size, rounds, many)
    print(f"down, up, both: ours {ours}, uvicorn {theirs}, with {many} idle sockets of a stranger {attacked}")
    figures.add("upload_against_uvicorn", "an upload over TLS against uvicorn", ours[1] / theirs[1], "ratio", "<=", 1.0)
    figures.add("down_and_up_against_uvicorn", "download and upload", ours[2] / theirs[2], "ratio", "<=", 1.0)
    figures.add("with_idle_sockets", f"the same beside {many} idle sockets", attacked[2] / ours[2], "ratio", "<=", 1.2)
    figures.end()


if __name__ == "__main__":
    main()
