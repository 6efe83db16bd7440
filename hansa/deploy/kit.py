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
from pydantic import ValidationError

from hansa.core.errors import UserError
from hansa.core.settings import Section
from hansa.data.source import Source
from hansa.deploy.certificates import public_hex
from hansa.deploy.membership import Member, MemberStore, fingerprint
from hansa.deploy.network.address import Address
from hansa.deploy.network.subjects import Subjects, token
from hansa.deploy.network.tls import Tls

VERSION = 4
COORDINATOR = "coordinator"


class Endpoint(Section):
    """Where the children of a coordinator or a region reach it.

    ``port`` is the port of the NATS broker; ``broker_host`` its host, if it is not the node's own. ``blob_port`` is the
    port of the blob server.
    """

    node: str
    host: str
    port: int
    blob_port: int
    broker_host: str = ""

    @property
    def broker_address(self) -> Address:
        """The address of the NATS broker."""
        return self.broker_host or self.host, self.port

    @property
    def blob_address(self) -> Address:
        """The address of the blob server."""
        return self.host, self.blob_port


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

    def client_tls(self) -> Tls:
        """TLS for connections that the node opens."""
        return Tls(self.folder, ssl.PROTOCOL_TLS_CLIENT)

    def server_tls(self) -> Tls:
        """TLS for connections that the node accepts."""
        return Tls(self.folder, ssl.PROTOCOL_TLS_SERVER)

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
