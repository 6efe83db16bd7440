"""HTTP/1.1 on a blocking socket: heads by h11, which is strict, and bodies that are read straight into their buffers.

Both ends use it. A body passes through no intermediate buffer, and an interrupted transfer knows exactly how many bytes
have arrived; HTTP libraries return bodies as copies, and lose the part of a chunk that came before an interruption.
"""

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic
from typing import Any

import h11

from hansa.core.errors import parse_json
from hansa.deploy.network.blob_protocol import Interrupted, receive_into

MAX_HEAD_BYTES = 8 << 10
MAX_JSON_BYTES = 16 << 10
END = b"\r\n\r\n"
# Headers that decide what a message means; others, which proxies may add, are joined.
ONCE = {"host", "content-length", "transfer-encoding", "authorization", "range", "content-range", "upload-length"}
ONCE |= {"upgrade", "connection", "expect"}


class BadHttp(ValueError):
    """What arrived is not an HTTP message that this node accepts, with the reason."""


@dataclass(frozen=True)
class Head:
    """The first part of a request or a response; names of headers are in lower case."""

    method: str = ""
    target: str = ""
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """The number of bytes in the body; raises `BadHttp` if the head does not tell it."""
        if "transfer-encoding" in self.headers:
            raise BadHttp("a body without Content-Length is not accepted")
        return int(self.headers.get("content-length", "0"))

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


def parse_request(data: bytes) -> Head:
    """The head of a request, with its empty line; raises `BadHttp` if it is malformed or a header occurs twice."""
    event = _parse(h11.SERVER, data)
    assert isinstance(event, h11.Request)
    headers = _headers(event.headers)
    if headers.keys() >= {"transfer-encoding", "content-length"}:
        raise BadHttp("two lengths of one body")
    return Head(method=event.method.decode(), target=event.target.decode(), headers=headers)


def parse_response(data: bytes) -> Head:
    """The head of a response, with its empty line; raises `BadHttp` if it is malformed."""
    event = _parse(h11.CLIENT, data)
    assert isinstance(event, h11.Response | h11.InformationalResponse)
    return Head(status=event.status_code, headers=_headers(event.headers))


def _parse(role: Any, data: bytes) -> Any:
    connection = h11.Connection(role, max_incomplete_event_size=MAX_HEAD_BYTES)
    try:
        if role is h11.CLIENT:
            connection.send(h11.Request(method="GET", target="/", headers=[("Host", "-")]))
            connection.send(h11.EndOfMessage())
        connection.receive_data(data)
        event = connection.next_event()
    except h11.RemoteProtocolError as error:
        raise BadHttp(str(error)[:100]) from None
    if not isinstance(event, h11.Request | h11.Response | h11.InformationalResponse):
        raise BadHttp("an incomplete head")
    return event


def _headers(raw: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        if key in found and key in ONCE:
            raise BadHttp(f"the header {key} occurs twice")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


class HttpStream:
    """One end of an HTTP connection. ``early``: bytes that were read from the socket before."""

    def __init__(self, connection: socket.socket, early: bytes = b"") -> None:
        self.socket, self._early = connection, early

    @property
    def early(self) -> bytes:
        """What has been read, but not used."""
        return self._early

    def read_head(self, seconds: float) -> bytes:
        """The bytes up to the empty line, within ``seconds``; empty if the connection ended before the first one."""
        until = monotonic() + seconds
        while END not in self._early:
            if len(self._early) > MAX_HEAD_BYTES:
                raise BadHttp(f"a head is longer than {MAX_HEAD_BYTES} bytes")
            left = until - monotonic()
            if left <= 0:
                raise TimeoutError("the head of a message did not arrive in time")
            self.socket.settimeout(left)
            data = self.socket.recv(MAX_HEAD_BYTES)
            if not data:
                if self._early:
                    raise ConnectionError("the connection ended within the head of a message")
                return b""
            self._early += data
        head, _, self._early = self._early.partition(END)
        if len(head) > MAX_HEAD_BYTES:
            raise BadHttp(f"a head is longer than {MAX_HEAD_BYTES} bytes")
        return head + END

    def read_into(self, target: memoryview) -> int:
        """Fill ``target`` and return its size; raises `Interrupted` if the connection ends before."""
        done = min(len(target), len(self._early))
        if done:
            target[:done] = self._early[:done]
            self._early = self._early[done:]
        try:
            return done + receive_into(self.socket, target[done:])
        except Interrupted as error:
            raise Interrupted(done + error.count, str(error)) from None

    def read(self, size: int) -> bytes:
        """Exactly ``size`` bytes."""
        found = bytearray(size)
        self.read_into(memoryview(found))
        return bytes(found)

    def send_head(self, first: str, headers: Mapping[str, str]) -> None:
        """Send the first line and the headers of a message."""
        lines = [first, *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self.socket.sendall("\r\n".join(lines).encode("latin-1"))

    def send_status(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of a response."""
        self.send_head(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", headers)


def json_object(data: bytes) -> dict[str, Any]:
    """The JSON object in a body; raises `BadHttp` if it is something else."""
    try:
        found = parse_json(data)
    except ValueError:
        raise BadHttp("a body is not JSON") from None
    if not isinstance(found, dict):
        raise BadHttp("a body is not a JSON object")
    return found


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """A JSON object as a body."""
    return json.dumps(content).encode()
