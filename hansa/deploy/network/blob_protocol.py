"""What both ends of a blob transfer share: digests, lines of JSON, reading a known number of bytes, and the errors.

A client sends one line of JSON, ``{"get": DIGEST, "offset": BYTES}`` or ``{"put": DIGEST, "size": BYTES, "request":
ID}``; the server answers with one line, and the bytes follow. The digest (XXH3, 128 bits) detects accidents; TLS
prevents forgery, so a fast digest is enough.
"""

import json
import os
import socket
from pathlib import Path
from typing import Any

import xxhash

from hansa.core.errors import parse_json

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 4096
STALL_SECONDS = 60.0  # for one chunk; a slower peer counts as gone


class RequestRefused(Exception):
    """A request was refused, with the reason."""


class InvalidRequest(RequestRefused):
    """A request that can never be fulfilled: repeating it changes nothing.

    ``detail``: the reason for the node's own operator, where the sender must not learn it.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail or reason


class Interrupted(ConnectionError):
    """The connection ended during a transfer; ``count`` bytes of the chunk had arrived."""

    def __init__(self, count: int, reason: str) -> None:
        super().__init__(reason)
        self.count = count


def digest(view: memoryview | bytes) -> str:
    """The digest of bytes in memory, in hexadecimal."""
    return xxhash.xxh3_128(view).hexdigest()


def partial_digest(file: int, size: int) -> xxhash.xxh3_128:
    """A digest object that has processed the first ``size`` bytes of an open file."""
    found = xxhash.xxh3_128()
    for at in range(0, size, CHUNK_BYTES):
        found.update(os.pread(file, min(CHUNK_BYTES, size - at), at))
    return found


def file_digest(file: Path) -> str:
    """The digest of a file, in hexadecimal."""
    with file.open("rb") as stream:
        return partial_digest(stream.fileno(), file.stat().st_size).hexdigest()


def read_line(connection: socket.socket) -> dict[str, Any] | None:
    """Read one line of JSON, byte by byte, so that the bytes after it stay unread; None if the connection ended."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            return None
        line += byte
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(f"a line is longer than {MAX_LINE_BYTES} bytes")
    found = parse_json(line)
    if not isinstance(found, dict):
        raise ValueError("a line is not a JSON object")
    return found


def write_line(connection: socket.socket, line: dict[str, Any]) -> None:
    """Send one line of JSON."""
    connection.sendall(json.dumps(line).encode() + b"\n")


def receive_into(connection: socket.socket, target: memoryview) -> int:
    """Fill ``target`` from the connection and return its size; raises `Interrupted` if the connection ends before."""
    done = 0
    while done < len(target):
        try:
            count = connection.recv_into(target[done:])
        except OSError as error:
            raise Interrupted(done, str(error)) from None
        if not count:
            raise Interrupted(done, "the peer closed the connection")
        done += count
    return done
