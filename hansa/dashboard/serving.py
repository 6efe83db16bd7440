"""Serving a page with uvicorn: on the loopback interface, or anywhere with TLS."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from hansa.core.errors import UserError
from hansa.deploy.public_certificate import PublicCertificate

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
MAX_CONNECTIONS = 500  # at once
STOP_SECONDS = 3  # for open streams when the process is stopped


@dataclass(frozen=True)
class Address:
    """Where a page listens, and its TLS certificate and key if it has any."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None

    @staticmethod
    def parse(text: str, certificate: Path | None, key: Path | None) -> "Address":
        """An address written as PORT or HOST:PORT; raises `UserError` if it would be open to others without TLS."""
        host, _, port = text.rpartition(":")
        host = host.strip("[]") or "127.0.0.1"
        if not port.isdigit() or int(port) > 65535:
            raise UserError(f"--listen {text!r}: write it as PORT or HOST:PORT")
        PublicCertificate.parse(certificate, key)
        if certificate is None and not is_loopback(host):
            raise UserError(
                f"--listen {text} would show this page to other machines without encryption; give --certificate and "
                "--key, or listen on 127.0.0.1"
            )
        return Address(host, int(port), certificate, key)

    @property
    def secure(self) -> bool:
        """Whether it is reached by HTTPS."""
        return self.certificate is not None

    def url(self, port: int) -> str:
        """The address for a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{port}/"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone. A name other than localhost is not: it may be resolved to anything."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def serve(app: FastAPI, address: Address, ready: Callable[[str], None]) -> None:
    """Serve a page until SIGTERM or Ctrl-C; ``ready`` gets its URL once the port is open.

    Raises `UserError` if the port cannot be opened.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UserError(
            f"--listen {address.host}:{address.port}: the port cannot be opened ({error.strerror}); choose another one"
        ) from None
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=STOP_SECONDS,
        ssl_certfile=address.certificate,
        ssl_keyfile=str(address.key) if address.key is not None else None,
        h11_max_incomplete_event_size=64 << 10,
        http="h11",
        ws="none",
        lifespan="off",
    )
    ready(address.url(listener.getsockname()[1]))
    uvicorn.Server(config).run(sockets=[listener])
