"""The tree as people look at it: who stands below whom, what each node holds, and how often each source is seen.

Iacob et al. (2024), Worldwide Federated Training of Language Models, Appendix A.1.3, effective sampling ratio: a node
draws from its sources in proportion to their size, every node takes as many steps, and averaging divides a node's say
by the number of its siblings. For Bulgarian below a region with Ukrainian below a root with all four languages,

    r_BG = |BG|/Σ all + ½·|BG|/(|UK| + |BG|) + ¼·1
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hansa.config.federation import Federation
from hansa.config.nodes import ROOT, Node


@dataclass(frozen=True)
class Branch:
    """A node, what it trains on itself (samples by source), and the nodes below it."""

    name: str
    held: Mapping[str, int]
    below: tuple["Branch", ...] = ()

    @property
    def samples(self) -> int:
        """The samples that the node trains on itself, or, without data of its own, those below it."""
        return sum(self.held.values()) or sum(branch.samples for branch in self.below)


def outline(federation: Federation, held: Mapping[str, Mapping[str, int]]) -> Branch:
    """The tree of a federation file. ``held``: the samples of every node with data, by source."""
    root = ROOT if federation.root is not None else federation.name
    return Branch(root, held.get(ROOT, {}) if federation.root else {}, _below(federation.silos, held))


def _below(silos: Mapping[str, Node], held: Mapping[str, Mapping[str, int]]) -> tuple[Branch, ...]:
    return tuple(Branch(name, held.get(name, {}), _below(node.silos, held)) for name, node in silos.items())


def ratios(branch: Branch, weighting: Callable[[int], float], say: float = 1.0) -> dict[str, float]:
    """The effective sampling ratio of every source. ``weighting``: a child's weight in the mean, by its samples."""
    found = {source: say * count / branch.samples for source, count in branch.held.items()}
    weights = [weighting(child.samples) for child in branch.below]
    for child, weight in zip(branch.below, weights, strict=True):
        for source, ratio in ratios(child, weighting, say * weight / sum(weights)).items():
            found[source] = found.get(source, 0.0) + ratio
    return found


def drawn(branch: Branch, before: str = "", joint: str = "", further: str = "") -> Iterator[tuple[str, Branch]]:
    """Every node with its name behind the lines that lead to it."""
    yield f"{before}{joint}{branch.name}", branch
    for number, child in enumerate(branch.below):
        last = number == len(branch.below) - 1
        yield from drawn(child, before + further, "└─ " if last else "├─ ", "   " if last else "│  ")
