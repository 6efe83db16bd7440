"""Questions about the tree of a federation file: which nodes hold data, which are private."""

from hansa.config.federation import Federation
from hansa.config.nodes import ROOT, Holder, Node, pooled, walk
from hansa.config.sections import Privacy


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
