"""Health probes over HTTP, for a supervisor that restarts processes.

    /healthz    200 while the process answers
    /readyz     200 when the node can do its work, 503 with the reason when it cannot
    /metrics    figures for Prometheus (metrics.py)

The server listens on the loopback interface unless another host is given, has no other paths, and reads no body.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hansa.core.errors import UserError

NotReady = Callable[[], str]  # why the node is not ready; empty when it is
Exposition = Callable[[], tuple[str, bytes]]  # the content type and the text of /metrics
REQUEST_SECONDS = 5.0  # for a client to send its request


class HealthServer:
    """Answers probes at ``address``, PORT or HOST:PORT; port 0 takes a free one."""

    def __init__(self, address: str, not_ready: NotReady, metrics: Exposition | None = None) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdigit():
            raise UserError(f"--health {address!r}: write it as PORT or HOST:PORT")
        try:
            self._server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), _handler(not_ready, metrics))
        except (OSError, OverflowError) as error:
            raise UserError(f"--health {address}: the port cannot be opened ({error}); choose another port") from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="hansa-health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(not_ready: NotReady, metrics: Exposition | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET requests for the probes and the metrics."""

        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:
            """Answer `/healthz`, `/readyz` or `/metrics`; 404 with the list of paths for any other path."""
            if self.path == "/healthz":
                self._reply(200, {"alive": True})
            elif self.path == "/readyz":
                reason = not_ready()
                self._reply(503 if reason else 200, {"ready": not reason} | ({"reason": reason} if reason else {}))
            elif self.path == "/metrics" and metrics is not None:
                self._send(200, *metrics())
            else:
                self._reply(404, {"paths": ["/healthz", "/readyz", *["/metrics"] * (metrics is not None)]})

        def _reply(self, status: int, content: dict[str, object]) -> None:
            self._send(status, "application/json", json.dumps(content).encode())

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: probes come every few seconds."""

    return Handler


@contextmanager
def serve_probes(address: str | None, not_ready: NotReady, metrics: Exposition | None = None) -> Iterator[None]:
    """Answer probes at ``address`` while the body runs; do nothing without an address."""
    if address is None:
        yield
        return
    server = HealthServer(address, not_ready, metrics)
    try:
        yield
    finally:
        server.close()


def unreachable_reason(address: tuple[str, int]) -> str:
    """Why the server at ``address`` cannot be reached; empty if it can."""
    try:
        socket.create_connection(address, timeout=1.0).close()
    except OSError as error:
        return f"no connection to {address[0]}:{address[1]} ({error})"
    return ""
