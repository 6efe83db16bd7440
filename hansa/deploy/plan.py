"""The plan of a federation, at its authority: which nodes may become members, and what their kits contain.

The plan comes from the federation file. It is what the authority checks a key request against.
"""

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from hansa.config.federation import Federation
from hansa.config.nodes import Node, walk
from hansa.core.errors import UserError, did_you_mean
from hansa.core.settings import Section
from hansa.data.source import Source
from hansa.deploy.certificates import write_file
from hansa.deploy.kit import COORDINATOR, VERSION, Endpoint, KitInfo
from hansa.deploy.nats_config import NATS
from hansa.deploy.network.address import Address
from hansa.privacy.policy.proposal import policy_template

PORT = 4222
PLAN = "plan.json"
AUTHORITY = "authority"
RESERVED = {COORDINATOR: "the coordinator's kit", AUTHORITY: "the authority's folder", NATS: "the broker's folder"}


class PlannedNode(Section):
    """A node of the federation file: what its kit will contain."""

    kind: str
    parent: str | None
    serves: Endpoint | None = None
    rounds: int = 1
    sources: tuple[Source, ...] = ()


class Plan(Section):
    """The nodes of a federation; ``policy``: the policy that is proposed to its silos."""

    version: int = VERSION
    federation: str
    nodes: dict[str, PlannedNode]
    policy: str

    def info(self, name: str) -> KitInfo:
        """The content of a node's kit.json; raises `UserError` if the plan does not have the node."""
        if name not in self.nodes:
            raise UserError(
                f"the federation '{self.federation}' has no node '{name}'; {did_you_mean(name, self.nodes)} "
                "'hansa kit add' adds a node"
            )
        node = self.nodes[name]
        return KitInfo(
            version=VERSION,
            federation=self.federation,
            node=name,
            kind=node.kind,
            parent=self.nodes[node.parent].serves if node.parent is not None else None,
            serves=node.serves,
            rounds=node.rounds,
            sources=node.sources,
        )

    def serving(self) -> list[str]:
        """The coordinator and the regions."""
        return [name for name, node in self.nodes.items() if node.serves is not None]

    def extended(self, federation: Federation, addresses: Mapping[str, str]) -> "Plan":
        """The plan with the new nodes of a newer federation file.

        Nodes that the file no longer has stay members until they are revoked. Raises `UserError` if the file belongs to
        another federation, or gives a member another place.
        """
        if federation.name != self.federation:
            raise UserError(f"the file is of federation '{federation.name}', the authority of '{self.federation}'")
        place = self.nodes[COORDINATOR].serves
        broker = (place.broker_host, place.port) if place is not None and place.broker_host else None
        newer = make_plan(federation, addresses, broker)
        for name in newer.nodes.keys() & self.nodes.keys():
            old, new = self.nodes[name], newer.nodes[name]
            if (old.kind, old.parent) != (new.kind, new.parent):
                raise UserError(
                    f"'{name}' is a {old.kind} below '{old.parent}', and the file makes it a {new.kind} below "
                    f"'{new.parent}': a member keeps its place; give the node in the file another name"
                )
        return newer.model_copy(update={"nodes": {**newer.nodes, **self.nodes}})

    def write(self, folder: Path) -> None:
        """Write the plan into the authority's folder."""
        write_file(folder / PLAN, self.model_dump_json(indent=1).encode())

    @staticmethod
    def read(folder: Path) -> "Plan":
        """The plan in the authority's folder; raises `UserError` if it cannot be used."""
        try:
            return Plan.model_validate_json((folder / PLAN).read_text(encoding="utf-8"))
        except (OSError, ValidationError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{folder / PLAN} cannot be used ({reason}); restore it from a backup") from None


def make_plan(federation: Federation, addresses: Mapping[str, str], broker: Address | None) -> Plan:
    """The plan of a federation file.

    ``addresses``: node → HOST:PORT[+PORT], for the coordinator and regions; ``broker``: an existing NATS server. Raises
    `UserError` if a name is reserved or an address malformed.
    """
    parents = dict.fromkeys(federation.silos, COORDINATOR)
    parents |= {child: name for name, node in walk(federation.silos) for child in node.silos}
    for name in RESERVED.keys() & parents.keys():
        raise UserError(f"a silo has the name '{name}', which is reserved for {RESERVED[name]}: give it another name")
    kinds = {name: "region" if node.silos else "silo" for name, node in walk(federation.silos)}
    endpoints = _endpoints([COORDINATOR, *(n for n, kind in kinds.items() if kind == "region")], addresses, broker)
    nodes = {COORDINATOR: PlannedNode(kind=COORDINATOR, parent=None, serves=endpoints[COORDINATOR])}
    for name, node in walk(federation.silos):
        nodes[name] = PlannedNode(
            kind=kinds[name],
            parent=parents[name],
            serves=endpoints.get(name),
            rounds=node.rounds,
            sources=_without_paths(node),
        )
    return Plan(federation=federation.name, nodes=nodes, policy=policy_template(federation))


def host_and_port(option: str, address: str) -> Address:
    """The parts of HOST:PORT; raises `UserError`, with the option's name, if it is something else."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65535:
        raise UserError(f"{option} {address!r}: write it as HOST:PORT")
    return host, int(port)


def _endpoints(serving: list[str], addresses: Mapping[str, str], broker: Address | None) -> dict[str, Endpoint]:
    """Where the coordinator and the regions are reached; by default on this machine."""
    unknown = set(addresses) - set(serving)
    if unknown:
        raise UserError(f"--address names '{min(unknown)}', which has no children; {did_you_mean('', serving)}")
    endpoints = {n: _endpoint(n, addresses.get(n, f"localhost:{PORT + 2 * i}")) for i, n in enumerate(serving)}
    if broker is None:
        return endpoints
    return {n: p.model_copy(update={"broker_host": broker[0], "port": broker[1]}) for n, p in endpoints.items()}


def _endpoint(node: str, address: str) -> Endpoint:
    broker, _, blob_port = address.partition("+")
    host, port = host_and_port("--address", broker)
    if blob_port and not blob_port.isdigit():
        raise UserError(
            f"--address {address!r}: write it as HOST:PORT+PORT, where the second port is the blob server's"
        )
    return Endpoint(node=node, host=host, port=port, blob_port=int(blob_port or port + 1))


def _without_paths(node: Node) -> tuple[Source, ...]:
    """The format of a silo's data, without its paths, which only the silo knows."""
    return tuple(source.model_copy(update={"train": "", "valid": None, "test": None}) for source in node.sources)
