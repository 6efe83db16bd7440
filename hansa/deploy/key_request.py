"""Each organisation makes its own key: the request of a new member, and the authority's response to it.

A member creates its private key in its kit's folder, where it stays, and writes a request with the public key. The
request is signed with the private key, which proves that its sender has that key. The authority compares the key's
fingerprint with the member, by telephone for example, and answers with a response: certificate, kit.json, list of
members and a proposed policy, signed by the authority. Neither file is secret.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import ValidationError

from hansa.core.errors import UserError, parse_json, printable
from hansa.core.settings import Section
from hansa.deploy.certificates import public_hex, write_file, write_key
from hansa.deploy.kit import VERSION, Kit, KitInfo, identity
from hansa.deploy.membership import MEMBERS, NEWEST, MemberList, check_successor, fingerprint, parse_members
from hansa.privacy.policy import POLICY_FILE

REQUEST = "request.json"
KEY, NEXT_KEY = "key.pem", "key.next.pem"
MAX_AGE = timedelta(days=30)  # of a request, so that one that was never used does not stay valid
MAX_SKEW = timedelta(minutes=10)
REQUEST_PURPOSE, RESPONSE_PURPOSE = b"hansa key request 1\n", b"hansa key response 1\n"
MAX_BYTES = 8 << 20


class KeyRequest(Section):
    """A member's request for a certificate; ``date`` is in ISO format."""

    version: int
    federation: str
    node: str
    key: str  # Ed25519 public key, in hexadecimal
    date: str

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the key, which the member and the authority compare."""
        return fingerprint(self.key)


class KeyResponse(Section):
    """What the authority gives a member: everything in a kit but the private key."""

    version: int
    kit: KitInfo
    certificate: str  # in PEM, as the next
    ca: str
    members: str  # the text of members.json
    policy: str | None


@dataclass(frozen=True)
class Installed:
    """What `install` has put into a kit. ``authority``: the fingerprint of the authority's key."""

    node: str
    authority: str
    first: bool  # the kit knew no authority before
    serial: int
    until: datetime


def make_request(folder: Path, node: str | None, federation: str | None, new_key: bool = False) -> KeyRequest:
    """Write a request into a kit's folder; the private key is created there if there is none.

    A kit that is in use keeps its key, for a new certificate, unless ``new_key``: then the new key is used from the
    response on. Raises `UserError` if the name is missing or does not fit the kit.
    """
    info = Kit(folder).info if (folder / "kit.json").exists() else None
    node, federation = node or (info.node if info else None), federation or (info.federation if info else None)
    if node is None or federation is None:
        raise UserError("a new member needs --name and --federation, as in the federation file")
    if info is not None and (info.node, info.federation) != (node, federation):
        raise UserError(
            f"{folder} is the kit of '{info.node}' in '{info.federation}'; choose another --out for '{node}'"
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / (NEXT_KEY if new_key and (folder / KEY).exists() else KEY)
    if not file.exists():
        write_key(file, Ed25519PrivateKey.generate())
    key = read_private_key(file)
    request = signed_request(key, node, federation)
    write_file(folder / REQUEST, request.encode())
    return parse_request(request, REQUEST)


def signed_request(key: Ed25519PrivateKey, node: str, federation: str, date: datetime | None = None) -> str:
    """The text of a request, signed with the private key that belongs to it."""
    at = (date or datetime.now(UTC)).isoformat(timespec="seconds")
    request = KeyRequest(version=VERSION, federation=federation, node=node, key=public_hex(key.public_key()), date=at)
    return _signed(request.model_dump(mode="json"), REQUEST_PURPOSE, key)


def parse_request(text: str | bytes, name: object) -> KeyRequest:
    """The request in a file's text; raises `UserError` if it proves no key, is too old, or dated in the future."""
    body, signature = _parts(text, name, "a key request")
    try:
        request = KeyRequest.model_validate(body)
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(request.key))
        date = datetime.fromisoformat(request.date)
        age = datetime.now(UTC) - date
    except (ValidationError, ValueError, TypeError):
        raise UserError(f"{name} is not a key request of 'hansa kit request'; ask its sender for a new one") from None
    try:
        key.verify(signature, _canonical(body, REQUEST_PURPOSE))
    except InvalidSignature:
        raise UserError(
            f"{name}: the request for '{printable(request.node, 60)}' is not signed with the private key of its "
            "public key, so its sender may not have that key; ask for a new request"
        ) from None
    if request.version != VERSION:
        raise UserError(f"{name} is a request of version {request.version}; use the same version of Hansa everywhere")
    if not -MAX_SKEW <= age <= MAX_AGE:
        raise UserError(
            f"{name} is dated {request.date}: a request is valid for {MAX_AGE.days} days from its date; check the "
            "clocks, or ask for a new request"
        )
    return request


def signed_response(response: KeyResponse, authority: Ed25519PrivateKey) -> str:
    """The text of a response, signed by the authority."""
    return _signed(response.model_dump(mode="json"), RESPONSE_PURPOSE, authority)


def install(folder: Path, text: str | bytes, name: object, authority: str | None = None) -> Installed:
    """Put the authority's response into the kit that made the request.

    ``authority``: the fingerprint that the authority's key must have. A policy that the kit has is kept. Raises
    `UserError` if the response is for another key, node or federation, is not signed by the authority that the kit
    knows, has a certificate that is not valid now, or an older list of members than the kit has seen.
    """
    body, signature = _parts(text, name, "a response of the authority")
    try:
        response = KeyResponse.model_validate(body)
        ca = x509.load_pem_x509_certificate(response.ca.encode())
        certificate = x509.load_pem_x509_certificate(response.certificate.encode())
        signer = ca.public_key()
        assert isinstance(signer, Ed25519PublicKey)
        signer.verify(signature, _canonical(body, RESPONSE_PURPOSE))
        certificate.verify_directly_issued_by(ca)
        members = parse_members(response.members, response.ca.encode())
    except (ValidationError, ValueError, AssertionError, TypeError):
        raise UserError(f"{name} is not a response of 'hansa kit sign'; ask the authority for a new one") from None
    except InvalidSignature:
        raise UserError(
            f"{name} is not signed by the authority that it names; ask the authority for a new one"
        ) from None
    known = folder / "ca.pem"
    first = not known.exists()
    found = fingerprint(public_hex(signer))
    if not first and known.read_bytes() != response.ca.encode():
        raise UserError(f"{name} comes from another authority ({found}) than this kit's; use a new folder for it")
    if authority is not None and authority.replace(" ", "").lower() != found.replace(" ", ""):
        raise UserError(f"{name} comes from the authority {found}, and not from {authority}; do not use it")
    key_file = _matching_key(folder, response, certificate, name)
    _check_request(folder, response, name)
    _check_certificate(certificate, response, members, name)
    if not first:
        for file in (folder / MEMBERS, folder / NEWEST):
            if file.exists():
                _check_serial(members, file, response.ca.encode(), name)
    if key_file.name == NEXT_KEY:
        key_file.replace(folder / KEY)
    write_file(folder / "ca.pem", response.ca.encode())
    write_file(folder / "cert.pem", response.certificate.encode())
    write_file(folder / MEMBERS, response.members.encode())
    write_file(folder / "kit.json", response.kit.model_dump_json(indent=1).encode())
    if response.policy is not None and not (folder / POLICY_FILE).exists():
        write_file(folder / POLICY_FILE, response.policy.encode())
    (folder / REQUEST).unlink(missing_ok=True)
    return Installed(response.kit.node, found, first, members.serial, certificate.not_valid_after_utc)


def read_private_key(file: Path) -> Ed25519PrivateKey:
    """The Ed25519 key in a file; raises `UserError` if there is none."""
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{file} cannot be used ({printable(str(error))}); 'hansa kit request' creates a key") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError(f"{file} is not an Ed25519 key; 'hansa kit request' creates one")
    return key


def _matching_key(folder: Path, response: KeyResponse, certificate: x509.Certificate, name: object) -> Path:
    """The private key to which a certificate belongs."""
    for file in (folder / NEXT_KEY, folder / KEY):
        if file.exists() and read_private_key(file).public_key() == certificate.public_key():
            return file
    raise UserError(
        f"{name} certifies another key of '{response.kit.node}' than the one in {folder}: someone else may have "
        "requested it; compare the fingerprints with the authority"
    )


def _check_request(folder: Path, response: KeyResponse, name: object) -> None:
    """The response must be for the node and the federation of the request, or of the kit."""
    asked = [folder / REQUEST, folder / "kit.json"]
    for file in (file for file in asked if file.exists()):
        raw = parse_json(file.read_bytes())
        wanted = (raw.get("node"), raw.get("federation"))
        if wanted != (response.kit.node, response.kit.federation):
            raise UserError(
                f"{name} is for '{response.kit.node}' in '{response.kit.federation}', and {file} for '{wanted[0]}' in "
                f"'{wanted[1]}'"
            )


def _check_certificate(certificate: x509.Certificate, response: KeyResponse, members: MemberList, name: object) -> None:
    now = datetime.now(UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise UserError(
            f"{name}: the certificate is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} to "
            f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, and now it is {now:%Y-%m-%d %H:%M}; check the "
            "clock, or ask the authority for a new one"
        )
    public = certificate.public_key()
    assert isinstance(public, Ed25519PublicKey)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    shown = names.get_values_for_type(x509.RFC822Name)
    info = response.kit
    member = members.members.get(info.node)
    valid = [identity(info.node, generation, info.federation) for generation in member.generations] if member else []
    if member is None or member.key != public_hex(public) or not set(shown) & set(valid):
        raise UserError(f"{name}: its list of members does not list its certificate; ask the authority for a new one")


def _check_serial(members: MemberList, file: Path, ca: bytes, name: object) -> None:
    try:
        known = parse_members(file.read_bytes(), ca)
    except (OSError, ValueError):
        return  # a damaged file is replaced
    try:
        check_successor(members, known)
    except ValueError as error:
        raise UserError(f"{name}: its list of members is refused: {error}") from None


def _signed(body: dict[str, Any], purpose: bytes, key: Ed25519PrivateKey) -> str:
    return json.dumps({**body, "signature": key.sign(_canonical(body, purpose)).hex()}, ensure_ascii=False, indent=1)


def _parts(text: str | bytes, name: object, what: str) -> tuple[dict[str, Any], bytes]:
    """The signed content of a file, and its signature."""
    try:
        if len(text) > MAX_BYTES:
            raise ValueError
        raw = parse_json(text)
        signature = bytes.fromhex(raw.pop("signature"))
    except (ValueError, AttributeError, KeyError, TypeError):
        raise UserError(f"{name} is not {what}; ask its sender for a new one") from None
    return raw, signature


def _canonical(body: dict[str, Any], purpose: bytes) -> bytes:
    return purpose + json.dumps(body, sort_keys=True).encode()
