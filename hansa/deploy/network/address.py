"""The way to another node's port: straight, or through an HTTP proxy that lets connections pass (CONNECT).

What passes through the proxy is TLS between the two ends: it sees where we go, and nothing else.
"""

import socket
from base64 import b64encode
from dataclasses import dataclass, field
from time import monotonic
from urllib.parse import unquote, urlsplit

from hansa.core.errors import UserError

CONNECT_SECONDS = 10.0  # for each step of connecting: a server that accepts and says nothing is not waited for
LONGEST_ANSWER = 16 << 10

Address = tuple[str, int]


@dataclass(frozen=True)
class Proxy:
    host: str
    port: int
    credentials: str = field(default="", repr=False)  # NAME:PASSWORD, where it asks for them

    @staticmethod
    def parse(url: str) -> "Proxy":
        """``http://[NAME:PASSWORD@]HOST:PORT``"""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme != "http" or not parts.hostname or port is None or parts.path not in ("", "/"):
            shown = url.rpartition("@")[2]  # a password is not for logs
            raise UserError(f"--proxy {shown!r}: write it as http://HOST:PORT or http://NAME:PASSWORD@HOST:PORT")
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
        return Proxy(parts.hostname, port, credentials)


@dataclass(frozen=True)
class Here:
    """No way at all: the port is this machine's own, whatever name others reach it by. That name may lead nowhere from
    here, behind a router or before it is in the DNS."""


def reach(address: Address, proxy: Proxy | Here | None = None) -> socket.socket:
    """A plain connection; `OSError` with a reason if there is none."""
    if isinstance(proxy, Here):
        address, proxy = ("127.0.0.1", address[1]), None
    if proxy is None:
        return socket.create_connection(address, timeout=CONNECT_SECONDS)
    try:
        connection = socket.create_connection((proxy.host, proxy.port), timeout=CONNECT_SECONDS)
    except OSError as error:
        raise ConnectionError(f"the proxy {proxy.host}:{proxy.port} is not there: {error}") from None
    try:
        _pass_through(connection, address, proxy)
    except BaseException:
        connection.close()
        raise
    return connection


def _pass_through(connection: socket.socket, address: Address, proxy: Proxy) -> None:
    host, port = address
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.credentials:
        lines.append(f"Proxy-Authorization: Basic {b64encode(proxy.credentials.encode()).decode()}")
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    status, _, rest = _answer(connection, proxy).partition("\r\n")[0].partition(" ")
    if not status.startswith("HTTP/1.") or not rest.startswith("2"):
        said = "".join(c for c in rest if c.isprintable())[:100] or "nothing that is HTTP"
        raise ConnectionError(f"the proxy {proxy.host}:{proxy.port} does not let us pass: it said {said}")


def _answer(connection: socket.socket, proxy: Proxy) -> str:
    """Its answer up to the empty line, byte by byte: what follows is the other end's."""
    until, answer = monotonic() + CONNECT_SECONDS, bytearray()
    while not answer.endswith(b"\r\n\r\n"):
        if monotonic() > until or len(answer) > LONGEST_ANSWER:
            raise ConnectionError(f"the proxy {proxy.host}:{proxy.port} does not come to the point")
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError(f"the proxy {proxy.host}:{proxy.port} closed the connection")
        answer += byte
    return answer.decode(errors="replace")
