"""X.509 certificates and Ed25519 keys of a federation: its authority's, its members', and its NATS server's."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

YEARS = 10  # for which the certificate of the authority itself is valid


def authority_certificate(key: Ed25519PrivateKey, federation: str) -> bytes:
    """The authority's own certificate, in PEM."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Hansa authority of {federation}"[:64])])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(hours=1))
    builder = builder.not_valid_after(now + timedelta(days=365 * YEARS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(ca=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, None).public_bytes(Encoding.PEM)


def issue(
    authority: Ed25519PrivateKey,
    issuer: x509.Certificate,
    key: Ed25519PublicKey,
    subject: str,
    identities: Sequence[str],
    hosts: Sequence[str],
    days: float,
) -> bytes:
    """A certificate for a public key, in PEM; ``hosts``: where its owner accepts connections."""
    now = datetime.now(UTC)
    names: list[x509.GeneralName] = [*map(x509.RFC822Name, identities), *map(_host, hosts)]
    common_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    builder = x509.CertificateBuilder().subject_name(common_name).issuer_name(issuer.subject)
    builder = builder.public_key(key).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=days))
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(ca=False), critical=True)
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    builder = builder.add_extension(identifier, critical=False)
    return builder.sign(authority, None).public_bytes(Encoding.PEM)


def generation_of(certificate: x509.Certificate) -> int:
    """The generation in the identity of a member's certificate."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    [own] = names.get_values_for_type(x509.RFC822Name)
    return int(own.partition("@")[0].rpartition(".")[2])


def public_hex(key: Ed25519PublicKey) -> str:
    """A public key in hexadecimal."""
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def write_key(file: Path, key: Ed25519PrivateKey) -> None:
    """Write a private key that only its owner can read."""
    write_file(file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)


def write_file(file: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file atomically: a running node may be reading it."""
    draft = file.with_name(f".{file.name}.draft")
    draft.unlink(missing_ok=True)  # its mode would be kept
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(file)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
