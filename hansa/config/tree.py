"""Questions about the tree of a federation file: which nodes hold data, which are private, which aggregate securely."""

from collections.abc import Iterator
from dataclasses import dataclass

from hansa.config.federation import Federation
from hansa.config.nodes import ROOT, Holder, Node, pooled, walk
from hansa.config.sections import Privacy
from hansa.core.participation import Participation, cohort_size


def protected(federation: Federation) -> dict[str, Privacy]:
    """The silos whose updates are differentially private."""
    found = {name: node.privacy for name, node in walk(federation.silos) if node.privacy is not None}
    return found if federation.kind == "federated" and federation.rounds else {}


def holders(federation: Federation) -> dict[str, Holder]:
    """Every node that holds data, the root first; of a mixture, its descendants' sources, tagged with their names."""
    top = {ROOT: (federation.root, federation.silos)} if federation.root is not None else {}
    nodes: dict[str, tuple[Holder, dict[str, Node]]] = {**top, **{n: (v, v.silos) for n, v in walk(federation.silos)}}
    found: dict[str, Holder] = {}
    for name, (node, below) in nodes.items():
        if node.holds:
            found[name] = Holder(sources=pooled(below)) if node.mixture else node
    return found


def is_tree(federation: Federation) -> bool:
    """Whether some node of the federation file is a region."""
    return any(node.silos for node in federation.silos.values())


def federated_vocabulary(federation: Federation) -> bool:
    """Whether the tokeniser is built from the silos' word counts."""
    settings = federation.tokenizer
    return settings.kind == "federated" or (
        settings.kind is None and settings.path is None and federation.model.path is None
    )


@dataclass(frozen=True)
class Family:
    """A node with children: the root (without a name) or a region; ``participation``: which children take part."""

    name: str
    children: dict[str, Node]
    participation: Participation

    @property
    def cohort(self) -> int:
        """How many children take part in a round."""
        return min(len(self.children), cohort_size(self.participation, len(self.children)))

    @property
    def has_silos(self) -> bool:
        """Whether a silo stands directly below it."""
        return any(not child.silos for child in self.children.values())


def families(federation: Federation) -> Iterator[Family]:
    """The root and every region, parents before children."""
    yield Family("", federation.silos, federation.participation)
    for name, node in walk(federation.silos):
        if node.silos:
            yield Family(name, node.silos, node.participation or federation.participation)


def masked_families(federation: Federation) -> dict[str, Family]:
    """The inner nodes that add up their children under masks: those with silos, and those with enough regions."""
    settings = federation.secure_aggregation
    if settings is None:
        return {}
    return {one.name: one for one in families(federation) if one.has_silos or one.cohort >= settings.min_cohort}


def is_masked(federation: Federation, name: str) -> bool:
    """Whether the updates of a node, a silo or a region, leave it under masks."""
    return any(name in family.children for family in masked_families(federation).values())


def mixtures(federation: Federation) -> dict[str, dict[str, Node]]:
    """Inner nodes that train on the data of the silos below them → the nodes below."""
    found = {ROOT: federation.silos} if federation.root is not None and federation.root.mixture else {}
    return found | {name: node.silos for name, node in walk(federation.silos) if node.mixture}
