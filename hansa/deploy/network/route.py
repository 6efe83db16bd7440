"""How a node reaches its parent: addresses that are tried in turn, TLS, a proxy, and sealed sessions."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hansa.deploy.network.address import CONNECT_SECONDS, Address, ConnectionLost, Proxy, open_connection
from hansa.deploy.network.http_stream import (
    MAX_JSON_BYTES,
    BadHttp,
    HttpStream,
    json_bytes,
    json_object,
    parse_response,
)
from hansa.deploy.network.sealed import PATH, MemberSession, SealError
from hansa.deploy.network.tls import Tls

CLUSTER = 3  # servers from which on every message is stored three times

# Takes the server's challenge, returns the answer and the session.
Answerer = Callable[[dict[str, object]], tuple[dict[str, str], MemberSession]]


@dataclass
class Channel:
    """An open connection to ``address``; ``session``: how its requests are sealed, if they are."""

    socket: socket.socket
    address: Address
    session: MemberSession | None = None


class Route:
    """The way to a server. ``addresses`` returns where it may be reached; the one that worked last is tried first.

    ``seal`` opens a sealed session on every new connection: TLS is then that of a proxy which inspects it.
    """

    def __init__(
        self,
        addresses: Callable[[], Sequence[Address]],
        tls: Tls | None,
        proxy: Proxy | None = None,
        seal: Answerer | None = None,
    ) -> None:
        self._addresses, self._tls, self._proxy, self._seal = addresses, tls, proxy, seal
        self._current = 0

    def __str__(self) -> str:
        known = self._addresses()
        host, port = known[self._current % len(known)]
        return f"{host}:{port}"

    def open(self) -> Channel:
        """Connect to the first address that answers; raises `ConnectionLost`, with the reasons, if none does."""
        reasons = []
        known = self._addresses()
        for _ in known:
            address = known[self._current % len(known)]
            try:
                return self._open(address)
            except (OSError, ValueError, SealError) as error:
                reason = str(error).strip() or type(error).__name__
                reasons.append(f"no connection to {address[0]}:{address[1]} ({reason})")
                self._current = (self._current + 1) % len(known)
        raise ConnectionLost("; ".join(reasons))

    @property
    def replicas(self) -> int:
        """How many servers of a NATS cluster at these addresses store every message: three, if there are as many."""
        return CLUSTER if len(self._addresses()) >= CLUSTER else 1

    def next_address(self) -> None:
        """Begin with the next address: the server at this one answers, but cannot do its work."""
        self._current = (self._current + 1) % len(self._addresses())

    def _open(self, address: Address) -> Channel:
        connection = open_connection(address, self._proxy)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=address[0])
            session = self._open_session(connection, address) if self._seal is not None else None
            return Channel(connection, address, session)
        except BaseException:
            connection.close()
            raise

    def _open_session(self, connection: socket.socket, address: Address) -> MemberSession:
        assert self._seal is not None
        stream = HttpStream(connection)
        answer, session = self._seal(_exchange(stream, address, "GET", b""))
        _exchange(stream, address, "POST", json_bytes(answer))
        return session


def _exchange(stream: HttpStream, address: Address, method: str, body: bytes) -> dict[str, object]:
    stream.send_head(f"{method} {PATH} HTTP/1.1", {"Host": address[0], "Content-Length": str(len(body))})
    stream.socket.sendall(body)
    head = parse_response(stream.read_head(CONNECT_SECONDS))
    if head.length > MAX_JSON_BYTES:
        raise BadHttp("the answer of the server is too long")
    found = json_object(stream.read(head.length))
    if head.status != 200:
        raise ConnectionError(f"the server refused a sealed session: {str(found.get('error', head.status))[:200]}")
    return found
