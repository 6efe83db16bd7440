"""One request at a server and its response: the same for members on mutual TLS and for members with sealed sessions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hansa.deploy.network.blob_protocol import CHUNK_BYTES, Interrupted
from hansa.deploy.network.http_stream import BadHttp, Head, HttpStream, json_bytes
from hansa.deploy.network.sealed import TAG_BYTES, ServerSession, covered, sealed_size

assert CHUNK_BYTES == 1 << 20, "sealed chunks have this size, too"


@dataclass
class Exchange:
    """A request of ``member`` (empty: a stranger) from the address ``peer``, on ``stream``.

    ``session`` and ``number``: how it is sealed, if it is.
    """

    stream: HttpStream
    head: Head
    peer: str
    member: str = ""
    session: ServerSession | None = None
    number: int = 0

    @property
    def _request(self) -> bytes:
        return covered(self.head.method, self.head.target, self.head.headers)

    def check_length(self, size: int) -> None:
        """Raise `BadHttp` if the body does not have ``size`` bytes of content."""
        if self.head.length != (sealed_size(size) if self.session else size):
            raise BadHttp("Content-Length is not that of the announced bytes")

    def body(self, size: int) -> Iterator[memoryview]:
        """The content of the body in pieces, each valid until the next one; what came before an interruption, too.

        Raises `Interrupted` if the connection ends, `SealError` if a sealed piece was changed.
        """
        if self.session is not None:
            yield from self._sealed_body(self.session, size)
            return
        buffer = memoryview(bytearray(min(CHUNK_BYTES, max(1, size))))
        for at in range(0, size, CHUNK_BYTES):
            piece = buffer[: min(CHUNK_BYTES, size - at)]
            try:
                self.stream.read_into(piece)
            except Interrupted as error:
                yield piece[: error.count]
                raise
            yield piece

    def _sealed_body(self, session: ServerSession, size: int) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(min(CHUNK_BYTES, max(1, size)) + TAG_BYTES))
        for chunk, at in enumerate(range(0, size, CHUNK_BYTES)):
            piece = buffer[: min(CHUNK_BYTES, size - at) + TAG_BYTES]
            self.stream.read_into(piece)
            yield memoryview(session.seal.open_chunk(self.number, chunk, piece, self._request))

    def send(self, status: int, content: memoryview, headers: Mapping[str, str]) -> None:
        """Send a response with a body, from memory."""
        size = sealed_size(len(content)) if self.session else len(content)
        self.stream.send_status(status, {**headers, "Content-Length": str(size)})
        for chunk, at in enumerate(range(0, len(content), CHUNK_BYTES)):
            piece: memoryview | bytes = content[at : at + CHUNK_BYTES]
            if self.session is not None:
                piece = self.session.seal.close_chunk(self.number, chunk, memoryview(piece), self._request)
            self.stream.socket.sendall(piece)

    def answer(self, status: int, content: Mapping[str, Any], close: bool = False) -> None:
        """Send a JSON object; ``close``: the connection ends after it."""
        headers = {"Content-Type": "application/json", **({"Connection": "close"} if close else {})}
        self.send(status, memoryview(json_bytes(content)), headers)
