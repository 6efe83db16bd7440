"""A front end with a blob server, clients of silos, and raw connections on which any bytes can be sent."""

import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.blob_client import BlobClient
from hansa.deploy.network.blob_server import BlobServer
from hansa.deploy.network.connection_table import ConnectionLimits
from hansa.deploy.network.front import Front
from hansa.deploy.network.http_stream import Head, HttpStream, parse_response
from hansa.deploy.network.retry import Retry
from hansa.deploy.network.route import Route
from hansa.deploy.network.sealed import SessionTable


class Stage:
    """The coordinator's port with the kits in ``kits``, at the address in them, without a NATS server."""

    def __init__(
        self, kits: Path, folder: Path, limits: ConnectionLimits | None = None, pages: Route | None = None
    ) -> None:
        self.kits, self.refusals = kits, list[tuple[str, str]]()
        kit = Kit(kits / COORDINATOR)
        self.address = ("localhost", kit.endpoint.port)
        refused = lambda node, reason: self.refusals.append((node, reason))  # noqa: E731
        self.blobs = BlobServer(folder / "blobs", refused)
        sessions = SessionTable(kit, kit.info.federation)
        self.front = Front(
            ("127.0.0.1", kit.endpoint.port),
            kit.server_tls(),
            kit.identify,
            sessions,
            refused,
            self.blobs.handlers,
            None,
            pages,
            limits,
        )

    def close(self) -> None:
        self.front.close()

    def client(self, name: str, seconds: float = 120.0, trust: Path | None = None, proxy: Any = None) -> BlobClient:
        until = monotonic() + seconds
        return BlobClient(Kit(self.kits / name).route(proxy, trust), lambda: Retry(print, lambda: False, until))

    @contextmanager
    def plain(self, name: str | None, source: str = "127.0.0.1") -> Iterator[ssl.SSLSocket]:
        """A TLS connection of a member, or of a stranger without a certificate, from an address of this machine."""
        connection = socket.create_connection(self.address, timeout=120, source_address=(source, 0))
        if name is not None:
            secured = Kit(self.kits / name).client_tls().wrap_socket(connection, server_hostname="localhost")
        else:
            context = ssl.create_default_context(cafile=self.kits / COORDINATOR / "ca.pem")
            secured = context.wrap_socket(connection, server_hostname="localhost")
        with secured:
            yield secured


def ask(
    connection: ssl.SSLSocket, line: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> tuple[Head, bytes]:
    """Send a request, and return the head and the body of its response."""
    stream = HttpStream(connection)
    length = {"Content-Length": str(len(body))} if body else {}
    stream.send_head(f"{line} HTTP/1.1", {"Host": "localhost", **length, **(headers or {})})
    if body:
        connection.sendall(body)
    return answer(stream)


def answer(stream: HttpStream) -> tuple[Head, bytes]:
    data = stream.read_head(120)
    assert data, "the connection ended"
    head = parse_response(data)
    return head, stream.read(head.length)


def content(found: tuple[Head, bytes]) -> dict[str, Any]:
    return dict(json.loads(found[1]))
