"""The certificate that a coordinator shows to browsers and to proxies that inspect TLS (network/client_hello.py).

An operator names one that browsers trust (`hansa serve --certificate FILE --key FILE`). Otherwise the coordinator signs
one itself, with an ECDSA key: browsers then warn, and people compare its fingerprint with the one in the log.
"""

import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from hansa.core.errors import UserError
from hansa.files import write_file

DAYS, RENEWED_BEFORE = 365, 30  # browsers refuse certificates that are valid for more than about a year


class PublicCertificate(NamedTuple):
    """Two PEM files: a certificate, with those above it, and its private key."""

    certificate: Path
    key: Path

    @staticmethod
    def parse(certificate: Path | None, key: Path | None) -> "PublicCertificate | None":
        """The files of --certificate and --key; raises `UserError` if one is missing or they cannot be used."""
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            raise UserError("--certificate and --key belong together: give both, or none")
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"{certificate} and {key} cannot be used ({error}); give PEM files") from None
        return PublicCertificate(certificate, key)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 digest of the certificate, as browsers show it."""
        found = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        return found.fingerprint(SHA256()).hex(":").upper()


def self_signed(folder: Path, hosts: list[str]) -> PublicCertificate:
    """A certificate for these names and addresses, signed by itself; made anew a month before it ends."""
    files = PublicCertificate(folder / "pages-cert.pem", folder / "pages-key.pem")
    now = datetime.now(UTC)
    with suppress(OSError, ValueError):
        made = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        if made.not_valid_after_utc > now + timedelta(days=RENEWED_BEFORE) and files.key.is_file():
            return files
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_file(files.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    files.key.chmod(0o600)
    write_file(files.certificate, certificate.public_bytes(Encoding.PEM))
    return files


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
