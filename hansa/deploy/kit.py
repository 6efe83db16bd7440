"""A startup kit: the files, in one folder, that a node needs to take part in a federation.

kit.json       the node, its parent, and the address where it serves      members.json   the members' public keys
cert.pem       the node's certificate           key.pem    its private key, readable by its owner only
ca.pem         the federation's authority       policy.yaml   of a silo: what it may release

The identity in a certificate is ``NAME.GENERATION@FEDERATION.hansa``. A renewed certificate is the next generation; a
generation that members.json does not list is revoked. The authority signs members.json (membership.py), so the
coordinator can distribute it but not change it. The private key is made by its owner (key_request.py).
"""

import ssl
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate
from pydantic import ValidationError, ValidationInfo, field_validator

from hansa.core.errors import UserError
from hansa.core.settings import Section
from hansa.data.source import Source
from hansa.deploy.certificates import public_hex
from hansa.deploy.membership import Member, MemberStore, fingerprint
from hansa.deploy.network.address import Address, Proxy, parse_address
from hansa.deploy.network.route import Route
from hansa.deploy.network.sealed import MemberSession, answer_challenge
from hansa.deploy.network.subjects import Subjects, token
from hansa.deploy.network.tls import Tls, inspected_tls, member_tls

VERSION = 5
COORDINATOR = "coordinator"


class Endpoint(Section):
    """Where the children of a coordinator or a region reach it: one HTTPS port, at one or several addresses.

    ``addresses``: HOST:PORT, which children try in turn. ``nats``: HOST:PORT of existing NATS servers, which the node
    itself uses; its children do not need them.
    """

    node: str
    addresses: tuple[str, ...]
    nats: tuple[str, ...] = ()

    @field_validator("addresses", "nats")
    @classmethod
    def _parsed(cls, found: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not found and info.field_name == "addresses":
            raise ValueError("there is no address")
        for one in found:
            parse_address(one)
        return found

    def all(self) -> list[Address]:
        """The addresses, in the order in which they are tried first."""
        return [parse_address(one) for one in self.addresses]

    @property
    def host(self) -> str:
        """The host of the first address."""
        return self.all()[0][0]

    @property
    def port(self) -> int:
        """The port of the first address."""
        return self.all()[0][1]


class KitInfo(Section):
    """The content of kit.json."""

    version: int
    federation: str
    node: str
    kind: str
    parent: Endpoint | None = None
    serves: Endpoint | None = None
    rounds: int = 1  # of a region, for each round of its parent
    sources: tuple[Source, ...] = ()  # of a silo: the format of its data


class Kit:
    """A node's startup kit in ``folder``. Renewed files are used without a restart.

    ``memory``: a folder of the node, beside the kit, in which the newest list of members is remembered.
    """

    def __init__(self, folder: Path, memory: Path | None = None) -> None:
        self.folder = folder
        self.list = MemberStore(folder)
        self._key: tuple[int, Ed25519PrivateKey] | None = None
        try:
            self.info = KitInfo.model_validate_json((folder / "kit.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(
                f"{folder} is not a startup kit: it has no kit.json; 'hansa kit install' completes a kit with the "
                "authority's response"
            ) from None
        except (OSError, ValidationError, ValueError) as error:
            raise UserError(f"{folder / 'kit.json'} cannot be used ({_summary(error)}); ask for a new kit") from None
        if self.info.version != VERSION:
            raise UserError(
                f"{folder} is a kit of version {self.info.version}, and this Hansa reads version {VERSION}; "
                "use the Hansa that made it, or ask for a new kit"
            )
        if memory is not None:
            self.list.remember_in(memory)
        if self.list.current().federation != self.info.federation:
            raise UserError(f"{folder}: members.json is the list of another federation; ask for a new kit")
        if self.info.node not in self.members():
            raise UserError(f"{folder}: members.json does not list '{self.info.node}'; ask for a new kit")

    @property
    def name(self) -> str:
        """The node's name."""
        return self.info.node

    def members(self) -> Mapping[str, Member]:
        """The members by name, as the newest list has them; it changes when a member is added, revoked or renewed."""
        return self.list.current().members

    @property
    def serial(self) -> int:
        """The serial number of the newest list of members."""
        return self.list.current().serial

    @property
    def children(self) -> tuple[str, ...]:
        """The members directly below this node, in the order of the list."""
        return tuple(name for name, member in self.members().items() if member.parent == self.name)

    @property
    def key(self) -> Ed25519PrivateKey:
        """The private key in key.pem now; while the file is being replaced, the previous one."""
        file = self.folder / "key.pem"
        try:
            if self._key is None or self._key[0] != file.stat().st_mtime_ns:
                self._key = file.stat().st_mtime_ns, _read_key(file)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            if self._key is None:
                raise UserError(f"{file} cannot be used ({_summary(error)}); ask for a new kit") from None
        return self._key[1]

    def public_key(self, node: str) -> Ed25519PublicKey:
        """The public key of a member; raises `KeyError` if the node is none."""
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.members()[node].key))

    def trusts(self, node: str) -> bool:
        """Whether a node is a member that was not revoked."""
        member = self.members().get(node)
        return member is not None and bool(member.generations)

    @property
    def authority(self) -> str:
        """The fingerprint of the authority's key."""
        key = load_pem_x509_certificate((self.folder / "ca.pem").read_bytes()).public_key()
        assert isinstance(key, Ed25519PublicKey)
        return fingerprint(public_hex(key))

    @property
    def valid_until(self) -> datetime:
        """When the node's certificate expires."""
        return load_pem_x509_certificate((self.folder / "cert.pem").read_bytes()).not_valid_after_utc

    @property
    def parent(self) -> Endpoint:
        """Where the node reaches its parent."""
        if self.info.parent is None:
            raise UserError(f"{self.folder} is the coordinator's kit, which has no parent; use 'hansa serve'")
        return self.info.parent

    @property
    def endpoint(self) -> Endpoint:
        """Where the node's children reach it."""
        if self.info.serves is None:
            raise UserError(f"{self.folder} is a silo's kit, which has no children; use 'hansa join'")
        return self.info.serves

    @property
    def parent_subjects(self) -> Subjects:
        """The subjects between this node and its parent."""
        return Subjects(self.info.federation, self.parent.node)

    @property
    def child_subjects(self) -> Subjects:
        """The subjects between this node and its children."""
        return Subjects(self.info.federation, self.endpoint.node)

    # ── TLS ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def client_tls(self, trust: Path | None = None) -> Tls:
        """TLS for connections that the node opens; ``trust``: the authorities of a proxy that inspects TLS."""
        return member_tls(self.folder, ssl.PROTOCOL_TLS_CLIENT) if trust is None else inspected_tls(trust)

    def route(self, proxy: Proxy | None = None, trust: Path | None = None, address: Address | None = None) -> Route:
        """The way to the parent, through a proxy if there is one.

        ``trust``: the authorities of a proxy that inspects TLS; requests are then signed and encrypted end to end.
        ``address``: the only one of the parent's addresses that is tried; by default all are.
        """
        seal = self._answer_challenge if trust is not None else None
        addresses = self.parent.all if address is None else lambda: [address]
        return Route(addresses, self.client_tls(trust), proxy, seal)

    def _answer_challenge(self, found: Mapping[str, object]) -> tuple[dict[str, str], MemberSession]:
        parent = self.parent.node
        if not self.trusts(parent):
            raise ValueError(f"'{parent}' is not a member, or was revoked")
        return answer_challenge(self.key, self.info.federation, self.name, parent, self.public_key(parent), found)

    def server_tls(self) -> Tls:
        """TLS for connections that the node accepts."""
        return member_tls(self.folder, ssl.PROTOCOL_TLS_SERVER)

    def identify(self, names: list[str]) -> str:
        """Return the member that a certificate's names belong to; empty if there is none, or it was revoked."""
        for shown in names:
            for name, member in self.members().items():
                if shown.startswith(token(name)) and shown in _identities(name, member, self.info.federation):
                    return name
        return ""


def _read_key(file: Path) -> Ed25519PrivateKey:
    key = load_pem_private_key(file.read_bytes(), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("it is not an Ed25519 key")
    return key


def _identities(name: str, member: Member, federation: str) -> set[str]:
    return {identity(name, generation, federation) for generation in member.generations}


def identity(name: str, generation: int, federation: str) -> str:
    """The identity in a member's certificate."""
    return f"{token(name)}.{generation}@{token(federation)}.hansa"


def _summary(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
