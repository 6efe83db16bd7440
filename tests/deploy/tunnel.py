"""An HTTP proxy for tests."""

import socket
import threading
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress

JOIN_SECONDS = 300.0


class Tunnel:
    """An HTTP proxy with CONNECT only; it may require credentials, and stops forwarding while ``free`` is not set.

    ``host``: where it listens; ``allowed``: the only port to which it connects.
    """

    def __init__(self, credentials: str = "", host: str = "127.0.0.1", allowed: int | None = None) -> None:
        self._allowed = allowed
        self._required = f"Proxy-Authorization: Basic {b64encode(credentials.encode()).decode()}" if credentials else ""
        self.passed: list[str] = []  # the targets of connections
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.free = threading.Event()
        self.free.set()
        self._server = socket.create_server((host, 0))
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    def __enter__(self) -> "Tunnel":
        return self

    def __exit__(self, *_: object) -> None:
        self.free.set()
        for one in [self._server, *self._open]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(JOIN_SECONDS)
        for one in [self._server, *self._open]:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            self._open.append(near)
            self._start(self._answer, near)

    def _answer(self, near: socket.socket) -> None:
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            if not (byte := near.recv(1)):
                return
            request += byte
        lines = request.decode().split("\r\n")
        verb, target, _ = lines[0].split()
        if self._required and self._required not in lines:
            near.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        host, _, port = target.rpartition(":")
        if verb != "CONNECT" or (self._allowed is not None and int(port) != self._allowed):
            near.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            return
        try:
            far = socket.create_connection((host, int(port)))
        except OSError:
            near.sendall(b"HTTP/1.1 502 Bad Gateway\r\nVia: 1.1 tunnel\r\n\r\n")
            return
        self.passed.append(target)
        self._open.append(far)
        near.sendall(b"HTTP/1.1 200 Connection established\r\nVia: 1.1 tunnel\r\n\r\n")
        for pair in ((near, far), (far, near)):
            self._start(self._forward, *pair)

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.free.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
