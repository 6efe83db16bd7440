"""TLS with the certificate in the startup kit, mutual where nothing between the nodes ends TLS.

A renewed certificate is used from the next connection on.
"""

import socket
import ssl
from pathlib import Path

from hansa.core.errors import UserError

FILES = ("cert.pem", "key.pem", "ca.pem")


class Tls:
    """One end of TLS connections, client or server by ``protocol``, with the certificate in ``folder``.

    A client shows its certificate and accepts the federation's only. A server asks for a certificate of the federation,
    and accepts clients without one: they may sign their requests instead (sealed.py). ``trust``: a client that shows no
    certificate, and accepts servers that this file of authorities vouches for: a proxy that inspects TLS.
    """

    def __init__(self, folder: Path, protocol: "ssl._SSLMethod", trust: Path | None = None) -> None:
        self._folder, self._protocol, self._trust = folder, protocol, trust
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

    def _files(self) -> list[Path]:
        return [self._trust] if self._trust is not None else [self._folder / name for name in FILES]

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        try:
            found = [file.stat() for file in self._files()]
        except OSError as error:
            raise self._unusable(error) from None
        return tuple((one.st_mtime_ns, one.st_ino) for one in found)

    def _unusable(self, error: Exception) -> UserError:
        if self._trust is not None:
            return UserError(f"--trust {self._trust}: the certificates cannot be used ({str(error)[:200]})")
        return UserError(f"{self._folder}: the certificate cannot be used ({str(error)[:200]}); ask for a new kit")

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(self._protocol)
        server = self._protocol == ssl.PROTOCOL_TLS_SERVER
        # Proxies that inspect TLS may speak 1.2 only, to either side; members among themselves speak 1.3.
        inspected = server or self._trust is not None
        context.minimum_version = ssl.TLSVersion.TLSv1_2 if inspected else ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_OPTIONAL if server else ssl.CERT_REQUIRED
        context.options |= ssl.OP_NO_RENEGOTIATION
        if server:
            context.set_alpn_protocols(["http/1.1"])
        try:
            if self._trust is not None:
                context.load_verify_locations(self._trust)
                return context
            cert, key, ca = self._files()
            context.load_cert_chain(cert, key)
            context.load_verify_locations(ca)
        except (OSError, ssl.SSLError) as error:
            raise self._unusable(error) from None
        return context
