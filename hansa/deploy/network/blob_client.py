"""A child's side of the blob transfer: it fetches the parts of requests and uploads the parts of replies, over HTTPS.

The client opens all connections, so a silo needs no open port. Bodies go straight from and into their buffers, and a
broken transfer continues at the very byte where it stopped (http_stream.py).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hansa.deploy.network.address import ConnectionLost
from hansa.deploy.network.blob_protocol import (
    BLOBS,
    CHUNK_BYTES,
    REPLIES,
    STALL_SECONDS,
    Interrupted,
    RequestRefused,
    digest,
)
from hansa.deploy.network.envelope import Ref
from hansa.deploy.network.http_stream import MAX_JSON_BYTES, BadHttp, Head, HttpStream, json_object, parse_response
from hansa.deploy.network.retry import Retry
from hansa.deploy.network.route import Channel, Route
from hansa.deploy.network.sealed import TAG_BYTES, SealError, covered, sealed_size

ATTEMPTS = 3  # transfers of one blob that arrive complete but with another digest


class Progress:
    """The bytes of a transfer that are done. While it advances, a broken connection is opened again at once."""

    def __init__(self, retry: Retry) -> None:
        self.retry, self.done = retry, 0

    def reach(self, done: int) -> None:
        """Set the number of bytes done."""
        if done > self.done:
            self.retry.progress()
        self.done = done


class Call:
    """A request on a channel, and its response; bodies are sealed if the channel has a session."""

    def __init__(self, channel: Channel, stream: HttpStream, method: str, target: str) -> None:
        self._channel, self._stream, self._method, self._target = channel, stream, method, target
        self._number, self._request = 0, b""

    def send_head(self, headers: dict[str, str], size: int = 0) -> None:
        """Send the head of a request whose body has ``size`` bytes of content; names of headers are in lower case."""
        session = self._channel.session
        headers = {**headers, "host": self._channel.address[0]}
        if self._method == "PUT":
            headers["content-length"] = str(sealed_size(size) if session else size)
        if session is not None:
            self._number, authorization = session.authorize(self._method, self._target, headers)
            self._request = covered(self._method, self._target, headers)
            headers |= authorization
        self._stream.send_head(f"{self._method} {self._target} HTTP/1.1", headers)

    def send_body(self, view: memoryview) -> None:
        """Send the body from memory."""
        for chunk, at in enumerate(range(0, len(view), CHUNK_BYTES)):
            piece: memoryview | bytes = view[at : at + CHUNK_BYTES]
            if self._channel.session is not None:
                seal = self._channel.session.seal
                piece = seal.close_chunk(self._number, chunk, memoryview(piece), self._request)
            self._stream.socket.sendall(piece)

    def response(self) -> Head:
        """The head of the response."""
        data = self._stream.read_head(STALL_SECONDS)
        self._stream.socket.settimeout(STALL_SECONDS)
        if not data:
            raise ConnectionError("the server closed the connection")
        return parse_response(data)

    def receive_into(self, head: Head, target: memoryview, arrived: Callable[[int], None]) -> None:
        """Fill ``target`` with the body; ``arrived`` is called with the number of bytes that are there so far."""
        session = self._channel.session
        if head.length != (sealed_size(len(target)) if session else len(target)):
            raise RequestRefused(f"the server sends {head.length} bytes, where {len(target)} are expected")
        for chunk, at in enumerate(range(0, len(target), CHUNK_BYTES)):
            piece = target[at : at + CHUNK_BYTES]
            if session is None:
                try:
                    self._stream.read_into(piece)
                except Interrupted as error:
                    arrived(at + error.count)
                    raise
            else:
                sealed = memoryview(bytearray(len(piece) + TAG_BYTES))
                self._stream.read_into(sealed)
                piece[:] = session.seal.open_chunk(self._number, chunk, sealed, self._request)
            arrived(at + len(piece))

    def content(self, head: Head) -> dict[str, Any]:
        """The JSON object in the body; raises `RequestRefused` if it is a refusal, `ConnectionError` if it is busy."""
        if head.length > MAX_JSON_BYTES:
            raise BadHttp("the server's answer is too long")
        session, body = self._channel.session, self._stream.read(head.length)
        if session is not None and head.status not in (400, 401, 503):  # these come before the request is opened
            body = session.seal.open_chunk(self._number, 0, memoryview(body), self._request)
        found = json_object(body)
        if head.status in (401, 503, 507) or "busy" in found:
            raise ConnectionError(str(found.get("busy", found.get("error", "")))[:200])
        if "error" in found:
            raise RequestRefused(str(found["error"])[:200])
        return found


class BlobClient:
    """A connection to a blob server, opened when needed and kept; interrupted transfers continue on the next one.

    ``retry`` makes the `Retry` of one transfer.
    """

    def __init__(self, route: Route, retry: Callable[[], Retry]) -> None:
        self._route, self._retry = route, retry
        self._open: tuple[Channel, HttpStream] | None = None

    def fetch(self, ref: Ref, target: memoryview) -> None:
        """Fill ``target`` with a blob; raises `RequestRefused` if the server does not offer it."""
        name, size = ref
        if len(target) != size:
            raise RequestRefused(f"a blob of {size} bytes was announced, but the buffer has {len(target)}")
        for _ in range(ATTEMPTS):
            progress = Progress(self._retry())
            progress.retry.keep_trying(lambda p=progress: self._fetch(name, target, p))  # type: ignore[misc]
            if digest(target) == name:
                return
        raise RequestRefused(f"the blob that arrived has another digest than the announced one, {ATTEMPTS} times")

    def _fetch(self, name: str, target: memoryview, progress: Progress) -> None:
        with self._transfer("GET", f"{BLOBS}/{name}") as call:
            start = progress.done
            call.send_head({"range": f"bytes={start}-"} if start else {})
            head = call.response()
            if head.status not in (200, 206):
                call.content(head)
                raise BadHttp(f"the server answered with status {head.status}")
            call.receive_into(head, target[start:], lambda count: progress.reach(start + count))

    def upload(self, view: memoryview, request: str, name: str | None = None) -> Ref:
        """Upload a part of the reply to ``request``, from where an earlier attempt stopped.

        ``name``: the digest of the part, if it is known. Raises `RequestRefused` if the server does not accept it.
        """
        name = name or digest(view)
        for _ in range(ATTEMPTS):
            progress = Progress(self._retry())
            if progress.retry.keep_trying(lambda p=progress: self._upload(name, view, request, p)):  # type: ignore[misc]
                return name, len(view)
        raise RequestRefused(f"the server received another digest than the client sent, {ATTEMPTS} times")

    def _upload(self, name: str, view: memoryview, request: str, progress: Progress) -> bool:
        """Upload once; whether the server received the blob with the right digest."""
        size, target = len(view), f"{REPLIES}/{request}/{name}"
        with self._transfer("GET", target) as call:
            call.send_head({"upload-length": str(size)})
            answer = call.content(call.response())
            if answer.get("done") is True:
                return True
            start = int(answer["offset"])
            if not 0 <= start <= size:
                raise BadHttp("the server has more bytes than the blob")
            progress.reach(start)
        with self._transfer("PUT", target) as call:
            where = f"{start}-{size - 1}" if start < size else "*"
            call.send_head({"content-range": f"bytes {where}/{size}"}, size - start)
            call.send_body(view[start:])
            return "done" in call.content(call.response())

    @contextmanager
    def _transfer(self, method: str, target: str) -> Iterator[Call]:
        """A request on the open connection, or a new one; raises `ConnectionLost` if it is interrupted."""
        if self._open is None:
            channel = self._route.open()
            channel.socket.settimeout(STALL_SECONDS)
            self._open = channel, HttpStream(channel.socket)
        try:
            yield Call(*self._open, method, target)
        except RequestRefused:
            self.close()
            raise
        except (OSError, ValueError, KeyError, TypeError, SealError) as error:
            self.close()
            self._route.next_address()
            raise ConnectionLost(f"the transfer was interrupted ({error})") from None

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._open is not None:
            with suppress(OSError):
                self._open[0].socket.close()
            self._open = None
