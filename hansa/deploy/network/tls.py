"""TLS with the certificate in the startup kit, mutual where nothing between the nodes ends TLS.

A renewed certificate is used from the next connection on.
"""

import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from hansa.core.errors import UserError

FILES = ("cert.pem", "key.pem", "ca.pem")

Load = Callable[[ssl.SSLContext], None]


class Tls:
    """One end of TLS connections, client or server by ``protocol``; made by one of the functions below.

    ``load`` takes the ``files`` into a context; ``unusable`` says what to do if it cannot.
    """

    def __init__(self, protocol: "ssl._SSLMethod", files: Sequence[Path], load: Load, unusable: str) -> None:
        self._protocol, self._files, self._load_files, self._unusable = protocol, files, load, unusable
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
            found = [file.stat() for file in self._files]
        except OSError as error:
            raise UserError(self._unusable.format(str(error)[:200])) from None
        return tuple((one.st_mtime_ns, one.st_ino) for one in found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(self._protocol)
        context.options |= ssl.OP_NO_RENEGOTIATION
        # Proxies that inspect TLS may speak 1.2 only, to either side; members among themselves speak 1.3.
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._protocol == ssl.PROTOCOL_TLS_SERVER:
            context.set_alpn_protocols(["http/1.1"])
        try:
            self._load_files(context)
        except (OSError, ssl.SSLError) as error:
            raise UserError(self._unusable.format(str(error)[:200])) from None
        return context


def member_tls(folder: Path, protocol: "ssl._SSLMethod") -> Tls:
    """TLS of a member whose kit is in ``folder``.

    A client shows its certificate and accepts the federation's only. A server asks for a certificate of the federation,
    and accepts clients without one: they may sign their requests instead (sealed.py).
    """
    cert, key, ca = files = [folder / name for name in FILES]

    def load(context: ssl.SSLContext) -> None:
        """Load the member's certificate and the federation's authority into a new context."""
        server = protocol == ssl.PROTOCOL_TLS_SERVER
        context.verify_mode = ssl.CERT_OPTIONAL if server else ssl.CERT_REQUIRED
        if not server:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(cert, key)
        context.load_verify_locations(ca)

    return Tls(protocol, files, load, f"{_plain(folder)}: the certificate cannot be used ({{}}); ask for a new kit")


def inspected_tls(trust: Path) -> Tls:
    """TLS of a client that shows no certificate, and accepts servers that a file of authorities vouches for.

    It is for members behind a proxy that inspects TLS.
    """
    unusable = f"--trust {_plain(trust)}: the certificates cannot be used ({{}})"
    return Tls(ssl.PROTOCOL_TLS_CLIENT, [trust], lambda context: context.load_verify_locations(trust), unusable)


def public_tls(certificate: Path, key: Path) -> Tls:
    """TLS of a server for clients that do not know the certificates of members, such as browsers."""
    unusable = f"{_plain(certificate)} and {_plain(key)} cannot be used ({{}}); give PEM files"
    load: Load = lambda context: context.load_cert_chain(certificate, key)  # noqa: E731
    return Tls(ssl.PROTOCOL_TLS_SERVER, [certificate, key], load, unusable)


def _plain(path: Path) -> str:
    """A path in a text that is formatted."""
    return str(path).replace("{", "{{").replace("}", "}}")
