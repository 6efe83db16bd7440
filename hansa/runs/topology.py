"""The tree of a federation file, grown: who stands below whom, each inner node with a link to its children."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from hansa.client.runtime import Runtime
from hansa.client.state import StateStore
from hansa.config.federation import Federation
from hansa.config.nodes import ROOT, Node, repeats, walk
from hansa.core.errors import ConfigError
from hansa.core.hierarchy import MODEL, Region
from hansa.core.inner_node import Federation as Inner
from hansa.core.link import Link
from hansa.core.messages import DataCard, NodeId, Reply, Request
from hansa.core.method import Hierarchy
from hansa.core.model_parts import parts
from hansa.core.participation import Child, choose, together
from hansa.core.tensors import Tensors
from hansa.links.tree import TreeLink
from hansa.models import build
from hansa.models.adapt import adapt


@dataclass(frozen=True)
class Topology:
    """The root's children, the link to them, and on a tree of models the root itself."""

    members: dict[NodeId, Child]
    link: Link
    root: Region | None


def build_topology(runtime: Runtime, link: Link, cards: Mapping[NodeId, DataCard]) -> Topology:
    federation = runtime.federation
    seed = _Seed(runtime, link, cards, repeats(federation.silos) | {ROOT: 1})
    members, below = seed.children(federation.silos)
    if runtime.method.tree is None:
        return Topology(members, below, None)
    held = federation.root
    mixture = held is not None and held.mixture
    return Topology(members, below, seed.region(ROOT, members, below, federation, 1, mixture))


def build_region(
    runtime: Runtime, name: NodeId, link: Link, cards: Mapping[NodeId, DataCard]
) -> tuple[Callable[[Request], Reply], Child]:
    """One region by itself, as `hansa serve` has it; ``cards``: its children's and, where it has data, its own."""
    node = dict(walk(runtime.federation.silos))[name]
    often = {n: replace(card, per_round=node.rounds * card.per_round) for n, card in cards.items()}
    seed = _Seed(runtime, link, often, dict.fromkeys(cards, node.rounds))
    return seed.inner(name, node, {child: seed.member(child) for child in node.silos}, link)


@dataclass(frozen=True)
class _Seed:
    runtime: Runtime
    link: Link
    cards: Mapping[NodeId, DataCard]
    times: Mapping[NodeId, int]  # how often each node works in one round of the root

    def children(self, silos: Mapping[NodeId, Node]) -> tuple[dict[NodeId, Child], Link]:
        """The members of a federation and the link to them, with inner federations grown below."""
        members: dict[NodeId, Child] = {}
        inner = {}
        for name, node in silos.items():
            if not node.silos:
                members[name] = self.member(name)
            else:
                inner[name], members[name] = self.inner(name, node, *self.children(node.silos))
        return members, TreeLink(self.link, inner) if inner else self.link

    def inner(
        self, name: NodeId, node: Node, below: Mapping[NodeId, Child], link: Link
    ) -> tuple[Callable[[Request], Reply], Child]:
        """How an inner node answers, and what its parent knows of it."""
        method = self.runtime.method_of(name)
        settings = _settings(self.runtime.federation, name, node, method.tree is not None)
        held = self.member(name) if node.holds else Child(0, 0)
        answer, steps = Inner(name, below, link, method, settings, node.rounds).answer, 0
        if method.tree is not None:
            region = self.region(name, below, link, settings, node.rounds, node.mixture)
            answer, steps = region.answer, node.rounds * region.steps
        samples = held.samples + sum(m.samples for m in below.values())
        work = held.work + sum(m.work for m in below.values())
        return self.runtime.guarded(name, answer), Child(
            samples, work, steps, False, _lasts(name, below, settings, node)
        )

    def member(self, name: NodeId) -> Child:
        card, batch = self.cards[name], self.runtime.federation.train.batch
        if card.inner:
            return Child(card.samples(), card.per_round, card.steps, False)
        return Child(card.samples(), card.per_round, ceil(card.per_round / self.times[name] / batch))

    def region(
        self,
        name: NodeId,
        members: Mapping[NodeId, Child],
        link: Link,
        settings: Federation,
        rounds: int,
        mixture: bool,
    ) -> Region:
        runtime = self.runtime
        memory = StateStore(runtime.folder / "silos" / name / "region")
        own = self.member(name) if name in self.cards else None
        start = runtime.start_of(name)
        return Region(
            name, members, link, runtime.method_of(name), settings, rounds, runtime.keys, start, memory, own, mixture
        )


def _lasts(name: NodeId, below: Mapping[NodeId, Child], settings: Federation, node: Node) -> Callable[[int], float]:
    """Virtual seconds of a federation's answers: its rounds, each as long as the slowest of those who take part."""

    def lasts(number: int) -> float:
        rounds = range((number - 1) * node.rounds + 1, number * node.rounds + 1)
        cohorts = {n: choose(below, settings.participation, settings.seed, n, name) for n in rounds}
        return sum(together(below, cohort, n, settings) for n, cohort in cohorts.items())

    return lasts


def own_models(runtime: Runtime, silos: Mapping[NodeId, Node], round: int) -> Iterator[tuple[NodeId, Tensors]]:
    """Every node's own model after a round of the root: nodes below a region count that region's rounds."""
    for name, node in silos.items():
        if node.silos:
            memory = StateStore(runtime.folder / "silos" / name / "region").recall(round + 1)
            yield name, Tensors(runtime.keys.layout, memory[MODEL]) if MODEL in memory else runtime.start_of(name)
            yield from own_models(runtime, node.silos, round * node.rounds)
        else:
            yield name, runtime.silo(name).model(round)


def _settings(federation: Federation, name: NodeId, node: Node, tree: bool) -> Federation:
    """The federation's settings as they are in a region: a schedule goes by its own rounds, and unless it has a model
    of its own it averages, whatever the root does with the result."""
    given = {
        "participation": node.participation or federation.participation,
        "server": (node.server or federation.server) if tree else None,
        "rounds": federation.rounds * repeats(federation.silos)[name],
    }
    return federation.model_copy(update=given)


def check_models(federation: Federation, tree: Hierarchy, auto: str, model: Any) -> None:
    """Refuse key layers that the model does not have, and nodes that bring a model of another architecture."""
    adapted = adapt(model, federation.model, federation.seed)
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    named = parts(adapted)
    tree.keys({name: named[name] for name in trained})
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    for name, node in walk(federation.silos):
        if node.model is None:
            continue
        theirs = {n: tuple(p.shape) for n, p in build.load(str(node.model.path), auto).named_parameters()}
        other = next((n for n in {**shapes, **theirs} if shapes.get(n) != theirs.get(n)), None)
        if other is not None:
            raise ConfigError(
                f"silos.{name}.model is of another architecture: {other} is {_shape(theirs.get(other))} there and "
                f"{_shape(shapes.get(other))} in the federation's model; nodes of a tree share one architecture"
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else " × ".join(map(str, shape)) or "a number"
