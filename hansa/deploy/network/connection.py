"""One connection to a NATS server, over a WebSocket: blocking, for one thread at a time, with a bound on every wait.

It implements the part of the NATS client protocol that Hansa needs (PUB, SUB, MSG, HMSG, PING) and detects a dead
server. The node authenticates by signing the server's challenge with its own key. JetStream is called by request and
reply, in JSON.
"""

import json
import re
import secrets
from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.deploy.network.address import CONNECT_SECONDS, ConnectionLost
from hansa.deploy.network.nkey import answer
from hansa.deploy.network.route import Route
from hansa.deploy.network.websocket import PATH, WebSocket

PING_SECONDS = 10.0  # after this much silence the server is sent a PING
DEAD_SECONDS = 30.0  # after this much silence the server counts as dead
REPLY_SECONDS = 15.0  # for a reply of the server itself
BUFFER_BYTES = 128 << 10
MAX_LINE_BYTES = 64 << 10
MAX_HEADER_BYTES = 64 << 10


class JetStreamError(Exception):
    """JetStream answered with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


@dataclass(frozen=True)
class Message:
    """A message from the server. ``status``: 503 if there is no responder, 404 if there is no such message."""

    subject: str
    reply: str
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 0


class Connection:
    """A connection to the server at the end of ``route``, authenticated with ``key``.

    Replies to requests arrive below ``inbox``.
    """

    def __init__(self, route: Route, key: Ed25519PrivateKey, inbox: str, name: str = "hansa") -> None:
        self._inbox = f"{inbox}.{secrets.token_hex(6)}"
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._start = self._end = 0
        self._arrived: deque[Message] = deque()
        self._sids = 0
        self._requests = 0
        self._last_received = self._last_ping = monotonic()
        self.errors: list[str] = []  # the last errors that the server sent, such as permission violations
        self._socket: WebSocket = self._open(route, key, name)

    # ── connecting ────────────────────────────────────────────────────────────────────────────────────────────────

    def _open(self, route: Route, key: Ed25519PrivateKey, name: str) -> WebSocket:
        channel = route.open()
        try:
            channel.socket.settimeout(CONNECT_SECONDS)
            headers = channel.session.authorize("GET", PATH, {"upgrade": "websocket"})[1] if channel.session else {}
            self._socket = WebSocket(channel.socket, channel.address[0], headers)
            info = self._line(monotonic() + CONNECT_SECONDS)
            if not info.startswith(b"INFO "):
                raise ConnectionLost("the server is not a NATS server")
            found = json.loads(info[5:])
            self.max_payload = int(found["max_payload"])
            options: dict[str, Any] = {"verbose": False, "pedantic": False, "tls_required": False, "headers": True}
            options |= {"no_responders": True, "lang": "hansa", "version": "1", "protocol": 1, "name": name}
            options |= answer(key, str(found["nonce"]))
            self._send(f"CONNECT {json.dumps(options)}\r\nPING\r\n".encode())
            self._sids += 1
            self._await_pong(monotonic() + CONNECT_SECONDS)
            self._send(f"SUB {self._inbox}.* {self._sids}\r\n".encode())
        except (OSError, ValueError, KeyError, TypeError) as error:
            channel.socket.close()
            route.next_address()
            host, port = channel.address
            raise ConnectionLost(f"no connection to {host}:{port} ({_short(error)})") from None
        return self._socket

    def _await_pong(self, until: float) -> None:
        while (line := self._line(until)) != b"PONG":
            if line.startswith(b"-ERR"):
                raise ConnectionLost(line.decode(errors="replace"))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    # ── sending ───────────────────────────────────────────────────────────────────────────────────────────────────

    def subscribe(self, subject: str) -> None:
        """Subscribe to a subject; its messages are returned by `next`."""
        self._sids += 1
        self._send(f"SUB {subject} {self._sids}\r\n".encode())

    def publish(self, subject: str, payload: bytes = b"", reply: str = "") -> None:
        """Publish a message; ``reply`` is the subject for replies to it."""
        head = f"PUB {subject} {reply + ' ' if reply else ''}{len(payload)}\r\n".encode()
        self._send(head + payload + b"\r\n")

    def inbox(self, token: int) -> str:
        """The subject of one of this connection's inboxes."""
        return f"{self._inbox}.{token}"

    def request(self, subject: str, payload: bytes = b"", seconds: float = REPLY_SECONDS) -> Message:
        """Send a request and return its reply. Messages of subscriptions that arrive meanwhile are kept for `next`."""
        self._requests += 1
        reply = self.inbox(self._requests)
        self.publish(subject, payload, reply)
        return self.expect({reply}, seconds)

    def expect(self, replies: set[str], seconds: float = REPLY_SECONDS) -> Message:
        """Return the next message to one of the ``replies`` inboxes; messages to other inboxes are dropped."""
        until = monotonic() + seconds
        kept: deque[Message] = deque()
        try:
            while True:
                message = self._receive(until)
                if message is None:
                    last = f"; its last error was {self.errors[-1]}" if self.errors else ""
                    raise ConnectionLost(f"the server did not answer within {seconds:.0f} s{last}")
                if message.subject in replies:
                    return message
                if not message.subject.startswith(self._inbox):
                    kept.append(message)
        finally:
            self._arrived.extend(kept)

    def ask(self, api: str, body: dict[str, Any] | None = None, seconds: float = REPLY_SECONDS) -> dict[str, Any]:
        """Call the JetStream API and return its response; raises `JetStreamError` if that is an error."""
        answer = self.request(f"$JS.API.{api}", json.dumps(body).encode() if body is not None else b"", seconds)
        return self.checked(answer)

    @staticmethod
    def checked(answer: Message) -> dict[str, Any]:
        """Return JetStream's response in a message; raises `JetStreamError` if it is an error."""
        if answer.status:
            raise JetStreamError(answer.status, answer.headers.get("Description", "no responders"))
        try:
            found: dict[str, Any] = json.loads(answer.payload)
            error = found.get("error")
            failure = (
                JetStreamError(int(error.get("err_code", 0)), str(error.get("description", ""))) if error else None
            )
        except (ValueError, TypeError, AttributeError):
            raise ConnectionLost("JetStream's response is malformed") from None
        if failure is not None:
            raise failure
        return found

    # ── receiving ─────────────────────────────────────────────────────────────────────────────────────────────────

    def next(self, seconds: float) -> Message | None:
        """Return the next message of a subscription, or None if none came within ``seconds``."""
        if self._arrived:
            return self._arrived.popleft()
        until = monotonic() + seconds
        while True:
            message = self._receive(until)
            if message is None or not message.subject.startswith(self._inbox):
                return message

    def _receive(self, until: float) -> Message | None:
        while True:
            try:
                line = self._line(until)
            except TimeoutError:
                return None
            verb, _, rest = line.partition(b" ")
            if verb == b"MSG":
                return self._message(rest, False)
            if verb == b"HMSG":
                return self._message(rest, True)
            if verb == b"PING":
                self._send(b"PONG\r\n")
            elif verb == b"-ERR":
                self.errors = [*self.errors[-9:], rest.decode(errors="replace")]
                if b"Permissions Violation" not in rest:
                    raise ConnectionLost(f"the server sent the error {self.errors[-1]}")

    def _message(self, rest: bytes, with_headers: bool) -> Message:
        try:
            parts = rest.decode().split()
            subject, total = parts[0], int(parts[-1])
            size = int(parts[-2]) if with_headers else 0
        except (ValueError, IndexError):
            raise ConnectionLost("the server sent a malformed message header") from None
        if size > MAX_HEADER_BYTES or not 0 <= size <= total <= self.max_payload + MAX_HEADER_BYTES:
            raise ConnectionLost(
                f"the server announced a message of {total} bytes, {size} of them headers, above the limit"
            )
        reply = parts[2] if len(parts) == (5 if with_headers else 4) else ""
        status, headers = _headers(bytes(self._exactly(memoryview(bytearray(size))))) if size else (0, {})
        payload = bytes(self._exactly(memoryview(bytearray(total - size))))
        self._exactly(memoryview(bytearray(2)))
        return Message(subject, reply, payload, headers, status)

    def _line(self, until: float) -> bytes:
        """Return the next line of the protocol; raises `TimeoutError` if it is not complete ``until`` then."""
        searched = self._start
        while True:
            found = bytes(self._buffer[searched : self._end]).find(b"\n")
            if found >= 0:
                line = bytes(self._buffer[self._start : searched + found]).rstrip(b"\r")
                self._start = searched + found + 1
                return line
            if self._end - self._start > MAX_LINE_BYTES:
                raise ConnectionLost(f"the server sent a line of more than {MAX_LINE_BYTES} bytes")
            if self._start and self._end == len(self._buffer):
                self._buffer[: self._end - self._start] = bytes(self._buffer[self._start : self._end])
                self._start, self._end = 0, self._end - self._start
            if self._start == self._end:
                self._start = self._end = 0
            searched = self._end
            self._end += self._some(self._buffer[self._end :], until)

    def _exactly(self, target: memoryview) -> memoryview:
        """Fill ``target``, first from the read buffer, then directly from the socket."""
        done = min(len(target), self._end - self._start)
        target[:done] = self._buffer[self._start : self._start + done]
        self._start += done
        while done < len(target):
            try:
                done += self._some(target[done:], monotonic() + DEAD_SECONDS)
            except TimeoutError:
                raise ConnectionLost("the server stopped in the middle of a message") from None
        return target

    def _some(self, target: memoryview, until: float) -> int:
        """Read what has arrived. After `PING_SECONDS` of silence send a PING, after `DEAD_SECONDS` raise."""
        while True:
            now = monotonic()
            if now >= until:
                raise TimeoutError
            if now - max(self._last_received, self._last_ping) >= PING_SECONDS:
                self._last_ping = now
                self._send(b"PING\r\n")
            self._socket.settimeout(min(until - now, PING_SECONDS))
            try:
                count = self._socket.recv_into(target)
            except TimeoutError:
                if monotonic() - self._last_received > DEAD_SECONDS:
                    raise ConnectionLost(f"the server has been silent for {DEAD_SECONDS:.0f} s") from None
                continue
            except OSError as error:
                raise ConnectionLost(f"the connection broke ({_short(error)})") from None
            if count == 0:
                raise ConnectionLost("the server closed the connection")
            self._last_received = monotonic()
            return count

    def _send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(DEAD_SECONDS)
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(f"the connection broke ({_short(error)})") from None


def _headers(data: bytes) -> tuple[int, dict[str, str]]:
    """Parse a status line such as ``NATS/1.0 503 No Responders`` and the headers below it."""
    first, *lines = data.decode(errors="replace").split("\r\n")
    found = re.match(r"NATS/1\.0(?: (\d+)\s*(.*))?", first)
    if not found:
        raise ConnectionLost("malformed NATS headers")
    headers = {key: value.strip() for key, colon, value in (line.partition(":") for line in lines) if colon}
    if found[2]:
        headers["Description"] = found[2]
    return int(found[1] or 0), headers


def _short(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__
