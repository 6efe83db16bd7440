"""Baselines of a tree of models, on the same nodes, data and sequential steps; see `hansa compare`.

    flat      all nodes side by side below one server, with its momentum      (Iacob et al., 2024, Table 1, "FL")
    pooled    all data at one node, trained as a node of the tree trains      (the same, "Centralized")

The nodes of a tree train one after another, from the root to the leaves; nodes side by side train at the same time. So
a baseline has one round for every node on the longest path from the root to a leaf. (`central` of
`hansa.runs.baselines` differs: it trains with the ``baseline`` section.)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import ROOT, Node, pooled, walk
from hansa.config.sections import Server
from hansa.config.tree import holders, is_tree
from hansa.core.errors import ConfigError
from hansa.core.method import Hierarchy
from hansa.core.settings import Named

POOL = "all"
MOMENTUM = Server(optimizer="momentum", lr=0.2, momentum=0.9)


@dataclass(frozen=True)
class _LongestPath:
    """The longest path from the root to a leaf, in rounds of single nodes."""

    sequential: bool

    def below(self, silos: Mapping[str, Node]) -> int:
        """The longest path below a node, over all of its children."""
        return max(self.of(node.silos, node.holds, node.rounds) for node in silos.values())

    def of(self, silos: Mapping[str, Node], holds: bool, rounds: int) -> int:
        """The longest path from a node with these children on, in all of its rounds; 1 for a leaf."""
        if not silos:
            return 1
        own, below = int(holds), self.below(silos)
        return rounds * (own + below if self.sequential else max(own, below))


def stages(federation: Federation, tree: Hierarchy) -> int:
    """The rounds of a baseline for one round of the tree."""
    return _LongestPath(tree.order == "sequential").of(federation.silos, federation.root is not None, 1)


def flat(federation: Federation) -> Federation:
    """Every node with data becomes a silo below one server; a mixture gets the sources of its silos."""
    nodes = dict(walk(federation.silos))
    silos = {}
    for name, holder in holders(federation).items():
        leaf = nodes[name] if name in nodes and not nodes[name].silos else None
        silos[POOL if name == ROOT else name] = leaf or Node(sources=holder.sources)
    return _arranged(federation, silos, MOMENTUM)


def pool(federation: Federation) -> Federation:
    """All data at one node; raises `ConfigError` where a silo has a policy, which cannot allow that."""
    guarded = next((name for name, node in walk(federation.silos) if node.policy is not None), None)
    if guarded is not None:
        raise ConfigError(
            f"--methods: 'pooled' moves all data to one node, which the policy of silo '{guarded}' cannot allow; "
            f"leave 'pooled' out, or remove silos.{guarded}.policy"
        )
    own = federation.root.sources if federation.root else ()
    return _arranged(federation, {POOL: Node(sources=(*own, *pooled(federation.silos)))}, None)


TREE_BASELINES: dict[str, Callable[[Federation], Federation]] = {"flat": flat, "pooled": pool}


def _arranged(federation: Federation, silos: dict[str, Node], server: Server | None) -> Federation:
    tree = build_method(federation).hierarchy
    if tree is None or not is_tree(federation):
        raise ConfigError(
            "--methods: 'flat' and 'pooled' are baselines of a tree of models, and the file has none; it needs regions "
            "and a method for trees (worldlm, hierfavg, fedper)"
        )
    times = stages(federation, tree)
    changes: dict[str, Any] = {
        "silos": silos,
        "root": None,
        "rounds": times * federation.rounds,
        "method": Named(name="hierfavg"),
        "server": server,
        "evaluate": federation.evaluate.model_copy(update={"every": times * federation.evaluate.every}),
        "checkpoint": federation.checkpoint.model_copy(update={"every": times * federation.checkpoint.every}),
    }
    return federation.model_copy(update=changes)
