"""A startup kit: the files, in one folder, that a node needs to take part in a federation.

kit.json       the node, its parent, and the address where it serves      members.json   the members' public keys
cert.pem       the node's certificate           key.pem    its private key, readable by its owner only
ca.pem         the federation's authority       policy.yaml   of a silo: what it may release

The identity in a certificate is ``NAME.GENERATION@FEDERATION.hansa``. A renewed certificate is the next generation of
the same key; a generation that members.json does not list is revoked. The authority signs members.json, so the
coordinator can distribute it but not change it.
"""

import json
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import ValidationError

from hansa.core.errors import UserError
from hansa.core.settings import Section
from hansa.data.source import Source
from hansa.deploy.network.address import Address
from hansa.deploy.network.subjects import Subjects, token
from hansa.deploy.network.tls import Tls

log = logging.getLogger("hansa.kit")

VERSION = 3
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


class Member(Section):
    """A member of the federation, as members.json lists it."""

    key: str  # Ed25519 public key, in hexadecimal
    kind: str  # coordinator, region, silo
    parent: str | None
    generations: tuple[int, ...]  # of certificates that are valid; none: the member is revoked


class KitInfo(Section):
    """The content of kit.json."""

    version: int
    federation: str
    node: str
    kind: str
    parent: Endpoint | None = None
    serves: Endpoint | None = None
    children: tuple[str, ...] = ()
    rounds: int = 1  # of a region, for each round of its parent
    sources: tuple[Source, ...] = ()  # of a silo: the format of its data


class Kit:
    """A node's startup kit in ``folder``. Renewed files are used without a restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._members: tuple[int, dict[str, Member]] | None = None
        self._key: tuple[int, Ed25519PrivateKey] | None = None
        self._warned = ""
        try:
            self.info = KitInfo.model_validate_json((folder / "kit.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(
                f"{folder} is not a startup kit: it has no kit.json; 'hansa kit create' makes one"
            ) from None
        except (OSError, ValidationError, ValueError) as error:
            raise UserError(f"{folder / 'kit.json'} cannot be used ({_summary(error)}); ask for a new kit") from None
        if self.info.version != VERSION:
            raise UserError(
                f"{folder} is a kit of version {self.info.version}, and this Hansa reads version {VERSION}; "
                "use the Hansa that made it, or ask for a new kit"
            )
        if self.info.node not in self.members():
            raise UserError(f"{folder}: members.json does not list '{self.info.node}'; ask for a new kit")

    @property
    def name(self) -> str:
        """The node's name."""
        return self.info.node

    def members(self) -> dict[str, Member]:
        """The members by name, as members.json lists them now; it changes when a member is revoked or renewed.

        If the file is damaged while the node runs, the last valid list stays in use.
        """
        file = self.folder / "members.json"
        try:
            at = file.stat().st_mtime_ns
            if self._members is None or self._members[0] != at:
                self._members = at, read_members(file, self.folder / "ca.pem")
        except (OSError, ValueError) as error:
            if self._members is None:
                raise UserError(f"{file} cannot be used ({_summary(error)}); ask for a new one") from None
            if self._warned != _summary(error):
                self._warned = _summary(error)
                log.warning("%s cannot be used (%s): the previous list of members stays in use", file, self._warned)
        return self._members[1]

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
        """The public key of a member."""
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.members()[node].key))

    def trusts(self, node: str) -> bool:
        """Whether a node is a member that was not revoked."""
        member = self.members().get(node)
        return member is not None and bool(member.generations)

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


def sign_members(members: Mapping[str, Member], key: Ed25519PrivateKey) -> str:
    """Return the text of members.json, signed with the authority's key."""
    listed = {name: member.model_dump(mode="json") for name, member in members.items()}
    signed = {"members": listed, "signature": key.sign(_canonical(listed)).hex()}
    return json.dumps(signed, ensure_ascii=False, indent=1)


def read_members(file: Path, ca: Path) -> dict[str, Member]:
    """Return the members that a members.json lists.

    Raises `ValueError` if the file is damaged, or not signed by the authority whose certificate is in ``ca``.
    """
    raw = json.loads(file.read_text(encoding="utf-8"))
    try:
        listed, signature = dict(raw["members"]), bytes.fromhex(raw["signature"])
        key = x509.load_pem_x509_certificate(ca.read_bytes()).public_key()
        assert isinstance(key, Ed25519PublicKey)
        key.verify(signature, _canonical(listed))
    except (KeyError, TypeError, AssertionError):
        raise ValueError("it is not a list of members") from None
    except InvalidSignature:
        raise ValueError("it is not signed by the federation's authority") from None
    return {name: Member.model_validate(member) for name, member in listed.items()}


def _canonical(listed: Mapping[str, object]) -> bytes:
    return b"hansa members 1\n" + json.dumps(listed, sort_keys=True).encode()


def _identities(name: str, member: Member, federation: str) -> set[str]:
    return {identity(name, generation, federation) for generation in member.generations}


def identity(name: str, generation: int, federation: str) -> str:
    """The identity in a member's certificate."""
    return f"{token(name)}.{generation}@{token(federation)}.hansa"


def _summary(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
