"""A startup kit: what a node needs to take its place in a federation, as files in one folder.

kit.json       who the node is, where its parent is, whom it serves       members.json   the members' public keys
cert.pem       its certificate                  key.pem    its private key, readable by its owner alone
ca.pem         the federation's authority       policy.yaml   of a silo: what may leave it

The identity in a certificate is ``NAME.GENERATION@FEDERATION.hansa``; a renewed certificate is the next generation of
the same key, a revoked generation is one that members.json does not list. members.json is signed by the authority: who
coordinates can hand it on, and not change it.
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

VERSION = 2
COORDINATOR = "coordinator"


class Place(Section):
    """Where a node that serves others is reached: its broker, and the port for weights."""

    node: str
    host: str
    port: int
    bulk: int
    broker: str = ""  # the host of the broker, where somebody else runs it

    @property
    def letters(self) -> Address:
        return self.broker or self.host, self.port

    @property
    def weights(self) -> Address:
        return self.host, self.bulk


class Member(Section):
    key: str  # Ed25519, in hexadecimal
    kind: str  # coordinator, region, silo
    parent: str | None
    generations: tuple[int, ...]  # of certificates that are good


class Card(Section):
    """kit.json."""

    version: int
    federation: str
    node: str
    kind: str
    parent: Place | None = None
    serves: Place | None = None
    children: tuple[str, ...] = ()
    rounds: int = 1  # of a region, for each round above
    sources: tuple[Source, ...] = ()  # of a silo: how its data is read


class Kit:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._members: tuple[int, dict[str, Member]] | None = None
        self._key: tuple[int, Ed25519PrivateKey] | None = None
        self._complaint = ""
        try:
            self.card = Card.model_validate_json((folder / "kit.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{folder} is no startup kit (no kit.json there); 'hansa kit create' makes one") from None
        except (OSError, ValidationError, ValueError) as error:
            raise UserError(f"{folder / 'kit.json'} cannot be used ({_first(error)}); ask for a new kit") from None
        if self.card.version != VERSION:
            raise UserError(
                f"{folder} is a kit of version {self.card.version}, and this Hansa reads version {VERSION}; "
                "use the Hansa that made it, or ask for a new kit"
            )
        if self.card.node not in self.members():
            raise UserError(f"{folder}: members.json does not know '{self.card.node}'; ask for a new kit")

    @property
    def name(self) -> str:
        return self.card.node

    def members(self) -> dict[str, Member]:
        """As the file says now: it changes when somebody is revoked or renewed. If it is damaged while we run, as it
        said before."""
        file = self.folder / "members.json"
        try:
            at = file.stat().st_mtime_ns
            if self._members is None or self._members[0] != at:
                self._members = at, read_members(file, self.folder / "ca.pem")
        except (OSError, ValueError) as error:
            if self._members is None:
                raise UserError(f"{file} cannot be used ({_first(error)}); ask for a new one") from None
            if self._complaint != _first(error):
                self._complaint = _first(error)
                log.warning("%s cannot be used (%s): whoever was a member before is one", file, self._complaint)
        return self._members[1]

    @property
    def key(self) -> Ed25519PrivateKey:
        """As the file says now: after a revocation a renewed kit has another; while it is being copied, the last."""
        file = self.folder / "key.pem"
        try:
            if self._key is None or self._key[0] != file.stat().st_mtime_ns:
                self._key = file.stat().st_mtime_ns, _signing(file)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            if self._key is None:
                raise UserError(f"{file} cannot be used ({_first(error)}); ask for a new kit") from None
        return self._key[1]

    def public(self, node: str) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.members()[node].key))

    def trusts(self, node: str) -> bool:
        """Whether it is a member, and not revoked."""
        member = self.members().get(node)
        return member is not None and bool(member.generations)

    @property
    def above(self) -> Subjects:
        """The subjects between this node and its parent."""
        if self.card.parent is None:
            raise UserError(f"{self.folder} is the coordinator's kit: it joins nobody; use 'hansa serve'")
        return Subjects(self.card.federation, self.card.parent.node)

    @property
    def below(self) -> Subjects:
        """The subjects between this node and its children."""
        if self.card.serves is None:
            raise UserError(f"{self.folder} is a silo's kit: it serves nobody; use 'hansa join'")
        return Subjects(self.card.federation, self.name)

    # ── TLS ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def client_tls(self) -> Tls:
        return Tls(self.folder, ssl.PROTOCOL_TLS_CLIENT)

    def server_tls(self) -> Tls:
        return Tls(self.folder, ssl.PROTOCOL_TLS_SERVER)

    def identified(self, names: list[str]) -> str:
        """Whom a certificate's names stand for among the members; empty if nobody, or somebody revoked."""
        for who in names:
            for name, member in self.members().items():
                if who.startswith(token(name)) and who in _identities(name, member, self.card.federation):
                    return name
        return ""


def _signing(file: Path) -> Ed25519PrivateKey:
    key = load_pem_private_key(file.read_bytes(), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("it is not an Ed25519 key")
    return key


def members_text(members: Mapping[str, Member], key: Ed25519PrivateKey) -> str:
    """members.json, signed by the authority."""
    listed = {name: member.model_dump(mode="json") for name, member in members.items()}
    signed = {"members": listed, "signature": key.sign(_canonical(listed)).hex()}
    return json.dumps(signed, ensure_ascii=False, indent=1)


def read_members(file: Path, ca: Path) -> dict[str, Member]:
    """`ValueError` if it is damaged, or not signed by the authority whose certificate ``ca`` is."""
    raw = json.loads(file.read_text(encoding="utf-8"))
    try:
        listed, signature = dict(raw["members"]), bytes.fromhex(raw["signature"])
        key = x509.load_pem_x509_certificate(ca.read_bytes()).public_key()
        assert isinstance(key, Ed25519PublicKey)
        key.verify(signature, _canonical(listed))
    except (KeyError, TypeError, AssertionError):
        raise ValueError("it is no list of members") from None
    except InvalidSignature:
        raise ValueError("the federation's authority has not signed it") from None
    return {name: Member.model_validate(member) for name, member in listed.items()}


def _canonical(listed: Mapping[str, object]) -> bytes:
    return b"hansa members 1\n" + json.dumps(listed, sort_keys=True).encode()


def _identities(name: str, member: Member, federation: str) -> set[str]:
    return {identity(name, generation, federation) for generation in member.generations}


def identity(name: str, generation: int, federation: str) -> str:
    return f"{token(name)}.{generation}@{token(federation)}.hansa"


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
