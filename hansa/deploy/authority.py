"""The federation's certificate authority: it creates, renews and revokes startup kits.

The folder ``kits/authority`` holds the authority's private key: keep it off the coordinator's machine.
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
from hansa.deploy.kit import COORDINATOR, VERSION, Endpoint, Kit, KitInfo, Member, identity, read_members, sign_members
from hansa.deploy.nats_config import AUTHORIZATION, NATS, authorization, existing_server
from hansa.deploy.network.address import Address
from hansa.deploy.network.subjects import token
from hansa.privacy.policy.proposal import POLICY_FILE, policy_template

YEARS = 10  # for which the certificate of the authority itself is valid
PORT = 4222
AUTHORITY = "authority"
RESERVED = {COORDINATOR: "the coordinator's kit", AUTHORITY: "the authority's folder", NATS: "the broker's folder"}


def create(
    federation: Federation, out: Path, addresses: Mapping[str, str], days: int, nats: str | None = None
) -> list[Path]:
    """Write a kit for the coordinator, every region and every silo; return their folders.

    ``addresses``: node → HOST:PORT[+PORT], for the coordinator and regions; ``days``: how long certificates are valid;
    ``nats``: HOST:PORT of an existing NATS server. Raises `UserError` if ``out`` is not empty or a name is reserved.
    """
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty; choose another --out, or use 'kit renew' for a member of it")
    parents = _parents(federation)
    for name in RESERVED.keys() & parents.keys():
        raise UserError(f"a silo has the name '{name}', which is reserved for {RESERVED[name]}: give it another name")
    broker = _host_and_port("--nats", nats) if nats is not None else None
    endpoints = _endpoints(federation, addresses, broker)
    authority = Authority.create(out / AUTHORITY, federation.name)
    members = {}
    for name, kind in {COORDINATOR: "coordinator", **_kinds(federation)}.items():
        folder = out / name
        folder.mkdir(parents=True)
        key = Ed25519PrivateKey.generate()
        _write_key(folder / "key.pem", key)
        members[name] = Member(key=_hex(key.public_key()), kind=kind, parent=parents.get(name), generations=(1,))
        node = dict(walk(federation.silos)).get(name)
        info = KitInfo(
            version=VERSION,
            federation=federation.name,
            node=name,
            kind=kind,
            parent=endpoints[parents[name]] if name in parents else None,
            serves=endpoints.get(name),
            children=tuple(child for child, parent in parents.items() if parent == name),
            rounds=node.rounds if node else 1,
            sources=_without_paths(node) if node else (),
        )
        (folder / "kit.json").write_text(info.model_dump_json(indent=1), encoding="utf-8")
        if node is not None and node.sources:
            (folder / POLICY_FILE).write_text(policy_template(federation), encoding="utf-8")
        authority.certify(folder, key.public_key(), info, 1, days)
    if broker is not None:
        (out / NATS).mkdir()
        (out / NATS / "nats.conf").write_text(existing_server(federation.name, broker), encoding="utf-8")
        authority.certify_broker(out / NATS, broker[0], days)
    authority.publish(members)
    return [out / name for name in [*members, *([NATS] if broker else [])]]


def _kinds(federation: Federation) -> dict[str, str]:
    return {name: "region" if node.silos else "silo" for name, node in walk(federation.silos)}


def _parents(federation: Federation) -> dict[str, str]:
    found = dict.fromkeys(federation.silos, COORDINATOR)
    return found | {child: name for name, node in walk(federation.silos) for child in node.silos}


def _endpoints(federation: Federation, addresses: Mapping[str, str], broker: Address | None) -> dict[str, Endpoint]:
    """Where the coordinator and the regions are reached; by default on this machine."""
    serving = [COORDINATOR, *(name for name, kind in _kinds(federation).items() if kind == "region")]
    unknown = set(addresses) - set(serving)
    if unknown:
        raise UserError(f"--address names '{min(unknown)}', which has no children; {did_you_mean('', serving)}")
    endpoints = {n: _endpoint(n, addresses.get(n, f"localhost:{PORT + 2 * i}")) for i, n in enumerate(serving)}
    if broker is None:
        return endpoints
    return {n: p.model_copy(update={"broker_host": broker[0], "port": broker[1]}) for n, p in endpoints.items()}


def _endpoint(node: str, address: str) -> Endpoint:
    broker, _, blob_port = address.partition("+")
    host, port = _host_and_port("--address", broker)
    if blob_port and not blob_port.isdigit():
        raise UserError(
            f"--address {address!r}: write it as HOST:PORT+PORT, where the second port is the blob server's"
        )
    return Endpoint(node=node, host=host, port=port, blob_port=int(blob_port or port + 1))


def _host_and_port(option: str, address: str) -> Address:
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65535:
        raise UserError(f"{option} {address!r}: write it as HOST:PORT")
    return host, int(port)


def _without_paths(node: Node) -> tuple:  # type: ignore[type-arg]
    """The format of a silo's data, without its paths, which only the silo knows."""
    return tuple(source.model_copy(update={"train": "", "valid": None, "test": None}) for source in node.sources)


class Authority:
    """The certificate authority in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
            self.certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(
                f"{folder} is not an authority ({error}); name the folder that 'hansa kit create' wrote"
            ) from None
        assert isinstance(key, Ed25519PrivateKey)
        self._key = key

    @staticmethod
    def create(folder: Path, federation: str) -> "Authority":
        """Create an authority with a new key in a new folder."""
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

    def certify(self, folder: Path, key: Ed25519PublicKey, info: KitInfo, generation: int, days: float) -> None:
        """Write a member's certificate, of a generation, into its kit."""
        own = x509.RFC822Name(identity(info.node, generation, info.federation))
        self._certify(folder, key, info.node, [own], [info.serves.host] if info.serves else [], days)

    def certify_broker(self, folder: Path, host: str, days: float) -> None:
        """Write a new key and a certificate for a NATS server, which is not a member."""
        key = Ed25519PrivateKey.generate()
        _write_key(folder / "key.pem", key)
        self._certify(folder, key.public_key(), NATS, [], [host], days)

    def _certify(
        self,
        folder: Path,
        key: Ed25519PublicKey,
        node: str,
        identities: list[x509.RFC822Name],
        hosts: list[str],
        days: float,
    ) -> None:
        now = datetime.now(UTC)
        names: list[x509.GeneralName] = [*identities, *map(_host, hosts)]
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
        """The members by name."""
        file = self.folder / "members.json"
        try:
            return read_members(file, self.folder / "ca.pem")
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be used ({error}); copy it from a kit of this federation") from None

    def publish(self, members: Mapping[str, Member]) -> None:
        """Write the list of members into all kits, and the permissions for an existing NATS server."""
        text = sign_members(members, self._key)
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
            raise UserError(f"{missing} is missing, and the broker's permissions depend on it; put it back")
        _write(self.folder.parent / NATS / AUTHORIZATION, authorization(*serving).encode())


def revoke(kits: Path, name: str) -> Member:
    """Revoke all certificates of a member."""
    authority = Authority(kits / AUTHORITY)
    members = authority.members()
    member = _member(members, name)
    revoked = member.model_copy(update={"generations": ()})
    authority.publish({**members, name: revoked})
    return revoked


def renew_broker(kits: Path, days: int) -> None:
    """Write a new certificate for the existing NATS server."""
    if not (kits / NATS).is_dir():
        raise UserError(f"{kits} has no folder for a NATS server: 'hansa kit create' was run without --nats")
    host = Kit(kits / COORDINATOR).endpoint.broker_host
    Authority(kits / AUTHORITY).certify_broker(kits / NATS, host, days)


def renew(kits: Path, name: str, days: int) -> int:
    """Write a new certificate, after a revocation with a new key, and return its generation."""
    authority = Authority(kits / AUTHORITY)
    members = authority.members()
    member, kit = _member(members, name), Kit(kits / name)
    generation = _latest(kits / name) + 1
    key = kit.key
    if not member.generations:
        key = Ed25519PrivateKey.generate()
        _write_key(kits / name / "key.pem", key)
    authority.certify(kits / name, key.public_key(), kit.info, generation, days)
    update = {"key": _hex(key.public_key()), "generations": (*member.generations, generation)}
    authority.publish({**members, name: member.model_copy(update=update)})
    return generation


def show(kits: Path) -> list[dict[str, str]]:
    """One row for each member: node, kind, parent, state, until."""
    lines = []
    for name, member in Authority(kits / AUTHORITY).members().items():
        until = "unknown: its kit is not here"
        if (kits / name / "cert.pem").exists():
            certificate = x509.load_pem_x509_certificate((kits / name / "cert.pem").read_bytes())
            until = certificate.not_valid_after_utc.strftime("%Y-%m-%d")
            if certificate.not_valid_after_utc < datetime.now(UTC):
                until += " (expired)"
        state = "valid" if member.generations else "revoked"
        lines.append({"node": name, "kind": member.kind, "parent": member.parent or "", "state": state, "until": until})
    return lines


def _member(members: Mapping[str, Member], name: str) -> Member:
    if name not in members:
        raise UserError(f"'{name}' is not a member; {did_you_mean(name, members)}")
    return members[name]


def _latest(kit: Path) -> int:
    certificate = x509.load_pem_x509_certificate((kit / "cert.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    [own] = names.get_values_for_type(x509.RFC822Name)
    return int(own.partition("@")[0].rpartition(".")[2])


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
    """Replace a file atomically: a coordinator may be reading it."""
    draft = file.with_name(f".{file.name}.draft")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as stream:
        stream.write(data)
    draft.replace(file)
