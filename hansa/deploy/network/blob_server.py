"""A parent's blob server: over mutual TLS, children fetch the parts of requests and upload the parts of replies.

A blob is named by the digest of its content: a broadcast is offered once, directly from memory; an interrupted transfer
continues in either direction; a blob that is sent twice is stored once. Uploads are written to files, so that early
replies wait on disk and survive a crash of the parent. A child may fetch what is offered to it, and upload the reply
that it was asked for, up to its quota. Strangers cannot turn members away (connection_table.py).

Through the broker's store the same bytes took three times as long as plain gRPC: each is encrypted four times and
written once.
"""

import errno
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hansa.deploy.network.blob_protocol import (
    CHUNK_BYTES,
    STALL_SECONDS,
    Interrupted,
    RequestRefused,
    digest,
    file_digest,
    partial_digest,
    read_line,
    receive_into,
    write_line,
)
from hansa.deploy.network.connection_table import ConnectionLimits, ConnectionTable, shut_down
from hansa.deploy.network.envelope import Ref, is_digest
from hansa.deploy.network.subjects import token
from hansa.deploy.network.tls import Tls

IDLE_SECONDS = 3600.0
BACKLOG = 1024  # connections that the kernel holds until they are accepted
OUT_OF_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
DISK_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EIO}

Identify = Callable[[list[str]], str]  # the member that a certificate's names belong to; empty if there is none


@dataclass
class OfferedBlob:
    """A blob in memory, and the nodes that may fetch it."""

    view: memoryview
    readers: set[str]


@dataclass
class UploadQuota:
    """What a node may upload: the parts of its reply to one request, ``limit`` bytes in all."""

    request: str
    limit: int
    used: dict[str, int] = field(default_factory=dict)  # blob → bytes


class BlobServer:
    """Serves blobs at ``address`` and stores uploads in ``folder``.

    ``refused`` is called with a node's name, or a peer's address, and the reason of every refusal.
    """

    def __init__(
        self,
        folder: Path,
        address: tuple[str, int],
        tls: Tls,
        identify: Identify,
        refused: Callable[[str, str], None],
        limits: ConnectionLimits | None = None,
    ) -> None:
        self.folder, self._tls, self._identify, self._refused = folder, tls, identify, refused
        folder.mkdir(parents=True, exist_ok=True)
        self._offers: dict[str, OfferedBlob] = {}
        self._quotas: dict[str, UploadQuota] = {}
        self._verified: set[Path] = set()  # files whose digest was checked
        self._lock = threading.Lock()
        self._connections = ConnectionTable(limits or ConnectionLimits())
        self._closing = False
        self._socket = socket.create_server(address, reuse_port=False, backlog=BACKLOG)
        self._socket.settimeout(1.0)  # so that overdue handshakes are ended also when no client connects
        threading.Thread(target=self._accept, name="hansa-blob-server", daemon=True).start()

    # ── for the parent's own process ──────────────────────────────────────────────────────────────────────────────

    def offer(self, view: memoryview, readers: Iterable[str], name: str | None = None) -> Ref:
        """Let ``readers`` fetch a blob; its bytes must not change until it is withdrawn. ``name``: its digest."""
        name = name or digest(view)
        with self._lock:
            known = self._offers.setdefault(name, OfferedBlob(view, set()))
            known.readers.update(readers)
        return name, len(view)

    def withdraw(self, names: Iterable[str]) -> None:
        """Stop offering blobs."""
        with self._lock:
            for name in names:
                self._offers.pop(name, None)

    def allow_upload(self, node: str, request: str, limit: int) -> None:
        """Let a node upload the parts of its reply to ``request``, at most ``limit`` bytes in all."""
        with self._lock:
            if node not in self._quotas or self._quotas[node].request != request:
                self._quotas[node] = UploadQuota(request, limit)

    def end_upload(self, node: str) -> None:
        """Accept no more uploads of a node."""
        with self._lock:
            self._quotas.pop(node, None)

    def find(self, node: str, ref: Ref) -> Path | None:
        """The file of a blob that a node has uploaded completely; None if it has not."""
        file = self.folder / token(node) / ref[0]
        if not file.exists() or file.stat().st_size != ref[1]:
            return None
        if file not in self._verified:  # written before a crash, perhaps of the whole machine
            if file_digest(file) != ref[0]:
                file.unlink()
                return None
            self._verified.add(file)
        return file

    def delete(self, node: str, names: Iterable[str]) -> None:
        """Delete uploads of a node."""
        for name in names:
            (self.folder / token(node) / name).unlink(missing_ok=True)
            self._verified.discard(self.folder / token(node) / name)

    def delete_except(self, node: str, names: Iterable[str]) -> None:
        """Delete all uploads of a node but ``names``: late and incomplete ones."""
        wanted = set(names)
        for file in (self.folder / token(node)).glob("*"):
            if file.name not in wanted:
                self.delete(node, [file.name])

    def disconnect_revoked(self) -> None:
        """Close the connections of nodes that are no longer members."""
        for connection in self._connections.members():
            if isinstance(connection, ssl.SSLSocket) and not self._identify(certificate_names(connection)):
                shut_down(connection)

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._closing = True
        shut_down(self._socket)
        with suppress(OSError):
            self._socket.close()
        self._connections.close_all()

    # ── connections of children ───────────────────────────────────────────────────────────────────────────────────

    def _accept(self) -> None:
        while not self._closing:
            self._connections.close_overdue()
            try:
                connection, peer = self._socket.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if self._closing or error.errno not in OUT_OF_DESCRIPTORS:
                    return
                self._connections.make_room()
                time.sleep(0.05)  # their threads close them
                continue
            try:
                secured = self._tls.wrap_socket(connection, server_side=True, handshake=False)
            except OSError:  # it has ended already
                connection.close()
                continue
            self._connections.add(secured, peer[0])
            threading.Thread(target=self._serve, args=(secured, peer[0]), daemon=True).start()

    def _serve(self, connection: ssl.SSLSocket, peer: str) -> None:
        try:
            connection.settimeout(self._connections.limits.handshake_seconds)
            connection.do_handshake()
            node = self._identify(certificate_names(connection))
            if not node:
                self._refused(peer, "its certificate at the blob server belongs to no member")
                return
            if self._connections.admit(connection, node):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._serve_requests(connection, node)
            else:
                self._refused(node, "it opened too many connections to the blob server")
        except ssl.SSLError as error:
            self._refused(peer, f"no TLS connection to the blob server ({error.reason or error})")
        except (OSError, ValueError):
            pass  # the client is gone, and connects again if it needs something
        finally:
            self._connections.remove(connection)
            connection.close()

    def _serve_requests(self, connection: socket.socket, node: str) -> None:
        while not self._closing:
            connection.settimeout(IDLE_SECONDS)
            line = read_line(connection)
            if line is None:
                return
            connection.settimeout(STALL_SECONDS)
            try:
                match line:
                    case {"get": str(name), "offset": int(start)} if start >= 0:
                        self._send(connection, node, name, start)
                    case {"put": str(name), "size": int(size), "request": str(request)} if size >= 0:
                        self._receive(connection, node, name, size, request)
                    case _:
                        raise RequestRefused("malformed request")
            except RequestRefused as error:
                self._refused(node, f"the blob server refused: {error}")
                write_line(connection, {"error": str(error)})
                if "put" in line:
                    return  # the bytes that follow would be read as the next line

    def _send(self, connection: socket.socket, node: str, name: str, start: int) -> None:
        with self._lock:
            offer = self._offers.get(name)
            if offer is None or node not in offer.readers:
                raise RequestRefused("no blob of that name is offered")
            view = offer.view
        write_line(connection, {"size": len(view), "offset": start})
        for at in range(start, len(view), CHUNK_BYTES):
            connection.sendall(view[at : at + CHUNK_BYTES])

    def _receive(self, connection: socket.socket, node: str, name: str, size: int, request: str) -> None:
        self._check_quota(node, name, size, request)
        if self.find(node, (name, size)) is None:
            part = self.folder / token(node) / f"{name}.part"
            part.parent.mkdir(exist_ok=True)
            try:
                arrived = self._receive_file(connection, part, size)
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                self._refused(node, f"the disk cannot take its upload ({error.strerror})")
                write_line(connection, {"busy": f"the server's disk cannot take the upload ({error.strerror})"})
                raise ConnectionError from None  # the client tries again
            if arrived != name:
                part.unlink()
                write_line(connection, {"resend": True})
                return
            part.replace(part.with_suffix(""))
            self._verified.add(part.with_suffix(""))
        else:
            write_line(connection, {"offset": size})
        write_line(connection, {"done": True})

    def _receive_file(self, connection: socket.socket, part: Path, size: int) -> str:
        """Receive what is missing of a file and return the digest of all of it.

        Every byte is written at its own offset, so an old connection that still writes does no harm.
        """
        file = os.open(part, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            done = os.fstat(file).st_size
            if done > size:
                os.truncate(file, 0)
                done = 0
            found = partial_digest(file, done)
            write_line(connection, {"offset": done})
            chunk = memoryview(bytearray(min(CHUNK_BYTES, max(1, size - done))))
            while done < size:
                try:
                    count = receive_into(connection, chunk[: min(len(chunk), size - done)])
                except Interrupted as error:
                    os.pwrite(file, chunk[: error.count], done)
                    raise
                os.pwrite(file, chunk[:count], done)
                found.update(chunk[:count])
                done += count
        finally:
            os.close(file)
        return found.hexdigest()

    def _check_quota(self, node: str, name: str, size: int, request: str) -> None:
        if not is_digest(name):
            raise RequestRefused("the blob's name is not a digest")
        with self._lock:
            quota = self._quotas.get(node)
            if quota is None or quota.request != request:
                raise RequestRefused("the request is no longer open")
            others = sum(used for known, used in quota.used.items() if known != name)
            if others + size > quota.limit:
                raise RequestRefused(f"{others + size} bytes exceed the quota of {quota.limit} bytes for this reply")
            quota.used[name] = size


def certificate_names(connection: ssl.SSLSocket) -> list[str]:
    """The identities in the peer's certificate."""
    certificate: Any = connection.getpeercert() or {}
    return [value for kind, value in certificate.get("subjectAltName", ()) if kind == "email"]
