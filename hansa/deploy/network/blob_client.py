"""A child's side of the blob transfer: it fetches the parts of requests and uploads the parts of replies.

The client opens all connections, so a silo needs no open port.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hansa.deploy.network.address import Address, Proxy, open_connection
from hansa.deploy.network.blob_protocol import (
    CHUNK_BYTES,
    STALL_SECONDS,
    Interrupted,
    RequestRefused,
    digest,
    read_line,
    receive_into,
    write_line,
)
from hansa.deploy.network.connection import ConnectionLost
from hansa.deploy.network.envelope import Ref
from hansa.deploy.network.retry import Retry
from hansa.deploy.network.tls import Tls

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


class BlobClient:
    """A connection to a blob server, opened when needed and kept; interrupted transfers continue on the next one.

    ``retry`` makes the `Retry` of one transfer.
    """

    def __init__(
        self, address: Address, tls: Tls | None, retry: Callable[[], Retry], proxy: Proxy | None = None
    ) -> None:
        self._address, self._tls, self._retry, self._proxy = address, tls, retry, proxy
        self._socket: socket.socket | None = None

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
        connection = self._connected()
        try:
            answer = self._request(connection, {"get": name, "offset": progress.done})
            if answer.get("size") != len(target):
                raise RequestRefused(f"the server offers {answer.get('size')} bytes instead of {len(target)}")
            while progress.done < len(target):
                chunk = target[progress.done : progress.done + CHUNK_BYTES]
                progress.reach(progress.done + receive_into(connection, chunk))
        except Interrupted as error:
            progress.reach(progress.done + error.count)
            self.close()
            raise ConnectionLost(f"the transfer was interrupted ({error})") from None
        except (OSError, ValueError) as error:
            self.close()
            raise ConnectionLost(f"the transfer was interrupted ({error})") from None

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
        connection = self._connected()
        try:
            answer = self._request(connection, {"put": name, "size": len(view), "request": request})
            progress.reach(int(answer["offset"]))
            for at in range(progress.done, len(view), CHUNK_BYTES):
                connection.sendall(view[at : at + CHUNK_BYTES])
            return "done" in self._response(connection)
        except (OSError, ValueError, KeyError) as error:
            self.close()
            raise ConnectionLost(f"the transfer was interrupted ({error})") from None

    def _request(self, connection: socket.socket, line: dict[str, Any]) -> dict[str, Any]:
        write_line(connection, line)
        return self._response(connection)

    def _response(self, connection: socket.socket) -> dict[str, Any]:
        answer = read_line(connection)
        if answer is None:
            raise ConnectionError("the server closed the connection")
        if "busy" in answer:
            raise ConnectionError(str(answer["busy"])[:200])
        if "error" in answer:
            self.close()
            raise RequestRefused(str(answer["error"])[:200])
        return answer

    def _connected(self) -> socket.socket:
        if self._socket is not None:
            return self._socket
        try:
            connection = open_connection(self._address, self._proxy)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_hostname=self._address[0])
                connection.settimeout(STALL_SECONDS)
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            raise ConnectionLost(f"no connection to {self._address[0]}:{self._address[1]} ({error})") from None
        self._socket = connection
        return connection

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None
