"""The federation's certificate authority: it makes the startup kits, renews and revokes them.

Its folder ``kits/authority`` holds the authority's key: keep it with whoever admits members, and off the coordinator.
"""

import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hansa.config.federation import Federation
from hansa.config.nodes import Node, walk
from hansa.core.errors import UserError, did_you_mean
from hansa.deploy.kit import COORDINATOR, VERSION, Card, Kit, Member, Place, identity, members_text, read_members
from hansa.deploy.nats_config import AUTHORIZATION, NATS, authorization, foreign
from hansa.deploy.network.address import Address
from hansa.deploy.network.subjects import token
from hansa.privacy.policy.proposal import POLICY, template

YEARS = 10  # of the authority itself
PORT = 4222
AUTHORITY = "authority"
TAKEN = {COORDINATOR: "the root's kit", AUTHORITY: "the authority's folder", NATS: "the broker's folder"}


def create(
    federation: Federation, out: Path, addresses: Mapping[str, str], days: int, nats: str | None = None
) -> list[Path]:
    """A kit for the coordinator, every region and every silo; ``nats``: HOST:PORT of a broker that others run."""
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty; choose another --out, or use 'kit renew' for a member of it")
    parents = _parents(federation)
    for name in TAKEN.keys() & parents.keys():
        raise UserError(f"a silo is called '{name}', which is the name of {TAKEN[name]}: give it another name")
    broker = _host_and_port("--nats", nats) if nats is not None else None
    places = _places(federation, addresses, broker)
    authority = Authority.found(out / AUTHORITY, federation.name)
    members = {}
    for name, kind in {COORDINATOR: "coordinator", **_kinds(federation)}.items():
        folder = out / name
        folder.mkdir(parents=True)
        key = Ed25519PrivateKey.generate()
        _write_key(folder / "key.pem", key)
        members[name] = Member(key=_hex(key.public_key()), kind=kind, parent=parents.get(name), generations=(1,))
        node = dict(walk(federation.silos)).get(name)
        card = Card(
            version=VERSION,
            federation=federation.name,
            node=name,
            kind=kind,
            parent=places[parents[name]] if name in parents else None,
            serves=places.get(name),
            children=tuple(child for child, parent in parents.items() if parent == name),
            rounds=node.rounds if node else 1,
            sources=_without_paths(node) if node else (),
        )
        (folder / "kit.json").write_text(card.model_dump_json(indent=1), encoding="utf-8")
        if node is not None and node.sources:
            (folder / POLICY).write_text(template(federation), encoding="utf-8")
        authority.certify(folder, key.public_key(), card, 1, days)
    if broker is not None:
        (out / NATS).mkdir()
        (out / NATS / "nats.conf").write_text(foreign(federation.name, broker), encoding="utf-8")
        authority.certify_broker(out / NATS, broker[0], days)
    authority.publish(members)
    return [out / name for name in [*members, *([NATS] if broker else [])]]


def _kinds(federation: Federation) -> dict[str, str]:
    return {name: "region" if node.silos else "silo" for name, node in walk(federation.silos)}


def _parents(federation: Federation) -> dict[str, str]:
    found = dict.fromkeys(federation.silos, COORDINATOR)
    return found | {child: name for name, node in walk(federation.silos) for child in node.silos}


def _places(federation: Federation, addresses: Mapping[str, str], broker: Address | None) -> dict[str, Place]:
    """Where the coordinator and the regions are reached; without an address, on this machine."""
    serving = [COORDINATOR, *(name for name, kind in _kinds(federation).items() if kind == "region")]
    strangers = set(addresses) - set(serving)
    if strangers:
        raise UserError(f"--address names '{min(strangers)}', which serves nobody; {did_you_mean('', serving)}")
    places = {n: _place(n, addresses.get(n, f"localhost:{PORT + 2 * i}")) for i, n in enumerate(serving)}
    if broker is None:
        return places
    return {n: p.model_copy(update={"broker": broker[0], "port": broker[1]}) for n, p in places.items()}


def _place(node: str, address: str) -> Place:
    letters, _, bulk = address.partition("+")
    host, port = _host_and_port("--address", letters)
    if bulk and not bulk.isdigit():
        raise UserError(f"--address {address!r}: write it as HOST:PORT+PORT, with the port for weights in the end")
    return Place(node=node, host=host, port=port, bulk=int(bulk or port + 1))


def _host_and_port(option: str, address: str) -> Address:
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65535:
        raise UserError(f"{option} {address!r}: write it as HOST:PORT")
    return host, int(port)


def _without_paths(node: Node) -> tuple:  # type: ignore[type-arg]
    """How a silo's data is read; where it lies is the silo's own affair."""
    return tuple(source.model_copy(update={"train": "", "valid": None, "test": None}) for source in node.sources)


class Authority:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
            self.certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"{folder} holds no authority ({error}); name the folder that 'kit create' wrote") from None
        assert isinstance(key, Ed25519PrivateKey)
        self._key = key

    @staticmethod
    def found(folder: Path, federation: str) -> "Authority":
        folder.mkdir(parents=True, mode=0o700)
        key = Ed25519PrivateKey.generate()
        _write_key(folder / "ca.key", key)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Hansa authority of {federation}"[:64])])
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(hours=1))
        builder = builder.not_valid_after(now + timedelta(days=365 * YEARS))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(ca=True), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        (folder / "ca.pem").write_bytes(builder.sign(key, None).public_bytes(Encoding.PEM))
        return Authority(folder)

    def certify(self, folder: Path, key: Ed25519PublicKey, card: Card, generation: int, days: float) -> None:
        who = x509.RFC822Name(identity(card.node, generation, card.federation))
        self._certify(folder, key, card.node, [who], [card.serves.host] if card.serves else [], days)

    def certify_broker(self, folder: Path, host: str, days: float) -> None:
        """A server's certificate, which makes nobody a member, and a new key."""
        key = Ed25519PrivateKey.generate()
        _write_key(folder / "key.pem", key)
        self._certify(folder, key.public_key(), NATS, [], [host], days)

    def _certify(
        self,
        folder: Path,
        key: Ed25519PublicKey,
        node: str,
        who: list[x509.RFC822Name],
        hosts: list[str],
        days: float,
    ) -> None:
        now = datetime.now(UTC)
        names: list[x509.GeneralName] = [*who, *map(_host, hosts)]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, token(node))])
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self.certificate.subject)
        builder = builder.public_key(key).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=days))
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(ca=False), critical=True)
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        _write(folder / "cert.pem", builder.sign(self._key, None).public_bytes(Encoding.PEM))
        shutil.copyfile(self.folder / "ca.pem", folder / "ca.pem")

    def members(self) -> dict[str, Member]:
        file = self.folder / "members.json"
        try:
            return read_members(file, self.folder / "ca.pem")
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be used ({error}); take it from a kit that this authority made") from None

    def publish(self, members: Mapping[str, Member]) -> None:
        """Who is a member, into every kit beside the authority; and who may do what, for brokers run by others."""
        text = members_text(members, self._key)
        for folder in [self.folder, *(self.folder.parent / name for name in members)]:
            if folder.is_dir():
                _write(folder / "members.json", text.encode())
        folders = [self.folder.parent / name for name, member in members.items() if member.kind != "silo"]
        serving = [Kit(folder) for folder in folders if folder.is_dir()]
        for kit in serving:
            _write(kit.folder / AUTHORIZATION, authorization(kit).encode())
        if not (self.folder.parent / NATS).is_dir():
            return
        if len(serving) < len(folders):
            missing = next(folder for folder in folders if not folder.is_dir())
            raise UserError(f"{missing} is not there: without it nobody knows whom the broker admits; put it back")
        _write(self.folder.parent / NATS / AUTHORIZATION, authorization(*serving).encode())


def revoke(kits: Path, name: str) -> Member:
    """No certificate of this member is good any more."""
    authority = Authority(kits / AUTHORITY)
    members = authority.members()
    member = _member(members, name)
    gone = member.model_copy(update={"generations": ()})
    authority.publish({**members, name: gone})
    return gone


def renew_broker(kits: Path, days: int) -> None:
    """A new certificate for the broker that others run."""
    if not (kits / NATS).is_dir():
        raise UserError(f"{kits} has no broker's folder: 'kit create' was not given --nats")
    place = Kit(kits / COORDINATOR).card.serves
    assert place is not None
    Authority(kits / AUTHORITY).certify_broker(kits / NATS, place.broker, days)


def renew(kits: Path, name: str, days: int) -> int:
    """A new certificate; for the same key, or, after a revocation, for a new one."""
    authority = Authority(kits / AUTHORITY)
    members = authority.members()
    member, kit = _member(members, name), Kit(kits / name)
    generation = _latest(kits / name) + 1
    key = kit.key
    if not member.generations:
        key = Ed25519PrivateKey.generate()
        _write_key(kits / name / "key.pem", key)
    authority.certify(kits / name, key.public_key(), kit.card, generation, days)
    update = {"key": _hex(key.public_key()), "generations": (*member.generations, generation)}
    authority.publish({**members, name: member.model_copy(update=update)})
    return generation


def show(kits: Path) -> list[dict[str, str]]:
    """One line per member."""
    lines = []
    for name, member in Authority(kits / AUTHORITY).members().items():
        until = "kit not here"
        if (kits / name / "cert.pem").exists():
            certificate = x509.load_pem_x509_certificate((kits / name / "cert.pem").read_bytes())
            until = certificate.not_valid_after_utc.strftime("%Y-%m-%d")
            if certificate.not_valid_after_utc < datetime.now(UTC):
                until += " (expired)"
        state = "good" if member.generations else "revoked"
        lines.append({"node": name, "kind": member.kind, "parent": member.parent or "", "state": state, "until": until})
    return lines


def _member(members: Mapping[str, Member], name: str) -> Member:
    if name not in members:
        raise UserError(f"'{name}' is no member; {did_you_mean(name, members)}")
    return members[name]


def _latest(kit: Path) -> int:
    certificate = x509.load_pem_x509_certificate((kit / "cert.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    [who] = names.get_values_for_type(x509.RFC822Name)
    return int(who.partition("@")[0].rpartition(".")[2])


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


def _hex(key: Ed25519PublicKey) -> str:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def _write_key(file: Path, key: Ed25519PrivateKey) -> None:
    _write(file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)


def _write(file: Path, data: bytes, mode: int = 0o644) -> None:
    """Whole or not at all: a coordinator may be reading it."""
    draft = file.with_name(f".{file.name}.draft")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as stream:
        stream.write(data)
    draft.replace(file)
