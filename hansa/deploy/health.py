"""Is it alive, is it ready? Two small answers over HTTP, for whatever restarts processes.

    /healthz    200 while the process answers at all
    /readyz     200 when it can do its work, 503 with the reason when it cannot

It listens on this machine alone unless told otherwise, answers nothing else, and takes no input.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hansa.core.errors import UserError

Ready = Callable[[], str]  # what it still waits for; empty when it is ready
PATIENCE = 5.0  # seconds that a visitor may take to say what it wants


class Health:
    def __init__(self, address: str, ready: Ready) -> None:
        """``address``: PORT or HOST:PORT; port 0 takes a free one."""
        host, _, port = address.rpartition(":")
        if not port.isdigit():
            raise UserError(f"--health {address!r}: write it as PORT or HOST:PORT")
        try:
            self._server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), _handler(ready))
        except (OSError, OverflowError) as error:
            raise UserError(f"--health {address}: nothing can listen there ({error}); choose another port") from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="hansa-health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(ready: Ready) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def do_GET(self) -> None:
            if self.path == "/healthz":
                self._say(200, {"alive": True})
            elif self.path == "/readyz":
                waits = ready()
                self._say(503 if waits else 200, {"ready": not waits} | ({"waits": waits} if waits else {}))
            else:
                self._say(404, {"known": ["/healthz", "/readyz"]})

        def _say(self, status: int, told: dict[str, object]) -> None:
            body = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes come every few seconds: nobody wants to read of them."""

    return Handler


@contextmanager
def probes(address: str | None, ready: Ready) -> Iterator[None]:
    """Answer probes there while the body runs; without an address, answer none."""
    if address is None:
        yield
        return
    health = Health(address, ready)
    try:
        yield
    finally:
        health.close()


def unreachable(address: tuple[str, int]) -> str:
    """Why nobody can reach a broker there, if so."""
    try:
        socket.create_connection(address, timeout=1.0).close()
    except OSError as error:
        return f"for the broker at {address[0]}:{address[1]} ({error})"
    return ""
