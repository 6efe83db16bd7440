"""The silo's side of the depot: it fetches what it was sent, and brings what it answers. Only ever outwards."""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hansa.deploy.network.address import Address, Proxy, reach
from hansa.deploy.network.blob_server import PIECE, STALL_SECONDS, Cut, Refusal, digest, fill, read_line, write_line
from hansa.deploy.network.connection import Broken
from hansa.deploy.network.envelope import Ref
from hansa.deploy.network.retry import Retry
from hansa.deploy.network.tls import Tls

TRIES = 3  # of a thing that arrives whole and is not what its name says


class Progress:
    """How far a transfer has come. As long as it comes further, a broken connection is made again at once."""

    def __init__(self, patience: Retry) -> None:
        self.patience, self.done = patience, 0

    def reach(self, done: int) -> None:
        if done > self.done:
            self.patience.progress()
        self.done = done


class BlobClient:
    """One connection, made when it is needed and kept; a transfer that breaks off continues on the next one."""

    def __init__(
        self, address: Address, tls: Tls | None, patience: Callable[[], Retry], proxy: Proxy | None = None
    ) -> None:
        self._address, self._tls, self._patience, self._proxy = address, tls, patience, proxy
        self._socket: socket.socket | None = None

    def fetch(self, ref: Ref, target: memoryview) -> None:
        """Fill ``target`` with what is named; `Refusal` if it is no longer given."""
        name, size = ref
        if len(target) != size:
            raise Refusal(f"{size} bytes were announced, and there is room for {len(target)}")
        for _ in range(TRIES):
            progress = Progress(self._patience())
            progress.patience.keep_trying(lambda p=progress: self._fetch(name, target, p))  # type: ignore[misc]
            if digest(target) == name:
                return
        raise Refusal("what arrives is not what was announced")

    def _fetch(self, name: str, target: memoryview, progress: "Progress") -> None:
        connection = self._connected()
        try:
            answer = self._ask(connection, {"get": name, "from": progress.done})
            if answer.get("size") != len(target):
                raise Refusal(f"{answer.get('size')} bytes come instead of {len(target)}")
            while progress.done < len(target):
                progress.reach(progress.done + fill(connection, target[progress.done : progress.done + PIECE]))
        except Cut as cut:
            progress.reach(progress.done + cut.count)
            self.close()
            raise Broken(f"the transfer broke off ({cut})") from None
        except (OSError, ValueError) as error:
            self.close()
            raise Broken(f"the transfer broke off ({error})") from None

    def bring(self, view: memoryview, request: str, name: str | None = None) -> Ref:
        """Hand over an answer's part, from where an earlier attempt stopped; ``name``: its digest, where known."""
        name = name or digest(view)
        for _ in range(TRIES):
            progress = Progress(self._patience())
            if progress.patience.keep_trying(lambda p=progress: self._bring(name, view, request, p)):  # type: ignore[misc]
                return name, len(view)
        raise Refusal("what arrives there is not what was sent")

    def _bring(self, name: str, view: memoryview, request: str, progress: "Progress") -> bool:
        """Whether it arrived as it was sent."""
        connection = self._connected()
        try:
            answer = self._ask(connection, {"put": name, "size": len(view), "for": request})
            progress.reach(int(answer["from"]))
            for at in range(progress.done, len(view), PIECE):
                connection.sendall(view[at : at + PIECE])
            return "done" in self._heard(connection)
        except (OSError, ValueError, KeyError) as error:
            self.close()
            raise Broken(f"the transfer broke off ({error})") from None

    def _ask(self, connection: socket.socket, question: dict[str, Any]) -> dict[str, Any]:
        write_line(connection, question)
        return self._heard(connection)

    def _heard(self, connection: socket.socket) -> dict[str, Any]:
        answer = read_line(connection)
        if answer is None:
            raise ConnectionError("the other end has gone")
        if "wait" in answer:
            raise ConnectionError(str(answer["wait"])[:200])
        if "error" in answer:
            self.close()
            raise Refusal(str(answer["error"])[:200])
        return answer

    def _connected(self) -> socket.socket:
        if self._socket is not None:
            return self._socket
        try:
            connection = reach(self._address, self._proxy)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_hostname=self._address[0])
                connection.settimeout(STALL_SECONDS)
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            raise Broken(f"no connection to {self._address[0]}:{self._address[1]} ({error})") from None
        self._socket = connection
        return connection

    def close(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None
