"""Makes the plan of a federation (plan.py) from its federation file."""

from collections.abc import Mapping

from hansa.config.federation import Federation
from hansa.config.nodes import Node, walk
from hansa.core.errors import UserError, did_you_mean
from hansa.data.source import Source
from hansa.deploy.kit import COORDINATOR, Endpoint
from hansa.deploy.nats_config import NATS
from hansa.deploy.network.address import Address
from hansa.deploy.plan import AUTHORITY, Plan, PlannedNode
from hansa.privacy.policy.proposal import policy_template

PORT = 4222
RESERVED = {COORDINATOR: "the coordinator's kit", AUTHORITY: "the authority's folder", NATS: "the broker's folder"}


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
