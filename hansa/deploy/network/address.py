"""TCP connections to another node: direct, or through an HTTP proxy (CONNECT).

What passes through a proxy is TLS between the two nodes: the proxy sees the destination and nothing else.
"""

import socket
from base64 import b64encode
from dataclasses import dataclass, field
from time import monotonic
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from hansa.core.errors import UserError

CONNECT_SECONDS = 10.0  # for each step of connecting, so that a server that accepts and stays silent does not block
MAX_RESPONSE_BYTES = 16 << 10

Address = tuple[str, int]


class ConnectionLost(ConnectionError):
    """The connection broke, or could not be opened; a new one may work."""


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy. ``credentials``: NAME:PASSWORD, if the proxy requires them."""

    host: str
    port: int
    credentials: str = field(default="", repr=False)

    @staticmethod
    def parse(url: str, origin: str = "--proxy") -> "Proxy":
        """Return the proxy at ``http://[NAME:PASSWORD@]HOST:PORT``; raises `UserError` for any other form."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme != "http" or not parts.hostname or port is None or parts.path not in ("", "/"):
            shown = url.rpartition("@")[2]  # without the password
            raise UserError(f"{origin} {shown!r}: write it as http://HOST:PORT or http://NAME:PASSWORD@HOST:PORT")
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
        return Proxy(parts.hostname, port, credentials)


def parse_address(text: str, default: int | None = None) -> Address:
    """The parts of HOST:PORT or [IPv6]:PORT, or of HOST where there is a default; raises `ValueError` otherwise."""
    host, colon, port = text.rpartition(":")
    if default is not None and (not colon or text.endswith("]")):
        host, port = text, str(default)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or set(host) & set("/@,+ ") or (":" in bare and bare == host):
        raise ValueError("it is not HOST:PORT")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("the port is not a number from 1 to 65535")
    return bare, int(port)


def show_address(address: Address) -> str:
    """An address as HOST:PORT."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def choose_proxy(option: str | None, host: str) -> Proxy | None:
    """The proxy of --proxy or, without it, of HTTPS_PROXY, unless NO_PROXY lists the host; None if there is none."""
    if option:
        return Proxy.parse(option)
    known = None if proxy_bypass(host) else getproxies_environment().get("https")
    return Proxy.parse(known, "HTTPS_PROXY") if known else None


def open_connection(address: Address, proxy: Proxy | None = None) -> socket.socket:
    """Open a TCP connection; raises `OSError` with the reason if that fails."""
    if proxy is None:
        return socket.create_connection(address, timeout=CONNECT_SECONDS)
    try:
        connection = socket.create_connection((proxy.host, proxy.port), timeout=CONNECT_SECONDS)
    except OSError as error:
        raise ConnectionError(f"the proxy {proxy.host}:{proxy.port} cannot be reached: {error}") from None
    try:
        _open_tunnel(connection, address, proxy)
    except BaseException:
        connection.close()
        raise
    return connection


def _open_tunnel(connection: socket.socket, address: Address, proxy: Proxy) -> None:
    """Ask the proxy for a tunnel to ``address``."""
    target = show_address(address)
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.credentials:
        lines.append(f"Proxy-Authorization: Basic {b64encode(proxy.credentials.encode()).decode()}")
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    status, _, rest = _response(connection, proxy).partition("\r\n")[0].partition(" ")
    if not status.startswith("HTTP/1.") or not rest.startswith("2"):
        shown = "".join(c for c in rest if c.isprintable())[:100] or "its response is not HTTP"
        raise ConnectionError(f"the proxy {proxy.host}:{proxy.port} refused the connection: {shown}")


def _response(connection: socket.socket, proxy: Proxy) -> str:
    """The response up to the empty line, read byte by byte: what follows it comes from the other end of the tunnel."""
    until, response = monotonic() + CONNECT_SECONDS, bytearray()
    while not response.endswith(b"\r\n\r\n"):
        if monotonic() > until or len(response) > MAX_RESPONSE_BYTES:
            raise ConnectionError(
                f"the proxy {proxy.host}:{proxy.port} sent no complete response within {CONNECT_SECONDS:.0f} s and "
                f"{MAX_RESPONSE_BYTES} bytes"
            )
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError(f"the proxy {proxy.host}:{proxy.port} closed the connection")
        response += byte
    return response.decode(errors="replace")
