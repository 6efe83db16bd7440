"""Makes the plan of a federation (plan.py) from its federation file."""

from collections.abc import Mapping, Sequence

from hansa.config.federation import Federation
from hansa.config.nodes import Node, walk
from hansa.core.errors import UserError, did_you_mean
from hansa.data.source import Source
from hansa.deploy.kit import COORDINATOR, Endpoint
from hansa.deploy.nats_config import NATS
from hansa.deploy.network.address import parse_address, show_address
from hansa.deploy.plan import AUTHORITY, Plan, PlannedNode
from hansa.privacy.policy.proposal import policy_template

PORT = 443  # of addresses that name none
FIRST_LOCAL_PORT = 8443  # of kits without --address, for rehearsals on one machine
RESERVED = {COORDINATOR: "the coordinator's kit", AUTHORITY: "the authority's folder", NATS: "the broker's folder"}


def make_plan(federation: Federation, addresses: Mapping[str, str], nats: Sequence[str] = ()) -> Plan:
    """The plan of a federation file.

    ``addresses``: node → HOST[:PORT][,HOST[:PORT]…], for the coordinator and regions; ``nats``: existing NATS servers.
    Raises `UserError` if a name is reserved or an address malformed.
    """
    parents = dict.fromkeys(federation.silos, COORDINATOR)
    parents |= {child: name for name, node in walk(federation.silos) for child in node.silos}
    for name in RESERVED.keys() & parents.keys():
        raise UserError(f"a silo has the name '{name}', which is reserved for {RESERVED[name]}: give it another name")
    kinds = {name: "region" if node.silos else "silo" for name, node in walk(federation.silos)}
    endpoints = _endpoints([COORDINATOR, *(n for n, kind in kinds.items() if kind == "region")], addresses, nats)
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


def address_list(option: str, text: str, default: int | None = None) -> tuple[str, ...]:
    """The addresses in HOST:PORT,HOST:PORT…; raises `UserError`, with the option's name, if it is something else.

    ``default``: the port of those that name none.
    """
    try:
        return tuple(show_address(parse_address(one.strip(), default)) for one in text.split(","))
    except ValueError as error:
        form = "HOST:PORT" if default is None else "HOST or HOST:PORT"
        raise UserError(f"{option} {text!r}: {error}; write it as {form}, several with commas between") from None


def _endpoints(serving: list[str], addresses: Mapping[str, str], nats: Sequence[str]) -> dict[str, Endpoint]:
    """Where the coordinator and the regions are reached; by default on this machine."""
    unknown = set(addresses) - set(serving)
    if unknown:
        raise UserError(f"--address names '{min(unknown)}', which has no children; {did_you_mean('', serving)}")
    stated = {n: addresses.get(n, f"localhost:{FIRST_LOCAL_PORT + i}") for i, n in enumerate(serving)}
    return {
        n: Endpoint(node=n, addresses=address_list("--address", text, PORT), nats=tuple(nats))
        for n, text in stated.items()
    }


def _without_paths(node: Node) -> tuple[Source, ...]:
    """The format of a silo's data, without its paths, which only the silo knows."""
    return tuple(source.model_copy(update={"train": "", "valid": None, "test": None}) for source in node.sources)
