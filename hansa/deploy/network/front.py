"""The one port of a coordinator or a region: HTTPS, behind which are the weights, the NATS server and the pages.

    /blobs, /replies   weights and texts of requests and replies (blob_server.py), for members
    /nats              a WebSocket, forwarded to the NATS server, for members
    /session           opens a sealed session (sealed.py) where a proxy ends TLS
    any other path     the pages, if there are any

A member is who its certificate names or, without one, who has sealed the request. One thread accepts connections, does
their TLS handshakes and reads their first request; a connection gets a thread when that is complete, so that idle
sockets cost next to nothing (connection_table.py). benchmarks/front_end.py compares it with uvicorn, to which a
prototype lost in downloads and won in uploads.
"""

import errno
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from hansa.deploy.network.address import Address
from hansa.deploy.network.blob_protocol import STALL_SECONDS
from hansa.deploy.network.client_hello import first_record, knows_ed25519
from hansa.deploy.network.connection_table import BROKER, PAGE, TRANSFER, ConnectionLimits, ConnectionTable, shut_down
from hansa.deploy.network.exchange import Exchange
from hansa.deploy.network.http_stream import (
    END,
    MAX_HEAD_BYTES,
    MAX_JSON_BYTES,
    BadHttp,
    Head,
    HttpStream,
    json_object,
    parse_request,
)
from hansa.deploy.network.route import Route
from hansa.deploy.network.sealed import PATH as SESSION_PATH
from hansa.deploy.network.sealed import SealError, SessionTable, covered
from hansa.deploy.network.splice import Splicer
from hansa.deploy.network.tls import Tls
from hansa.deploy.network.websocket import PATH as NATS_PATH

IDLE_SECONDS = 3600.0
BACKLOG = 4096  # connections that the kernel holds until they are accepted
ACCEPTED_AT_ONCE = 128
OUT_OF_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
MAX_REPORTS = 20  # refusals of strangers in a second that are reported
FORWARDED = ("host", "upgrade", "connection", "origin")  # and Sec-WebSocket-…: headers that NATS gets
REFUSED = {"error": "this path is for members of the federation"}

Identify = Callable[[list[str]], str]  # the member that a certificate's names belong to; empty if there is none
Handler = Callable[[Exchange], None]


class _First:
    """A connection until a member's first request: the peer's address, and what of the request has arrived.

    ``guest``: it has one of the places for requests of strangers.
    """

    def __init__(self, peer: str) -> None:
        self.peer, self.data, self.shaken, self.guest = peer, b"", False, False
        self.seen = 0  # bytes of an incomplete first TLS message


class Front:
    """Listens at ``address``; ``handlers``: for members, by the first part of the path.

    ``nats`` and ``pages`` lead to the servers behind. ``refused`` is called with a member's name, or a peer's address,
    and the reason of every refusal. ``public``: TLS for clients that cannot verify a member's certificate, such as
    browsers.
    """

    def __init__(
        self,
        address: Address,
        tls: Tls,
        identify: Identify,
        sessions: SessionTable,
        refused: Callable[[str, str], None],
        handlers: Mapping[str, Handler],
        nats: Route | None = None,
        pages: Route | None = None,
        limits: ConnectionLimits | None = None,
        public: Tls | None = None,
    ) -> None:
        self._public = public
        self._tls, self._identify, self._sessions, self._refused = tls, identify, sessions, refused
        self._handlers, self._nats, self._pages = dict(handlers), nats, pages
        self._table = ConnectionTable(limits or ConnectionLimits())
        self._socket = socket.create_server(address, backlog=BACKLOG)
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ, None)
        self._closing = False
        self._reports = (0.0, 0)  # refusals of strangers since then
        self._splicer = Splicer()
        self._thread = threading.Thread(target=self._run, name="hansa-front", daemon=True)
        self._thread.start()

    def disconnect(self, wanted: Callable[[str], bool]) -> None:
        """Close the connections of owners that are no longer ``wanted``, and of certificates that were revoked."""
        for connection, owner in self._table.admitted():
            if owner.startswith("@"):  # a person at the pages
                continue
            names: list[str] = []
            with suppress(OSError, ValueError):  # it has ended
                names = certificate_names(connection) if isinstance(connection, ssl.SSLSocket) else []
            if not wanted(owner) or (names and not self._identify(names)):
                shut_down(connection)

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._closing = True
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()  # wakes the thread
        self._thread.join()
        self._splicer.close()
        self._table.close_all()

    # ── until the first request: one thread, no waiting ───────────────────────────────────────────────────────────

    def _run(self) -> None:
        swept = time.monotonic()
        while not self._closing:
            for key, _ in self._selector.select(1.0):
                try:
                    if key.data is None:
                        self._accept()
                    else:
                        self._advance(key.fileobj, key.data)  # type: ignore[arg-type]
                except Exception as error:  # no error of one connection may end the port
                    self._report("the port", f"{type(error).__name__} ({str(error)[:100]})")
                    if key.data is not None:
                        self._drop(key.fileobj)  # type: ignore[arg-type]
            if time.monotonic() - swept >= 1.0:
                swept = time.monotonic()
                self._table.close_overdue()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _report(self, peer: str, reason: str) -> None:
        """Report a refusal, at most some in a second: each is written to the disk, and strangers may cause many."""
        now = time.monotonic()
        if now - self._reports[0] >= 1.0:
            self._reports = (now, 0)
        self._reports = (self._reports[0], self._reports[1] + 1)
        if self._reports[1] <= MAX_REPORTS:
            self._refused(peer, reason)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, peer = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    self._table.make_room()
                return
            connection.setblocking(False)
            self._table.add(connection, peer[0])
            self._selector.register(connection, selectors.EVENT_READ, _First(peer[0]))

    def _advance(self, connection: socket.socket, first: _First) -> None:
        """Go on with a connection on which something has arrived."""
        try:
            if not isinstance(connection, ssl.SSLSocket):
                connection = self._secured(connection, first)
            if not first.shaken:
                connection.do_handshake()
                first.shaken = True
            while END not in first.data:
                if not (data := connection.recv(MAX_HEAD_BYTES)):
                    raise ConnectionError
                first.data += data
                if len(first.data) > MAX_HEAD_BYTES and END not in first.data[:MAX_HEAD_BYTES]:
                    raise BadHttp(f"a head is longer than {MAX_HEAD_BYTES} bytes")
        except (ssl.SSLWantReadError, BlockingIOError):
            self._watch(connection, selectors.EVENT_READ, first)
        except ssl.SSLWantWriteError:
            self._watch(connection, selectors.EVENT_WRITE, first)
        except (OSError, ValueError) as error:
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                self._report(first.peer, f"no TLS connection ({error.reason or error})")
            elif isinstance(error, BadHttp):
                self._report(first.peer, str(error))
            self._drop(connection)
        else:
            self._selector.unregister(connection)
            self._hand_over(connection, first)

    def _secured(self, connection: socket.socket, first: _First) -> ssl.SSLSocket:
        """Replace a connection by its TLS socket; only now, since most strangers send nothing.

        Raises `BlockingIOError` while the client's first message is incomplete.
        """
        tls = self._tls_for(connection, first)
        self._selector.unregister(connection)
        try:
            secured = tls.wrap_socket(connection, server_side=True, handshake=False)
        except (OSError, ValueError):
            self._table.remove(connection)
            connection.close()
            raise ConnectionError from None
        try:
            self._table.replace(connection, secured)
        except ConnectionError:
            secured.close()
            raise
        secured.setblocking(False)
        self._selector.register(secured, selectors.EVENT_READ, first)
        return secured

    def _tls_for(self, connection: socket.socket, first: _First) -> Tls:
        """Which certificate a client is shown: that of the kit, unless it does not know this kind of key."""
        if self._public is None:
            return self._tls
        hello, complete = first_record(connection, first.seen)
        if not complete:
            first.seen = len(hello)
            raise BlockingIOError
        return self._tls if knows_ed25519(hello) else self._public

    def _watch(self, connection: socket.socket, events: int, first: _First) -> None:
        if self._selector.get_key(connection).events != events:
            self._selector.modify(connection, events, first)

    def _drop(self, connection: socket.socket) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        self._table.remove(connection)
        connection.close()

    def _hand_over(self, connection: ssl.SSLSocket, first: _First) -> None:
        """Give a connection with a complete request a thread, if it is a member's or there is a place for a guest."""
        member = self._identify(certificate_names(connection))
        first.guest = not member and self._table.enter(first.peer)
        if not member and not first.guest:
            self._report(first.peer, "too many requests of strangers at a time")
            self._table.remove(connection)
            connection.close()
            return
        work = threading.Thread(target=self._serve, args=(connection, first, member), daemon=True)
        try:
            work.start()
        except RuntimeError:  # the system has no thread left
            self._no_guest(first)
            self._table.remove(connection)
            connection.close()

    # ── requests: a thread for each connection ────────────────────────────────────────────────────────────────────

    def _no_guest(self, first: _First) -> None:
        if first.guest:
            first.guest = False
            self._table.leave(first.peer)

    def _serve(self, connection: ssl.SSLSocket, first: _First, member: str) -> None:
        kept = False
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            kept = self._serve_requests(HttpStream(connection, first.data), first, member)
        except ssl.SSLError as error:
            self._refused(member or first.peer, f"no TLS connection ({error.reason or error})")
        except (OSError, ValueError):
            pass  # the client is gone, and connects again if it needs something
        finally:
            self._no_guest(first)
            if not kept:
                self._table.remove(connection)
                connection.close()

    def _serve_requests(self, stream: HttpStream, first: _First, member: str) -> bool:
        """Answer requests until the connection ends; True if the connection was handed to the splicer."""
        peer, wait = first.peer, self._table.limits.first_request_seconds
        while not self._closing:
            try:
                data = stream.read_head(wait)
                if not data:
                    return False
                stream.socket.settimeout(STALL_SECONDS)
                exchange = Exchange(stream, parse_request(data), peer, member)
            except BadHttp as error:
                self._refuse(Exchange(stream, Head(), peer, member), 400, str(error))
                return False
            try:
                self._authenticate(exchange)
                path = exchange.head.path
                if path == NATS_PATH:
                    return self._forward_nats(exchange)
                if path == SESSION_PATH:
                    self._open_session(exchange)
                elif handler := self._handlers.get("/" + path.split("/")[1]):
                    if not exchange.member:
                        raise SealError("no certificate of a member, and no sealed request")
                    self._table.admit(stream.socket, exchange.member, TRANSFER)
                    self._no_guest(first)
                    wait = IDLE_SECONDS
                    handler(exchange)
                elif self._pages is not None:
                    return self._forward_page(exchange)
                else:
                    exchange.answer(404, {"error": "there is no such page"}, close=True)
                    return False
            except SealError as error:
                self._refused(exchange.member or peer, str(error))
                exchange.session = None
                exchange.answer(401, REFUSED, close=True)
                return False
            except BadHttp as error:
                self._refuse(exchange, 400, str(error))
                return False
        return False

    def _refuse(self, exchange: Exchange, status: int, reason: str) -> None:
        self._refused(exchange.member or exchange.peer, reason)
        exchange.session = None
        exchange.answer(status, {"error": reason}, close=True)

    def _authenticate(self, exchange: Exchange) -> None:
        """Set the member of a sealed request; raises `SealError` if the request is not what a member sealed."""
        authorization = exchange.head.headers.get("authorization")
        own = "/" + exchange.head.path.split("/")[1]
        if exchange.member or authorization is None or (own != NATS_PATH and own not in self._handlers):
            return  # the pages have an Authorization of their own
        head = exchange.head
        request = covered(head.method, head.target, head.headers)
        exchange.session, exchange.number = self._sessions.check(authorization, request)
        exchange.member = exchange.session.member

    def _open_session(self, exchange: Exchange) -> None:
        length = exchange.head.length
        if length > MAX_JSON_BYTES:
            raise BadHttp("the body is too long")
        body = exchange.stream.read(length)
        if exchange.head.method == "GET":
            exchange.answer(200, self._sessions.challenge())
        else:
            self._sessions.open(json_object(body))
            exchange.answer(200, {"open": True})

    # ── what is forwarded ─────────────────────────────────────────────────────────────────────────────────────────

    def _forward_nats(self, exchange: Exchange) -> bool:
        head = exchange.head
        if not exchange.member:
            raise SealError("no certificate of a member, and no sealed request")
        if head.method != "GET" or head.headers.get("upgrade", "").lower() != "websocket" or head.length:
            raise BadHttp("this path is for WebSockets")
        if self._nats is None:
            exchange.session = None
            exchange.answer(503, {"error": "there is no NATS server"}, close=True)
            return False
        kept = {n: v for n, v in head.headers.items() if n in FORWARDED or n.startswith("sec-websocket-")}
        return self._forward(exchange, self._nats, NATS_PATH, kept, exchange.member, BROKER)

    def _forward_page(self, exchange: Exchange) -> bool:
        """Forward one request to the pages; the connection ends after its response."""
        head = exchange.head
        if "upgrade" in head.headers:
            raise BadHttp("the pages have no upgrades")
        kept = {n: v for n, v in head.headers.items() if not n.startswith(("x-forwarded", "forwarded", "x-hansa"))}
        kept |= {"connection": "close", "x-forwarded-for": exchange.peer, "x-forwarded-proto": "https"}
        if exchange.member:
            kept["x-hansa-member"] = exchange.member
        assert self._pages is not None
        return self._forward(exchange, self._pages, head.target, kept, f"@{exchange.peer}", PAGE)

    def _forward(
        self, exchange: Exchange, route: Route, target: str, headers: Mapping[str, str], owner: str, kind: str
    ) -> bool:
        stream = exchange.stream
        try:
            channel = route.open()
        except OSError:
            exchange.session = None
            exchange.answer(503, {"error": "the server behind is not ready"}, close=True)
            return False
        if not self._table.admit(stream.socket, owner, kind):
            channel.socket.close()
            exchange.answer(503, {"error": "too many people look at the pages"}, close=True)
            return False
        lines = [f"{exchange.head.method} {target} HTTP/1.1", *(f"{n}: {v}" for n, v in headers.items()), "", ""]
        early = "\r\n".join(lines).encode("latin-1") + stream.early
        self._splicer.add(stream.socket, channel.socket, early, lambda: self._table.remove(stream.socket))
        return True


def certificate_names(connection: ssl.SSLSocket) -> list[str]:
    """The identities in the peer's certificate; empty if it has shown none."""
    certificate: Any = connection.getpeercert() or {}
    return [value for kind, value in certificate.get("subjectAltName", ()) if kind == "email"]
