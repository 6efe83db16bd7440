"""Which inner nodes of a federation file are asynchronous, and what follows for the nodes below them."""

from collections.abc import Mapping
from math import prod

from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import Node, repeats
from hansa.core.participation import ParticipationRule, without_waiting


def region_rule(federation: Federation, region: Node) -> ParticipationRule:
    """How the nodes below a region take part.

    A region is asynchronous if a method of its own says so; one that follows the root's method waits for its nodes.
    """
    method = build_method(federation, region)
    own = region.method is not None and method.hierarchy is None and method.participation.buffer
    return method.participation if own else without_waiting(method.participation)


def rules_above(federation: Federation, name: str) -> list[ParticipationRule]:
    """The participation rules of all inner nodes above a node, the root's first."""
    regions = [region_rule(federation, region) for region in _path(federation.silos, name) or []]
    return [build_method(federation).participation, *regions]


def most_trainings(federation: Federation, name: str, rounds: int) -> int:
    """How often a node trains in ``rounds`` rounds of the root, at most.

    With FedBuff an inner node may take every update of its buffer from the same child, if that is the fastest.
    """
    each = prod(rule.most_per_child for rule in rules_above(federation, name))
    return rounds * repeats(federation.silos).get(name, 1) * each


def _path(silos: Mapping[str, Node], name: str) -> list[Node] | None:
    """The regions above a node; None if it is not among ``silos`` or below them."""
    if name in silos:
        return []
    for node in silos.values():
        if (found := _path(node.silos, name)) is not None:
            return [node, *found]
    return None
