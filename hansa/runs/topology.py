"""The tree of a federation file as inner nodes: which nodes stand below which, each with a link to its children."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any

from hansa.client.host import SiloHost
from hansa.client.masking import MaskedRegion, masking_client
from hansa.client.state import StateFolder
from hansa.config.asynchrony import region_rule
from hansa.config.federation import Federation
from hansa.config.nodes import ROOT, Node, repeats, walk
from hansa.config.tree import is_masked, masked_families
from hansa.core.claims import bounded
from hansa.core.errors import ConfigError
from hansa.core.hierarchy import own_model
from hansa.core.inner_node import InnerNode, OwnTree
from hansa.core.link import Link
from hansa.core.messages import DataCard, NodeId, Reply, Request
from hansa.core.method import Hierarchy, Method
from hansa.core.model_parts import parts
from hansa.core.participation import Child, ParticipationRule, PlanContext, RoundSettings, choose, slowest
from hansa.core.round import Server
from hansa.core.schedules import Schedule
from hansa.core.state import ServerState
from hansa.core.tensors import Tensors
from hansa.links.tree import TreeLink
from hansa.methods.fedavg import ServerSgd
from hansa.models import build
from hansa.models.adapt import adapt
from hansa.privacy.secure_aggregation.server import MaskingServer


def build_topology(host: SiloHost, link: Link, cards: Mapping[NodeId, DataCard]) -> InnerNode:
    """The root of the federation file's tree, with everything below it.

    ``link`` reaches every node that holds data; ``cards``: what these nodes hold.
    """
    federation, method = host.runtime.federation, host.runtime.method
    builder = _Builder(host, link, cards, repeats(federation.silos) | {ROOT: 1})
    children, below = builder.children(federation.silos)
    children = bounded(children, federation.participation.max_share)
    name = ROOT if method.hierarchy is not None else federation.name
    server = Server(name, children, below, method, round_settings(federation))
    mixture = federation.root is not None and federation.root.mixture
    return builder.node(server, 1, mixture)


def build_region(
    host: SiloHost, name: NodeId, link: Link, cards: Mapping[NodeId, DataCard]
) -> tuple[Callable[[Request], Reply], Child]:
    """One region by itself, as `hansa serve` runs it: how it answers, and what its parent knows of it.

    ``cards``: its children's and, where it has data, its own.
    """
    node = dict(walk(host.runtime.federation.silos))[name]
    often = {n: replace(card, per_round=node.rounds * card.per_round) for n, card in cards.items()}
    builder = _Builder(host, link, often, dict.fromkeys(cards, node.rounds))
    return builder.region(name, node, {child: builder.child(child) for child in node.silos}, link)


def round_settings(federation: Federation) -> RoundSettings:
    """The settings of the root's rounds."""
    return RoundSettings(
        federation.name,
        federation.seed,
        federation.rounds,
        federation.participation,
        federation.simulate,
        federation.server.schedule if federation.server is not None else Schedule(),
    )


@dataclass(frozen=True)
class _Builder:
    host: SiloHost
    link: Link
    cards: Mapping[NodeId, DataCard]
    times: Mapping[NodeId, int]  # how often each node works in one round of the root

    def children(self, silos: Mapping[NodeId, Node]) -> tuple[dict[NodeId, Child], Link]:
        """The children of a node and the link to them, with regions built below."""
        children: dict[NodeId, Child] = {}
        inner = {}
        for name, node in silos.items():
            if not node.silos:
                children[name] = self.child(name)
            else:
                inner[name], children[name] = self.region(name, node, *self.children(node.silos))
        return children, TreeLink(self.link, inner) if inner else self.link

    def region(
        self, name: NodeId, node: Node, below: Mapping[NodeId, Child], link: Link
    ) -> tuple[Callable[[Request], Reply], Child]:
        """How a region answers, and what its parent knows of it."""
        runtime = self.host.runtime
        method, settings = runtime.method_of(name), self._settings(name, node, runtime.method_of(name))
        method = replace(method, participation=region_rule(runtime.federation, node))
        if method.hierarchy is None:  # it averages, whatever the root does with the result
            method = replace(method, server=ServerSgd())
        below = bounded(below, settings.participation.max_share)
        inner = self.node(Server(name, below, link, method, settings), node.rounds, node.mixture)
        held = self.child(name) if node.holds else Child(0, 0)
        samples = held.samples + sum(child.samples for child in below.values())
        work = held.work + sum(child.work for child in below.values())
        steps = node.rounds * inner.steps if method.hierarchy is not None else 0
        duration = _duration(name, below, settings, node.rounds, method.participation)
        answer = self._masked(name, inner.answer, samples, method)
        return self.host.guarded(name, answer), Child(samples, work, steps, duration, claimed=samples)

    def _masked(
        self, name: NodeId, answer: Callable[[Request], Reply], samples: int, method: Method
    ) -> Callable[[Request], Reply]:
        """A region's answers, its updates under masks if its parent adds up its children so."""
        runtime = self.host.runtime
        settings = runtime.federation.secure_aggregation
        if settings is None or not is_masked(runtime.federation, name):
            return answer
        travel = method.hierarchy is not None and method.hierarchy.keys_travel
        client = masking_client(runtime, name, runtime.folder / "silos" / name, samples, "")
        return MaskedRegion(answer, client, settings, runtime.keys if travel else None).answer

    def node(self, server: Server, rounds: int, mixture: bool) -> InnerNode:
        """An inner node; with a model of its own where the method gives every node one."""
        runtime = self.host.runtime
        tree = None
        if server.method.hierarchy is not None:
            store = StateFolder(runtime.folder / "silos" / server.name / "region")
            own = self.child(server.name) if server.name in self.cards else None
            tree = OwnTree(runtime.keys, runtime.start_of(server.name), store, own, mixture)
        settings = runtime.federation.secure_aggregation
        name = server.name if server.name in runtime.nodes else ""
        if settings is None or name not in masked_families(runtime.federation):
            below_root = name and tree is None and not server.method.participation.synchronous
            works = StateFolder(runtime.folder / "silos" / name / "region") if below_root else None
            return InnerNode(server, rounds, tree, lambda: runtime.sizes, lambda: runtime.factors, works)
        masking = partial(MaskingServer, settings, runtime.distributed)
        return InnerNode(server, rounds, tree, sizes=lambda: runtime.sizes, masking=masking)

    def child(self, name: NodeId) -> Child:
        """What the parent of a node with data knows of it."""
        card, batch = self.cards[name], self.host.runtime.federation.train.batch
        claimed = card.samples()
        if card.inner:
            return Child(claimed, card.per_round, card.steps, claimed=claimed)
        steps = ceil(card.per_round / self.times[name] / batch)
        return Child(claimed, card.per_round, steps, claimed=claimed)

    def _settings(self, name: NodeId, node: Node, method: Method) -> RoundSettings:
        """The settings of a region's rounds: its own participation; schedules go by its own rounds."""
        federation = self.host.runtime.federation
        simulate = federation.simulate
        server = (node.server or federation.server) if method.hierarchy is not None else None
        return RoundSettings(
            federation.name,
            federation.seed,
            federation.rounds * repeats(federation.silos)[name],
            node.participation or federation.participation,
            simulate.model_copy(update={"arrivals": simulate.region_arrivals.get(name, [])}),
            server.schedule if server is not None else Schedule(),
        )


def _duration(
    name: NodeId, below: Mapping[NodeId, Child], settings: RoundSettings, rounds: int, rule: ParticipationRule
) -> Callable[[int], float]:
    """Virtual seconds of a region's replies: its rounds, each as long as the slowest of those that take part.

    The rounds of an asynchronous region are planned ahead, without any work, by its own virtual clock.
    """
    ahead, ends = ServerState(Tensors.of({})), [0.0]

    def duration(number: int) -> float:
        """Virtual seconds of the region's reply ``number``."""
        while not rule.synchronous and len(ends) <= number * rounds:
            rule.plan(PlanContext(name, below, settings, len(ends), 0), ahead)
            ahead.round += 1
            ends.append(ahead.clock)
        if not rule.synchronous:
            return ends[number * rounds] - ends[(number - 1) * rounds]
        own = range((number - 1) * rounds + 1, number * rounds + 1)
        cohorts = {n: choose(below, settings.participation, settings.seed, n, name) for n in own}
        return sum(slowest(below, cohort, n, settings) for n, cohort in cohorts.items())

    return duration


def own_models(host: SiloHost, silos: Mapping[NodeId, Node], round: int) -> Iterator[tuple[NodeId, Tensors]]:
    """Every node's own model after a round of the root: nodes below a region count that region's rounds."""
    runtime = host.runtime
    for name, node in silos.items():
        if node.silos:
            states = StateFolder(runtime.folder / "silos" / name / "region").recall(round + 1)
            yield name, own_model(states, lambda name=name: runtime.start_of(name))  # type: ignore[misc]
            yield from own_models(host, node.silos, round * node.rounds)
        else:
            yield name, host.silo(name).own_model(round)


def check_models(federation: Federation, hierarchy: Hierarchy, auto: str, model: Any) -> None:
    """Refuse key layers that the model does not have, and nodes that bring a model of another architecture."""
    adapted = adapt(model, federation.model, federation.seed)
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    named = parts(adapted)
    hierarchy.keys({name: named[name] for name in trained})
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
