"""Mutual TLS with the certificate that lies in the kit: a renewed one is used from the next connection on."""

import socket
import ssl
from pathlib import Path

from hansa.core.errors import UserError

FILES = ("cert.pem", "key.pem", "ca.pem")


class Tls:
    """What both ends of every connection between nodes are wrapped in."""

    def __init__(self, folder: Path, protocol: "ssl._SSLMethod") -> None:
        self._folder, self._protocol = folder, protocol
        self._seen = self._stamp()
        self._context = self._read()

    def wrap_socket(
        self, plain: socket.socket, server_side: bool = False, server_hostname: str | None = None
    ) -> ssl.SSLSocket:
        return self._newest().wrap_socket(plain, server_side=server_side, server_hostname=server_hostname)

    def _newest(self) -> ssl.SSLContext:
        """Read again when the files have changed; while somebody is still copying them, the one before serves."""
        try:
            stamp = self._stamp()
            if stamp != self._seen:
                self._context = self._read()
                self._seen = stamp
        except (UserError, OSError):
            pass
        return self._context

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        try:
            found = [(self._folder / name).stat() for name in FILES]
        except OSError as error:
            raise UserError(f"{self._folder}: its certificate cannot be used ({error})") from None
        return tuple((one.st_mtime_ns, one.st_ino) for one in found)

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(self._protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        cert, key, ca = (self._folder / name for name in FILES)
        try:
            context.load_cert_chain(cert, key)
            context.load_verify_locations(ca)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"{self._folder}: its certificate cannot be used ({str(error)[:200]})") from None
        return context
