"""A hospital's proxy: everything of it that a test needs to stand behind one."""

import socket
import threading
from base64 import b64encode
from contextlib import suppress

PATIENCE = 300.0


class Tunnel:
    """An HTTP proxy that knows CONNECT alone, asks for a name and a password where it has any, and can stand still."""

    def __init__(self, credentials: str = "") -> None:
        self._wanted = f"Proxy-Authorization: Basic {b64encode(credentials.encode()).decode()}" if credentials else ""
        self.passed: list[str] = []  # where connections went
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.free = threading.Event()
        self.free.set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self._do(self._accept)

    def _do(self, work, *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    @property
    def port(self) -> int:
        return self._server.getsockname()[1]

    def __enter__(self) -> "Tunnel":
        return self

    def __exit__(self, *_: object) -> None:
        self.free.set()
        for one in [self._server, *self._open]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(PATIENCE)
        for one in [self._server, *self._open]:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            self._open.append(near)
            self._do(self._answer, near)

    def _answer(self, near: socket.socket) -> None:
        asked = b""
        while not asked.endswith(b"\r\n\r\n"):
            if not (byte := near.recv(1)):
                return
            asked += byte
        lines = asked.decode().split("\r\n")
        verb, target, _ = lines[0].split()
        if self._wanted and self._wanted not in lines:
            near.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        host, _, port = target.rpartition(":")
        assert verb == "CONNECT"
        try:
            far = socket.create_connection((host, int(port)))
        except OSError:
            near.sendall(b"HTTP/1.1 502 Bad Gateway\r\nVia: 1.1 tunnel\r\n\r\n")
            return
        self.passed.append(target)
        self._open.append(far)
        near.sendall(b"HTTP/1.1 200 Connection established\r\nVia: 1.1 tunnel\r\n\r\n")
        for pair in ((near, far), (far, near)):
            self._do(self._pass_on, *pair)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.free.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
