"""Where weights and texts change hands: a port of the asker's own, over mutual TLS, straight between the two ends.

Things are named by what they contain (XXH3, 128 bits): a broadcast is offered once, straight from memory; an
interrupted transfer, either way, continues where it stopped; the same thing sent twice is there once. What arrives is
written to a file, so that early answers wait on disk and survive the asker. A node may fetch what is offered to it and
bring what it was asked for, and nothing else.

Through the broker's store the same bytes took three times as long as plain gRPC: each is encrypted four times and
written once. The digest finds accidents; forgery is TLS's part, which is why a fast one is enough.
"""

import errno
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from hansa.core.errors import parse_json
from hansa.deploy.network.envelope import Ref, is_digest
from hansa.deploy.network.subjects import token
from hansa.deploy.network.tls import Tls

PIECE = 1 << 20
LONGEST_LINE = 4096
HANDSHAKE_SECONDS = 10.0
STALL_SECONDS = 60.0  # for one piece: whoever is slower than that has gone
IDLE_SECONDS = 3600.0
MOST_CONNECTIONS = 1024
PER_NODE = 3
FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EIO}

Identify = Callable[[list[str]], str]  # the member behind a certificate's names; empty if there is none


def digest(view: memoryview | bytes) -> str:
    return xxhash.xxh3_128(view).hexdigest()


class Refusal(Exception):
    """What was asked for is not given."""


class Unusable(Refusal):
    """What was asked can never be done: asking again changes nothing."""


@dataclass
class Offer:
    view: memoryview
    readers: set[str]


@dataclass
class Expected:
    """What a node may still bring: for this request, so many bytes in all."""

    request: str
    room: int
    taken: dict[str, int] = field(default_factory=dict)


class BlobServer:
    """``say`` hears who was refused what."""

    def __init__(
        self,
        folder: Path,
        address: tuple[str, int],
        tls: Tls,
        identify: Identify,
        say: Callable[[str, str], None],
    ) -> None:
        self.folder, self._tls, self._identify, self._say = folder, tls, identify, say
        folder.mkdir(parents=True, exist_ok=True)
        self._offers: dict[str, Offer] = {}
        self._expected: dict[str, Expected] = {}
        self._whole: set[Path] = set()  # files whose digest was found right
        self._lock = threading.Lock()
        self._open: dict[socket.socket, str] = {}
        self._closing = False
        self._socket = socket.create_server(address, reuse_port=False, backlog=256)
        threading.Thread(target=self._accept, name="hansa-depot", daemon=True).start()

    # ── the asker's side ──────────────────────────────────────────────────────────────────────────────────────────

    def offer(self, view: memoryview, readers: Iterable[str], name: str | None = None) -> Ref:
        """Let ``readers`` fetch this; it must not change until it is withdrawn."""
        name = name or digest(view)
        with self._lock:
            known = self._offers.setdefault(name, Offer(view, set()))
            known.readers.update(readers)
        return name, len(view)

    def withdraw(self, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                self._offers.pop(name, None)

    def expect(self, node: str, request: str, room: int) -> None:
        with self._lock:
            if node not in self._expected or self._expected[node].request != request:
                self._expected[node] = Expected(request, room)

    def expect_no_more(self, node: str) -> None:
        with self._lock:
            self._expected.pop(node, None)

    def found(self, node: str, ref: Ref) -> Path | None:
        """The file of something that a node brought, if all of it is there."""
        file = self.folder / token(node) / ref[0]
        if not file.exists() or file.stat().st_size != ref[1]:
            return None
        if file not in self._whole:  # from before a crash, perhaps of the whole machine
            if digest_of(file) != ref[0]:
                file.unlink()
                return None
            self._whole.add(file)
        return file

    def discard(self, node: str, names: Iterable[str]) -> None:
        for name in names:
            (self.folder / token(node) / name).unlink(missing_ok=True)
            self._whole.discard(self.folder / token(node) / name)

    def keep_only(self, node: str, names: Iterable[str]) -> None:
        """Forget what a node brought and nobody took: too late, or never to its end."""
        wanted = set(names)
        for file in (self.folder / token(node)).glob("*"):
            if file.name not in wanted:
                self.discard(node, [file.name])

    def drop_strangers(self) -> None:
        """End the connections of whoever is no member any more."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            if isinstance(connection, ssl.SSLSocket) and not self._identify(names_of(connection)):
                _end(connection)

    def close(self) -> None:
        self._closing = True
        _end(self._socket)
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            _end(connection)

    # ── the other side of the port ────────────────────────────────────────────────────────────────────────────────

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, peer = self._socket.accept()
            except OSError:
                return
            with self._lock:
                full = len(self._open) >= MOST_CONNECTIONS
                if not full:
                    self._open[connection] = ""
            if full:
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection, peer[0]), daemon=True).start()

    def _serve(self, connection: socket.socket, peer: str) -> None:
        plain = connection
        try:
            connection.settimeout(HANDSHAKE_SECONDS)
            connection = secured = self._tls.wrap_socket(connection, server_side=True)
            node = self._identify(names_of(secured))
            if not node:
                self._say(peer, "a certificate that belongs to no member was shown to the depot")
                return
            if self._admit(plain, connection, node):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._talk(connection, node)
        except ssl.SSLError as error:
            self._say(peer, f"no TLS connection to the depot ({error.reason or error})")
        except (OSError, ValueError):
            pass  # it has gone; whoever wants something comes again
        finally:
            with self._lock:
                self._open.pop(connection, None)
                self._open.pop(plain, None)
            connection.close()

    def _admit(self, plain: socket.socket, connection: socket.socket, node: str) -> bool:
        with self._lock:
            self._open.pop(plain, None)
            crowded = list(self._open.values()).count(node) >= PER_NODE
            if not crowded:
                self._open[connection] = node
        if crowded:
            self._say(node, "it opened too many connections to the depot")
        return not crowded

    def _talk(self, connection: socket.socket, node: str) -> None:
        while not self._closing:
            connection.settimeout(IDLE_SECONDS)
            line = read_line(connection)
            if line is None:
                return
            connection.settimeout(STALL_SECONDS)
            try:
                match line:
                    case {"get": str(name), "from": int(start)} if start >= 0:
                        self._give(connection, node, name, start)
                    case {"put": str(name), "size": int(size), "for": str(request)} if size >= 0:
                        self._take(connection, node, name, size, request)
                    case _:
                        raise Refusal("that is no question")
            except Refusal as refusal:
                self._say(node, f"the depot refused: {refusal}")
                write_line(connection, {"error": str(refusal)})
                if "put" in line:
                    return  # what follows would be taken for the next line

    def _give(self, connection: socket.socket, node: str, name: str, start: int) -> None:
        with self._lock:
            offer = self._offers.get(name)
            if offer is None or node not in offer.readers:
                raise Refusal("nothing of that name is offered")
            view = offer.view
        write_line(connection, {"size": len(view), "from": start})
        for at in range(start, len(view), PIECE):
            connection.sendall(view[at : at + PIECE])

    def _take(self, connection: socket.socket, node: str, name: str, size: int, request: str) -> None:
        self._room(node, name, size, request)
        if self.found(node, (name, size)) is None:
            part = self.folder / token(node) / f"{name}.part"
            part.parent.mkdir(exist_ok=True)
            try:
                arrived = self._receive(connection, part, size)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._say(node, f"no room for what it brings ({error.strerror})")
                write_line(connection, {"wait": f"there is no room yet ({error.strerror})"})
                raise ConnectionError from None  # it comes again
            if arrived != name:
                part.unlink()
                write_line(connection, {"again": True})
                return
            part.replace(part.with_suffix(""))
            self._whole.add(part.with_suffix(""))
        else:
            write_line(connection, {"from": size})
        write_line(connection, {"done": True})

    def _receive(self, connection: socket.socket, part: Path, size: int) -> str:
        """Whatever is still missing; returns the digest of it all. Every byte has its place: an old connection that
        still writes does no harm."""
        file = os.open(part, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            done = os.fstat(file).st_size
            if done > size:
                os.truncate(file, 0)
                done = 0
            summed = digesting(file, done)
            write_line(connection, {"from": done})
            piece = memoryview(bytearray(min(PIECE, max(1, size - done))))
            while done < size:
                try:
                    count = fill(connection, piece[: min(len(piece), size - done)])
                except Cut as cut:
                    os.pwrite(file, piece[: cut.count], done)
                    raise
                os.pwrite(file, piece[:count], done)
                summed.update(piece[:count])
                done += count
        finally:
            os.close(file)
        return summed.hexdigest()

    def _room(self, node: str, name: str, size: int, request: str) -> None:
        if not is_digest(name):
            raise Refusal("that is not a digest")
        with self._lock:
            expected = self._expected.get(node)
            if expected is None or expected.request != request:
                raise Refusal("nobody waits for this any more")
            others = sum(taken for known, taken in expected.taken.items() if known != name)
            if others + size > expected.room:
                raise Refusal(f"{others + size} bytes are more than the {expected.room} it may bring")
            expected.taken[name] = size


def names_of(connection: ssl.SSLSocket) -> list[str]:
    certificate: Any = connection.getpeercert() or {}
    return [value for kind, value in certificate.get("subjectAltName", ()) if kind == "email"]


def digesting(file: int, size: int) -> xxhash.xxh3_128:
    """A digest that has seen the first ``size`` bytes of an open file."""
    summed = xxhash.xxh3_128()
    for at in range(0, size, PIECE):
        summed.update(os.pread(file, min(PIECE, size - at), at))
    return summed


def digest_of(file: Path) -> str:
    with file.open("rb") as stream:
        return digesting(stream.fileno(), file.stat().st_size).hexdigest()


def read_line(connection: socket.socket) -> dict[str, Any] | None:
    """One line of JSON, read byte by byte: what follows it belongs to somebody else. None at the end."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            return None
        line += byte
        if len(line) > LONGEST_LINE:
            raise ValueError("a line without an end")
    found = parse_json(line)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def write_line(connection: socket.socket, line: dict[str, Any]) -> None:
    connection.sendall(json.dumps(line).encode() + b"\n")


class Cut(ConnectionError):
    """The connection ended in the middle; ``count`` bytes had arrived, and they count."""

    def __init__(self, count: int, why: str) -> None:
        super().__init__(why)
        self.count = count


def fill(connection: socket.socket, target: memoryview) -> int:
    done = 0
    while done < len(target):
        try:
            count = connection.recv_into(target[done:])
        except OSError as error:
            raise Cut(done, str(error)) from None
        if not count:
            raise Cut(done, "the other end has gone")
        done += count
    return done


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        connection.close()
