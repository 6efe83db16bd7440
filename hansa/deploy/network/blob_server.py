"""A parent's blobs: over its HTTPS port, children fetch the parts of requests and upload the parts of replies.

A blob is named by the digest of its content: a broadcast is offered once, directly from memory; an interrupted transfer
continues in either direction; a blob that is sent twice is stored once. Uploads are written to files, so that early
replies wait on disk and survive a crash of the parent. A child may fetch what is offered to it, and upload the reply
that it was asked for, up to its quota.

Through the broker's store the same bytes took three times as long as plain gRPC: each is encrypted four times and
written once.
"""

import errno
import os
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hansa.deploy.network.blob_protocol import (
    BLOBS,
    REPLIES,
    RequestRefused,
    digest,
    file_digest,
    partial_digest,
)
from hansa.deploy.network.envelope import Ref
from hansa.deploy.network.exchange import Exchange
from hansa.deploy.network.front import Handler
from hansa.deploy.network.http_stream import BadHttp
from hansa.deploy.network.subjects import token

DISK_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EIO}
MAX_SIZE = 1 << 53


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
    """Offers blobs and stores uploads in ``folder``; a `hansa.deploy.network.front.Front` passes requests on to it.

    ``refused`` is called with a node's name and the reason of every refusal; ``suspended`` tells whether a member may
    not transfer anything now.
    """

    def __init__(
        self,
        folder: Path,
        refused: Callable[[str, str], None],
        suspended: Callable[[str], bool] = lambda node: False,
    ) -> None:
        self.folder, self._refused, self._suspended = folder, refused, suspended
        folder.mkdir(parents=True, exist_ok=True)
        self._offers: dict[str, OfferedBlob] = {}
        self._quotas: dict[str, UploadQuota] = {}
        self._verified: set[Path] = set()  # files whose digest was checked
        self._lock = threading.Lock()
        self.offered_elsewhere: Callable[[str, str], memoryview | None] = lambda node, name: None  # by other runs

    @property
    def handlers(self) -> dict[str, Handler]:
        """What answers requests, by the first part of their path."""
        return {BLOBS: self.answer, REPLIES: self.answer}

    def concerns(self, node: str, target: str) -> bool:
        """Whether a member's request for a path is about a blob or an upload that is open here."""
        kind, *parts = target.strip("/").split("/")
        if f"/{kind}" == BLOBS:
            return bool(parts) and self.offered(node, parts[-1]) is not None
        with self._lock:
            quota = self._quotas.get(node)
            return quota is not None and parts[:1] == [quota.request]

    # ── for the parent's own process ──────────────────────────────────────────────────────────────────────────────

    def offer(self, view: memoryview, readers: Iterable[str], name: str | None = None) -> Ref:
        """Let ``readers`` fetch a blob; its bytes must not change until it is withdrawn. ``name``: its digest."""
        name = name or digest(view)
        with self._lock:
            known = self._offers.setdefault(name, OfferedBlob(view, set()))
            known.readers.update(readers)
        return name, len(view)

    def offered(self, node: str, name: str) -> memoryview | None:
        """The bytes of a blob that a member may fetch here; None if there is no such blob."""
        with self._lock:
            offer = self._offers.get(name)
            return offer.view if offer is not None and node in offer.readers else None

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

    # ── requests of children ──────────────────────────────────────────────────────────────────────────────────────

    def answer(self, exchange: Exchange) -> None:
        """Answer a member's request; raises `BadHttp` if it is malformed."""
        node, head = exchange.member, exchange.head
        parts = re.fullmatch(r"(/blobs|/replies/([0-9a-f]{32}))/([0-9a-f]{32})", head.target)
        uploading = head.method == "PUT"
        try:
            if self._suspended(node):
                raise RequestRefused("the member is suspended")
            if parts is None or head.method not in ("GET", "PUT") or (uploading and not parts[2]):
                raise RequestRefused("malformed request")
            if head.length and not uploading:
                raise BadHttp("a GET has no body")
            if parts[2] is None:
                self._send(exchange, parts[3])
            elif uploading:
                self._receive(exchange, parts[2], parts[3])
            else:
                self._tell_offset(exchange, parts[2], parts[3])
        except RequestRefused as error:
            self._refused(node, f"the blob server refused: {error}")
            # After a refused upload the bytes that follow would be read as the next request.
            exchange.answer(403, {"error": str(error)}, close=uploading)
            if uploading:
                raise ConnectionError from None

    def _send(self, exchange: Exchange, name: str) -> None:
        wanted = re.fullmatch(r"bytes=([0-9]{1,16})-", exchange.head.headers.get("range", "bytes=0-"))
        if wanted is None:
            raise RequestRefused("malformed range")
        view = self.offered(exchange.member, name)
        if view is None:
            view = self.offered_elsewhere(exchange.member, name)
        if view is None:
            raise RequestRefused("no blob of that name is offered")
        start, size = int(wanted[1]), len(view)
        if start > size:
            raise RequestRefused("the range begins after the end of the blob")
        part = start > 0 and start < size
        headers = {"Content-Range": f"bytes {start}-{size - 1}/{size}"} if part else {}
        exchange.send(206 if part else 200, view[start:], {"Content-Type": "application/octet-stream", **headers})

    def _tell_offset(self, exchange: Exchange, request: str, name: str) -> None:
        size = _number(exchange.head.headers.get("upload-length", ""))
        self._check_quota(exchange.member, name, size, request)
        if self.find(exchange.member, (name, size)) is not None:
            exchange.answer(200, {"offset": size, "done": True})
            return
        part = self._part(exchange.member, name)
        done = part.stat().st_size if part.exists() else 0
        exchange.answer(200, {"offset": done if done <= size else 0})

    def _part(self, node: str, name: str) -> Path:
        return self.folder / token(node) / f"{name}.part"

    def _receive(self, exchange: Exchange, request: str, name: str) -> None:
        node = exchange.member
        found = re.fullmatch(r"bytes (?:([0-9]{1,16})-[0-9]{1,16}|\*)/([0-9]{1,16})", _range_of(exchange))
        if found is None:
            raise RequestRefused("malformed range")
        size = _number(found[2])
        start = int(found[1]) if found[1] else size
        if start > size:
            raise RequestRefused("the range begins after the end of the blob")
        self._check_quota(node, name, size, request)
        exchange.check_length(size - start)
        part = self._part(node, name)
        part.parent.mkdir(exist_ok=True)
        try:
            arrived = self._receive_file(exchange, part, start, size)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            self._refused(node, f"the disk cannot take its upload ({error.strerror})")
            exchange.answer(507, {"busy": f"the server's disk cannot take the upload ({error.strerror})"}, close=True)
            raise ConnectionError from None  # the client tries again
        if arrived != name:
            part.unlink(missing_ok=True)
            exchange.answer(409, {"resend": True})
            return
        if part.exists():  # or another connection of the node was faster
            part.replace(part.with_suffix(""))
        self._verified.add(part.with_suffix(""))
        exchange.answer(201, {"done": True})

    def _receive_file(self, exchange: Exchange, part: Path, start: int, size: int) -> str:
        """Receive a file from byte ``start`` on, and return the digest of all of it.

        Every byte is written at its own offset, so an old connection that still writes does no harm.
        """
        file = os.open(part, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(file).st_size > size:
                os.truncate(file, 0)
            if os.fstat(file).st_size < start:
                raise RequestRefused("the upload continues after bytes that have not arrived")
            found, done = partial_digest(file, start), start
            for piece in exchange.body(size - start):
                os.pwrite(file, piece, done)
                found.update(piece)
                done += len(piece)
        finally:
            os.close(file)
        return found.hexdigest()

    def _check_quota(self, node: str, name: str, size: int, request: str) -> None:
        with self._lock:
            quota = self._quotas.get(node)
            if quota is None or quota.request != request:
                raise RequestRefused("the request is no longer open")
            others = sum(used for known, used in quota.used.items() if known != name)
            if others + size > quota.limit:
                raise RequestRefused(f"{others + size} bytes exceed the quota of {quota.limit} bytes for this reply")
            quota.used[name] = size


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,16}", text) or int(text) > MAX_SIZE:
        raise RequestRefused("the size of the blob is missing")
    return int(text)


def _range_of(exchange: Exchange) -> str:
    return exchange.head.headers.get("content-range", "")
