"""A proxy of a hospital that inspects TLS: it ends TLS, reads everything, and opens TLS to the destination."""

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class Inspector:
    """The proxy; ``trust`` is the certificate of its authority, which the hospital's machines accept.

    ``upstream``: the certificate of the authority that it accepts at destinations. It records what clients send
    (``seen``) and what servers answer (``answered``); ``change`` may change what clients send.
    """

    def __init__(self, folder: Path, upstream: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.trust, chain = folder / "proxy-ca.pem", folder / "proxy.pem"
        _write_certificates(self.trust, chain)
        self._server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server_side.load_cert_chain(chain)
        self._client_side = ssl.create_default_context(cafile=upstream)
        self.seen, self.answered, self.connections = bytearray(), bytearray(), 0
        self.change: Callable[[bytes], bytes] = lambda data: data
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Inspector":
        return self

    def __exit__(self, *_: object) -> None:
        for one in [self._listener, *self._open]:
            with suppress(OSError):
                socket.socket.shutdown(one, socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._inspect, args=(near,), daemon=True).start()

    def _inspect(self, near: socket.socket) -> None:
        request = b""
        opened: list[socket.socket] = [near]
        try:
            while not request.endswith(b"\r\n\r\n"):
                request += near.recv(1)
            host, _, port = request.split()[1].decode().rpartition(":")
            far = socket.create_connection((host, int(port)))
            opened.append(far)
            near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            outer = self._server_side.wrap_socket(near, server_side=True)
            opened.append(outer)
            inner = self._client_side.wrap_socket(far, server_hostname=host)
        except OSError:
            for one in opened:
                one.close()
            return
        self._open += [outer, inner]
        self.connections += 1
        for source, sink, record, change in ((outer, inner, self.seen, True), (inner, outer, self.answered, False)):
            threading.Thread(target=self._forward, args=(source, sink, record, change), daemon=True).start()

    def _forward(self, source: ssl.SSLSocket, sink: ssl.SSLSocket, record: bytearray, change: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                record += data
                sink.sendall(self.change(data) if change else data)
        for end in (source, sink):
            with suppress(OSError):
                socket.socket.shutdown(end, socket.SHUT_RDWR)


def _write_certificates(trust: Path, chain: Path) -> None:
    authority, key = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the hospital's proxy")])
    root = _certificate(authority, issuer, authority, issuer, [])
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    leaf = _certificate(key, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "any")]), authority, issuer, names)
    trust.write_bytes(root.public_bytes(Encoding.PEM))
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain.write_bytes(leaf.public_bytes(Encoding.PEM) + secret)


def _certificate(
    key: EllipticCurvePrivateKey,
    name: x509.Name,
    signer: EllipticCurvePrivateKey,
    issuer: x509.Name,
    names: list[x509.GeneralName],
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=not names, path_length=None), critical=True)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, SHA256())
