"""What both ends of a blob transfer share: paths, digests, reading a known number of bytes, and the errors.

    GET /blobs/DIGEST               a part of a request, from the byte that Range names
    GET /replies/REQUEST/DIGEST     how many bytes of a part of a reply have arrived (its size is in Upload-Length)
    PUT /replies/REQUEST/DIGEST     the rest of it, from the byte that Content-Range names

The digest (XXH3, 128 bits) detects accidents; TLS or a sealed session prevents forgery, so a fast digest is enough.
"""

import os
import socket
from pathlib import Path

import xxhash

BLOBS, REPLIES = "/blobs", "/replies"
CHUNK_BYTES = 1 << 20
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
