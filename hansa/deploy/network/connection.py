"""One connection to a NATS server: blocking, used by one thread at a time, and every wait has a bound.

It speaks the part of the NATS client protocol that Hansa needs (PUB, SUB, MSG, HMSG, PING) and finds out by itself when
the other end is gone. JetStream is asked by request and reply, in JSON.
"""

import json
import re
import secrets
import socket
from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from hansa.deploy.network.address import CONNECT_SECONDS, Address, Here, Proxy, reach
from hansa.deploy.network.tls import Tls

QUIET_SECONDS = 10.0  # after so much silence ask whether the server is there …
DEAD_SECONDS = 30.0  # … and after so much take it for gone
ANSWER_SECONDS = 15.0  # for an answer of the server itself
BUFFER = 128 << 10
LONGEST_LINE = 64 << 10
LARGEST_HEADERS = 64 << 10


class Broken(ConnectionError):
    """The connection is gone, or never came to be. Connect again."""


class Refused(Exception):
    """The server answered, and said no."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


@dataclass(frozen=True)
class Message:
    subject: str
    reply: str
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 0  # 503: nobody there, 404: no such message


class Connection:
    def __init__(
        self, address: Address, tls: Tls | None, inbox: str, name: str = "hansa", proxy: Proxy | Here | None = None
    ) -> None:
        self._inbox = f"{inbox}.{secrets.token_hex(6)}"
        self._buffer = memoryview(bytearray(BUFFER))
        self._start = self._end = 0
        self._arrived: deque[Message] = deque()
        self._sids = 0
        self._requests = 0
        self._heard = self._asked = monotonic()
        self.errors: list[str] = []  # what the server complained about: permissions above all
        self._socket: socket.socket = self._open(address, tls, name, proxy)

    # ── connecting ────────────────────────────────────────────────────────────────────────────────────────────────

    def _open(self, address: Address, tls: Tls | None, name: str, proxy: Proxy | Here | None) -> socket.socket:
        try:
            self._socket = reach(address, proxy)
        except OSError as error:
            raise Broken(f"no connection to {address[0]}:{address[1]} ({error})") from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            info = self._line(monotonic() + CONNECT_SECONDS)
            if not info.startswith(b"INFO "):
                raise Broken("the other end is not a NATS server")
            self.largest = int(json.loads(info[5:])["max_payload"])
            if tls is not None:
                self._start = self._end = 0  # nothing that came in the clear is believed
                self._socket = tls.wrap_socket(self._socket, server_hostname=address[0])
            options: dict[str, Any] = {
                "verbose": False,
                "pedantic": False,
                "tls_required": tls is not None,
                "headers": True,
            }
            options |= {"no_responders": True, "lang": "hansa", "version": "1", "protocol": 1, "name": name}
            self._send(f"CONNECT {json.dumps(options)}\r\nPING\r\n".encode())
            self._sids += 1
            self._await_pong(monotonic() + CONNECT_SECONDS)
            self._send(f"SUB {self._inbox}.* {self._sids}\r\n".encode())
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._socket.close()
            raise Broken(f"no connection to {address[0]}:{address[1]} ({_short(error)})") from None
        return self._socket

    def _await_pong(self, until: float) -> None:
        while (line := self._line(until)) != b"PONG":
            if line.startswith(b"-ERR"):
                raise Broken(line.decode(errors="replace"))

    def close(self) -> None:
        self._socket.close()

    # ── sending ───────────────────────────────────────────────────────────────────────────────────────────────────

    def subscribe(self, subject: str) -> None:
        self._sids += 1
        self._send(f"SUB {subject} {self._sids}\r\n".encode())

    def publish(self, subject: str, payload: bytes = b"", reply: str = "") -> None:
        head = f"PUB {subject} {reply + ' ' if reply else ''}{len(payload)}\r\n".encode()
        self._send(head + payload + b"\r\n")

    def inbox(self, token: int) -> str:
        return f"{self._inbox}.{token}"

    def request(self, subject: str, payload: bytes = b"", seconds: float = ANSWER_SECONDS) -> Message:
        """One question, one answer. What arrives meanwhile for subscriptions is kept for `next`."""
        self._requests += 1
        reply = self.inbox(self._requests)
        self.publish(subject, payload, reply)
        return self.expect({reply}, seconds)

    def expect(self, replies: set[str], seconds: float = ANSWER_SECONDS) -> Message:
        """The next message to one of our inboxes; others of them that nobody waits for any more are dropped."""
        until = monotonic() + seconds
        kept: deque[Message] = deque()
        try:
            while True:
                message = self._receive(until)
                if message is None:
                    complaint = f"; it said {self.errors[-1]}" if self.errors else ""
                    raise Broken(f"the server did not answer within {seconds:.0f} s{complaint}")
                if message.subject in replies:
                    return message
                if not message.subject.startswith(self._inbox):
                    kept.append(message)
        finally:
            self._arrived.extend(kept)

    def ask(self, api: str, body: dict[str, Any] | None = None, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        """A JetStream API call."""
        answer = self.request(f"$JS.API.{api}", json.dumps(body).encode() if body is not None else b"", seconds)
        return self.checked(answer)

    @staticmethod
    def checked(answer: Message) -> dict[str, Any]:
        """An answer of JetStream, or its refusal."""
        if answer.status:
            raise Refused(answer.status, answer.headers.get("Description", "nobody answers"))
        try:
            found: dict[str, Any] = json.loads(answer.payload)
            error = found.get("error")
            refusal = Refused(int(error.get("err_code", 0)), str(error.get("description", ""))) if error else None
        except (ValueError, TypeError, AttributeError):
            raise Broken("JetStream's answer makes no sense") from None
        if refusal is not None:
            raise refusal
        return found

    # ── receiving ─────────────────────────────────────────────────────────────────────────────────────────────────

    def next(self, seconds: float) -> Message | None:
        """The next message of a subscription, or nothing within ``seconds``."""
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
                    raise Broken(f"the server said {self.errors[-1]}")

    def _message(self, rest: bytes, with_headers: bool) -> Message:
        try:
            parts = rest.decode().split()
            subject, total = parts[0], int(parts[-1])
            size = int(parts[-2]) if with_headers else 0
        except (ValueError, IndexError):
            raise Broken("the server announced a message in words that nobody knows") from None
        if size > LARGEST_HEADERS or not 0 <= size <= total <= self.largest + LARGEST_HEADERS:
            raise Broken(f"a message of {total} bytes with {size} of headers came, more than was agreed")
        reply = parts[2] if len(parts) == (5 if with_headers else 4) else ""
        status, headers = _headers(bytes(self._exactly(memoryview(bytearray(size))))) if size else (0, {})
        payload = bytes(self._exactly(memoryview(bytearray(total - size))))
        self._exactly(memoryview(bytearray(2)))
        return Message(subject, reply, payload, headers, status)

    def _line(self, until: float) -> bytes:
        """The next line of the protocol; `TimeoutError` if none has come ``until`` then."""
        searched = self._start
        while True:
            found = bytes(self._buffer[searched : self._end]).find(b"\n")
            if found >= 0:
                line = bytes(self._buffer[self._start : searched + found]).rstrip(b"\r")
                self._start = searched + found + 1
                return line
            if self._end - self._start > LONGEST_LINE:
                raise Broken("a line of the protocol has no end")
            if self._start and self._end == len(self._buffer):
                self._buffer[: self._end - self._start] = bytes(self._buffer[self._start : self._end])
                self._start, self._end = 0, self._end - self._start
            if self._start == self._end:
                self._start = self._end = 0
            searched = self._end
            self._end += self._some(self._buffer[self._end :], until)

    def _exactly(self, target: memoryview) -> memoryview:
        """Fill ``target``: first from what was read ahead, then from the socket, without a copy in between."""
        done = min(len(target), self._end - self._start)
        target[:done] = self._buffer[self._start : self._start + done]
        self._start += done
        while done < len(target):
            try:
                done += self._some(target[done:], monotonic() + DEAD_SECONDS)
            except TimeoutError:
                raise Broken("a message broke off") from None
        return target

    def _some(self, target: memoryview, until: float) -> int:
        """Read what is there. Silence is bounded: the server is asked whether it is there, then given up."""
        while True:
            now = monotonic()
            if now >= until:
                raise TimeoutError
            if now - max(self._heard, self._asked) >= QUIET_SECONDS:
                self._asked = now
                self._send(b"PING\r\n")
            self._socket.settimeout(min(until - now, QUIET_SECONDS))
            try:
                count = self._socket.recv_into(target)
            except TimeoutError:
                if monotonic() - self._heard > DEAD_SECONDS:
                    raise Broken(f"the server has been silent for {DEAD_SECONDS:.0f} s") from None
                continue
            except OSError as error:
                raise Broken(f"the connection broke ({_short(error)})") from None
            if count == 0:
                raise Broken("the server closed the connection")
            self._heard = monotonic()
            return count

    def _send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(DEAD_SECONDS)
            self._socket.sendall(data)
        except OSError as error:
            raise Broken(f"the connection broke ({_short(error)})") from None


def _headers(data: bytes) -> tuple[int, dict[str, str]]:
    """``NATS/1.0 503 No Responders`` and the headers below it."""
    first, *lines = data.decode(errors="replace").split("\r\n")
    found = re.match(r"NATS/1\.0(?: (\d+)\s*(.*))?", first)
    if not found:
        raise Broken("headers that are none")
    headers = {key: value.strip() for key, colon, value in (line.partition(":") for line in lines) if colon}
    if found[2]:
        headers["Description"] = found[2]
    return int(found[1] or 0), headers


def _short(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__
