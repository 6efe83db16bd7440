"""Mutual TLS with the certificate in the startup kit; a renewed certificate is used from the next connection on."""

import socket
import ssl
from pathlib import Path

from hansa.core.errors import UserError

FILES = ("cert.pem", "key.pem", "ca.pem")


class Tls:
    """One end of a mutual TLS connection, client or server by ``protocol``, with the certificate in ``folder``."""

    def __init__(self, folder: Path, protocol: "ssl._SSLMethod") -> None:
        self._folder, self._protocol = folder, protocol
        self._loaded = self._stamp()
        self._context = self._load()

    def wrap_socket(
        self,
        plain: socket.socket,
        server_side: bool = False,
        server_hostname: str | None = None,
        handshake: bool = True,
    ) -> ssl.SSLSocket:
        """A TLS socket with the newest certificate; without ``handshake`` the caller does the handshake later."""
        return self._newest().wrap_socket(
            plain, server_side=server_side, do_handshake_on_connect=handshake, server_hostname=server_hostname
        )

    def _newest(self) -> ssl.SSLContext:
        """Load the files again if they have changed; while they are being copied, the previous ones stay in use."""
        try:
            stamp = self._stamp()
            if stamp != self._loaded:
                self._context = self._load()
                self._loaded = stamp
        except (UserError, OSError):
            pass
        return self._context

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        try:
            found = [(self._folder / name).stat() for name in FILES]
        except OSError as error:
            raise UserError(f"{self._folder}: the certificate cannot be used ({error}); ask for a new kit") from None
        return tuple((one.st_mtime_ns, one.st_ino) for one in found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(self._protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        cert, key, ca = (self._folder / name for name in FILES)
        try:
            context.load_cert_chain(cert, key)
            context.load_verify_locations(ca)
        except (OSError, ssl.SSLError) as error:
            reason = str(error)[:200]
            raise UserError(f"{self._folder}: the certificate cannot be used ({reason}); ask for a new kit") from None
        return context
