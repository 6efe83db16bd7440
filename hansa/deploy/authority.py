"""The federation's certificate authority: it signs key requests, and lists, renews and revokes members.

Its folder holds its private key: keep it off the coordinator's machine. It needs no network, since requests and
responses are files. `create` makes all keys in one place, for rehearsals on one machine: its user holds all
keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from hansa.core.errors import UserError, did_you_mean
from hansa.deploy.certificates import authority_certificate, generation_of, issue, public_hex, write_file, write_key
from hansa.deploy.key_request import (
    KEY,
    KeyRequest,
    KeyResponse,
    install,
    parse_request,
    read_private_key,
    signed_request,
    signed_response,
)
from hansa.deploy.kit import VERSION, KitInfo, identity
from hansa.deploy.membership import MEMBERS, Member, MemberList, fingerprint, parse_members, sign_members
from hansa.deploy.nats_config import AUTHORIZATION, NATS, authorization, existing_server
from hansa.deploy.network.address import parse_address
from hansa.deploy.network.subjects import token
from hansa.deploy.plan import AUTHORITY, Plan

if TYPE_CHECKING:
    from hansa.config.federation import Federation

ISSUED = "issued"  # the newest certificate of every member


@dataclass(frozen=True)
class Response:
    """The authority's response to the request of ``node``: the text of a file."""

    node: str
    fingerprint: str
    text: str


def create(
    federation: "Federation", out: Path, addresses: Mapping[str, str], days: int, nats: str | None = None
) -> list[Path]:
    """Write an authority and complete kits, with private keys, for all nodes of a federation; return their folders.

    ``addresses``: node → HOST[:PORT], several with commas between, for the coordinator and regions; ``days``: how long
    certificates are valid; ``nats``: HOST:PORT of existing NATS servers, with commas between. Raises `UserError` if
    ``out`` is not empty or a name is reserved.
    """
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty; choose another --out, or use 'kit renew' for a member of it")
    authority = found(federation, out / AUTHORITY, addresses, days, nats)
    names = list(authority.plan.nodes)
    for name in names:
        (out / name).mkdir(parents=True)
        write_key(out / name / KEY, Ed25519PrivateKey.generate())
    _certify(authority, names, days)
    return [out / name for name in [*names, *([NATS] if nats is not None else [])]]


def found(
    federation: "Federation", folder: Path, addresses: Mapping[str, str], days: int, nats: str | None = None
) -> "Authority":
    """Create an authority that has no members yet, in a new folder; options as in `create`.

    With ``nats``, the files of the NATS server are written beside the folder.
    """
    from hansa.deploy.planning import address_list, make_plan  # slow to import, and most commands make no plan

    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose another --out")
    brokers = address_list("--nats", nats) if nats is not None else ()
    plan = make_plan(federation, addresses, brokers)
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    key = Ed25519PrivateKey.generate()
    write_key(folder / "ca.key", key)
    write_file(folder / "ca.pem", authority_certificate(key, federation.name))
    plan.write(folder)
    authority = Authority(folder)
    if brokers:
        (folder.parent / NATS).mkdir()
        (folder.parent / NATS / "nats.conf").write_text(existing_server(federation.name, brokers), encoding="utf-8")
        authority.certify_broker(days)
    authority.publish({}, serial=0)
    return authority


class Authority:
    """The certificate authority in ``folder``, or in the folder ``authority`` inside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / AUTHORITY if (folder / AUTHORITY / "ca.key").exists() else folder
        try:
            key = load_pem_private_key((self.folder / "ca.key").read_bytes(), None)
            self.certificate = x509.load_pem_x509_certificate((self.folder / "ca.pem").read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(
                f"{folder} is not an authority ({error}); name the folder that 'hansa kit authority' or 'hansa kit "
                "create' wrote"
            ) from None
        assert isinstance(key, Ed25519PrivateKey)
        self._key = key
        self.plan = Plan.read(self.folder)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the authority's key, which members compare."""
        return fingerprint(public_hex(self._key.public_key()))

    @property
    def beside(self) -> Path:
        """The folder that holds the authority and, after `create`, the kits."""
        return self.folder.parent

    # ── members ───────────────────────────────────────────────────────────────────────────────────────────────────

    def current(self) -> MemberList:
        """The newest list of members."""
        file = self.folder / MEMBERS
        try:
            return parse_members(file.read_bytes(), (self.folder / "ca.pem").read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be used ({error}); copy it from a kit of this federation") from None

    def members(self) -> Mapping[str, Member]:
        """The members by name."""
        return self.current().members

    def publish(self, members: Mapping[str, Member], serial: int | None = None) -> None:
        """Sign a list of members, by default with the next serial number, and distribute it."""
        number = self.current().serial + 1 if serial is None else serial
        text = sign_members(self.plan.federation, number, members, self._key)
        write_file(self.folder / MEMBERS, text.encode())
        self.distribute()

    def distribute(self) -> None:
        """Write the list of members into the kits beside the authority, and the permissions for NATS servers."""
        members, text = self.members(), self.current().text
        serving = [name for name in self.plan.serving() if name in members]
        for name in members:
            if self._is_kit(self.beside / name):
                write_file(self.beside / name / MEMBERS, text.encode())
                if name in serving:
                    permissions = authorization(self.plan.federation, members, [name])
                    write_file(self.beside / name / AUTHORIZATION, permissions.encode())
        if (self.beside / NATS).is_dir():
            permissions = authorization(self.plan.federation, members, serving)
            write_file(self.beside / NATS / AUTHORIZATION, permissions.encode())

    def _is_kit(self, folder: Path) -> bool:
        """Whether a folder is a kit of this authority."""
        try:
            return (folder / "ca.pem").read_bytes() == (self.folder / "ca.pem").read_bytes()
        except OSError:
            return False

    def sign(self, requests: Sequence[KeyRequest], days: float, replace: bool = False) -> Sequence[Response]:
        """Certify the keys of requests, publish one new list of members, and return a response for each request.

        A member whose key is the same gets its next certificate. ``replace``: a member may have a new key; its earlier
        certificates are revoked. Raises `UserError`, and signs nothing, if one request cannot be granted.
        """
        members = dict(self.members())
        certificates = {}
        for request in requests:
            self._check(request, members, replace)
            known = members.get(request.node)
            generation = self.generation(request.node) + 1
            kept = known.generations if known is not None and known.key == request.key else ()
            node = self.plan.nodes[request.node]
            members[request.node] = Member(
                key=request.key, kind=node.kind, parent=node.parent, generations=(*kept, generation)
            )
            public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(request.key))
            certificates[request.node] = self.certify(public, self.plan.info(request.node), generation, days)
        (self.folder / ISSUED).mkdir(exist_ok=True)
        for name, pem in certificates.items():
            write_file(self.folder / ISSUED / f"{token(name)}.pem", pem)
        self.publish(members)
        return [Response(r.node, r.fingerprint, self._response(r.node, certificates[r.node])) for r in requests]

    def _check(self, request: KeyRequest, members: Mapping[str, Member], replace: bool) -> None:
        """Raise `UserError` if a request cannot be granted."""
        if request.federation != self.plan.federation:
            raise UserError(
                f"'{request.node}' asks for federation '{request.federation}', and this is the authority of "
                f"'{self.plan.federation}'"
            )
        self.plan.info(request.node)
        for name, member in members.items():
            if name != request.node and member.key == request.key:
                raise UserError(f"'{request.node}' has the key of '{name}': every member needs a key of its own")
        known = members.get(request.node)
        if known is None:
            return
        if known.key == request.key and not known.generations:
            raise UserError(f"'{request.node}' was revoked, and its key does not come back; it must create a new key")
        if known.key != request.key and not replace:
            raise UserError(
                f"'{request.node}' is a member with the key {fingerprint(known.key)}, and the request has the key "
                f"{request.fingerprint}; use --replace if the member confirms that it made a new key"
            )

    def certify(self, key: Ed25519PublicKey, info: KitInfo, generation: int, days: float) -> bytes:
        """A certificate for the key of a member, in PEM."""
        own = identity(info.node, generation, info.federation)
        hosts = list(dict.fromkeys(host for host, _ in info.serves.all())) if info.serves else []
        return issue(self._key, self.certificate, key, token(info.node), [own], hosts, days)

    def _response(self, name: str, certificate: bytes) -> str:
        info = self.plan.info(name)
        response = KeyResponse(
            version=VERSION,
            kit=info,
            certificate=certificate.decode(),
            ca=(self.folder / "ca.pem").read_text(encoding="utf-8"),
            members=self.current().text,
            policy=self.plan.policy if info.sources else None,
        )
        return signed_response(response, self._key)

    def generation(self, name: str) -> int:
        """The generation of the newest certificate of a node; 0 if it has none."""
        certificate = self.issued(name)
        return generation_of(certificate) if certificate is not None else 0

    def issued(self, name: str) -> x509.Certificate | None:
        """The newest certificate of a node, if it has one."""
        file = self.folder / ISSUED / f"{token(name)}.pem"
        return x509.load_pem_x509_certificate(file.read_bytes()) if file.exists() else None

    def add(self, federation: "Federation", addresses: Mapping[str, str]) -> Sequence[str]:
        """Take the new nodes of a newer federation file into the plan; return the nodes that are not members yet."""
        from hansa.deploy.planning import make_plan  # slow to import

        self.plan = self.plan.extended(make_plan(federation, addresses, self.plan.nats))
        self.plan.write(self.folder)
        return [name for name in self.plan.nodes if name not in self.members()]

    def certify_broker(self, days: float) -> None:
        """Write a new key and a certificate for the existing NATS server, which is not a member."""
        folder, place = self.beside / NATS, self.plan.nodes[self.plan.serving()[0]].serves
        if not folder.is_dir() or place is None or not place.nats:
            raise UserError(f"{self.beside} has no folder for a NATS server: the authority was made without --nats")
        key = Ed25519PrivateKey.generate()
        write_key(folder / KEY, key)
        hosts = list(dict.fromkeys(parse_address(one)[0] for one in place.nats))
        pem = issue(self._key, self.certificate, key.public_key(), NATS, [], hosts, days)
        write_file(folder / "cert.pem", pem)
        write_file(folder / "ca.pem", (self.folder / "ca.pem").read_bytes())


def revoke(folder: Path, name: str) -> Member:
    """Revoke all certificates of a member."""
    authority = Authority(folder)
    members = authority.members()
    revoked = _member(members, name).model_copy(update={"generations": ()})
    authority.publish({**members, name: revoked})
    return revoked


def renew(kits: Path, name: str, days: int) -> int:
    """Write a new certificate into a kit that lies beside its authority, and return its generation.

    After a revocation the kit gets a new key. Raises `UserError` if the kit is not there: its owner has the key.
    """
    authority = Authority(kits)
    member, file = _member(authority.members(), name), authority.beside / name / KEY
    if not file.exists():
        raise UserError(
            f"the key of '{name}' is not here: run 'hansa kit request --out KIT' at its owner, and sign that request"
        )
    if not member.generations:
        write_key(file, Ed25519PrivateKey.generate())
    _certify(authority, [name], days)
    return authority.generation(name)


def _certify(authority: Authority, names: Sequence[str], days: float) -> None:
    """Sign the keys in kits that lie beside the authority, and complete these kits."""
    keys = {name: read_private_key(authority.beside / name / KEY) for name in names}
    texts = {name: signed_request(key, name, authority.plan.federation) for name, key in keys.items()}
    requests = [parse_request(text, name) for name, text in texts.items()]
    for response in authority.sign(requests, days, replace=True):
        install(authority.beside / response.node, response.text, response.node)
    authority.distribute()


def show(folder: Path) -> list[dict[str, str]]:
    """One row for each node of the plan: node, kind, parent, state, until, fingerprint."""
    authority = Authority(folder)
    members, lines = authority.members(), []
    for name, node in authority.plan.nodes.items():
        member, certificate, until = members.get(name), authority.issued(name), ""
        if certificate is not None:
            until = certificate.not_valid_after_utc.strftime("%Y-%m-%d")
            until += " (expired)" if certificate.not_valid_after_utc < datetime.now(UTC) else ""
        state = "not a member yet" if member is None else "valid" if member.generations else "revoked"
        shown = fingerprint(member.key) if member is not None else ""
        row = {"node": name, "kind": node.kind, "parent": node.parent or "", "state": state, "until": until}
        lines.append({**row, "fingerprint": shown})
    return lines


def _member(members: Mapping[str, Member], name: str) -> Member:
    if name not in members:
        raise UserError(f"'{name}' is not a member; {did_you_mean(name, members)}")
    return members[name]
