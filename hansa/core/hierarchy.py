"""Trees of models: what a round adds where every node has a model of its own (WorldLM's Algorithm 1, line by line).

A node's model is a backbone, which is shared, and key layers, which are combined by the method's ``hierarchy`` slot
(methods/worldlm.py has the paper's equations; its baselines fill the slot differently). `LayerSharing` is the part of a
round that does this at an inner node; `adopt_parent` is what every node does first with the model of its parent.

    1 WorldLMFit   InnerNode.train, Silo.train     8 recurse              `Train` requests over the link
    2 AggParent    adopt_parent                 9–11 move the backbone    aggregator and server slots
    4 ClientOpt    LayerSharing.prepare        12–14 merge key layers     hierarchy.merge
    6 RouteResiduals  hierarchy.route             15 PartResiduals        hierarchy.select_residuals
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import monotonic

import torch
from torch import Tensor

from hansa.core.link import Answer
from hansa.core.messages import Failure, LayersPart, NodeId, StepWindow, SubtreePart, Train, Update, no_tensors
from hansa.core.method import Attention, Hierarchy, Layers, Residual
from hansa.core.participation import Assignment, Child
from hansa.core.round import Record, Round, RoundPart, admit, decoded
from hansa.core.state import HIERARCHY, SlotStates
from hansa.core.tensors import Layout, Tensors, is_finite

NO_TIME_LEFT = 1e-3  # seconds: 0 would say that there is no deadline
SLOT = "hierarchy"  # of a node's stored state


@dataclass(frozen=True)
class KeyLayers:
    """Which tensors of a model form its key layers; the others are the backbone."""

    layout: Layout
    layers: Mapping[str, tuple[str, ...]]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The tensors of all key layers."""
        return tuple(name for names in self.layers.values() for name in names)

    @cached_property
    def backbone(self) -> Layout:
        """The tensors that are in no key layer."""
        inside = set(self.names)
        return self.layout.only([name for name in self.layout.names if name not in inside])

    @cached_property
    def flat(self) -> Layout:
        """Key layers as one vector each."""
        spans = self.layout.spans
        sizes = [sum(spans[n].stop - spans[n].start for n in names) for names in self.layers.values()]
        return Layout(tuple(self.layers), tuple((size,) for size in sizes))

    def read(self, model: Tensors) -> dict[str, Tensor]:
        """The key layers of a model, each as a flat copy."""
        spans = model.layout.spans
        return {layer: torch.cat([model.flat[spans[n]] for n in names]) for layer, names in self.layers.items()}

    def write(self, model: Tensors, layers: Layers) -> None:
        """Overwrite the key layers of a model."""
        for layer, names in self.layers.items():
            spans = [model.layout.spans[n] for n in names]
            parts = torch.split_with_sizes(layers[layer], [span.stop - span.start for span in spans])
            for span, part in zip(spans, parts, strict=True):
                model.flat[span].copy_(part)


@dataclass(frozen=True)
class OwnModel:
    """What a node of a tree keeps between rounds.

    Its model and, where layers are compared by their moves, its parent's.
    """

    model: Tensors
    parent: Tensors | None = None  # the key layers of the parent, as they came last


@dataclass(frozen=True)
class LayerState:
    """What an inner node remembers: its children's key layers when they last came; at the root, residuals to route."""

    children: dict[NodeId, Tensors] = field(default_factory=dict)
    waiting: Tensors = field(default_factory=no_tensors)


# ── residuals on their way ────────────────────────────────────────────────────────────────────────────────────────


def pack(residuals: Sequence[Residual]) -> Tensors:
    """Residuals as they travel: one tensor each, named ``NUMBER|LAYER|ORIGIN``."""
    return Tensors.of({f"{i}|{r.layer}|{r.origin}": r.values for i, r in enumerate(residuals)})


def unpack(packed: Tensors, keys: KeyLayers) -> tuple[list[Residual], str]:
    """The residuals that fit the receiver's model, and why others do not."""
    found, reason = [], ""
    for name, values in packed.named().items():
        _, layer, origin = (*name.split("|"), "", "")[:3]
        if layer not in keys.layers:
            reason = (
                f"a residual of {origin or 'an unnamed node'} is for layer '{layer}', which is not a key layer here"
            )
        elif tuple(values.shape) != keys.flat.shape(layer) or not is_finite(values):
            reason = f"a residual of {origin} for {layer} does not fit the layer, or is not finite"
        else:
            found.append(Residual(layer, origin, values.clone()))
    return found, reason


# ── every node, first ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Adopted:
    """A node's model after it took in its parent's, its attention weights, and what it did not accept."""

    model: Tensors
    attention: Attention
    residuals: list[Residual]
    refused: str


def own_model(states: SlotStates, start: Callable[[], Tensors]) -> Tensors:
    """A node's own model as it stored it; before that, its ``start``."""
    stored = states.get(SLOT, OwnModel)
    return stored.model if stored is not None else start()


def adopt_parent(
    name: NodeId,
    hierarchy: Hierarchy,
    keys: KeyLayers,
    states: SlotStates,
    start: Callable[[], Tensors],
    request: Train,
    leaf: bool,
) -> Adopted:
    """The parent's backbone, and the node's key layers after attention to the parent's and, at a leaf, to residuals.

    ``start`` reads the model that the node begins from, which may be a folder of its own.
    """
    assert request.subtree is not None
    residuals, refused = unpack(request.subtree.residuals, keys)
    stored = states.get(SLOT, OwnModel)
    before = stored.model if stored is not None else start()
    model, own = before.copy(), keys.read(before)
    model.write(request.model)
    if not hierarchy.keys_travel:
        return Adopted(model, {}, [], refused)
    received = keys.read(request.model)
    base = own  # rules that compare layers as they are do not look at it
    if hierarchy.compares_moves:
        known = stored.parent if stored is not None else None
        base = known.named() if known is not None else keys.read(start())
    others: dict[str, Layers] = {request.subtree.parent: received}
    for number, residual in enumerate(residuals if leaf else ()):
        others[f"{residual.origin} (residual {number + 1})"] = {residual.layer: residual.values}
    new, weights = hierarchy.adopt(own, others, base)
    keys.write(model, new)
    named = {layer: {who or name: share for who, share in shares.items()} for layer, shares in weights.items()}
    return Adopted(model, named, residuals, refused)


def to_keep(keys: KeyLayers, hierarchy: Hierarchy, model: Tensors, request: Train) -> OwnModel:
    """What a node stores of its model after a round."""
    return OwnModel(model, Tensors.of(keys.read(request.model)) if hierarchy.compares_moves else None)


def layers_part(adopted: Adopted, name: NodeId, private: bool) -> LayersPart:
    """What a leaf reports about its key layers.

    Its attention weights follow from its own layers, which no noise covers: a private leaf does not report them.
    """
    told = {} if private or not adopted.attention else {f"down {name}": adopted.attention}
    return LayersPart(attention=told, refused={name: adopted.refused} if adopted.refused else {})


# ── an inner node's round ─────────────────────────────────────────────────────────────────────────────────────────


class LayerSharing(RoundPart):
    """Lines 4 to 15 of Algorithm 1, as far as they are not those of any other round."""

    def __init__(self, hierarchy: Hierarchy, keys: KeyLayers, own: Child | None, residuals: Sequence[Residual]) -> None:
        """``own``: the node's data, if it holds any; ``residuals``: those to route in this round."""
        self.hierarchy, self.keys, self.own, self.residuals = hierarchy, keys, own, residuals
        self.upwards: list[Residual] = []  # after the round: what goes up, or at the root down again
        self._keys: dict[NodeId, dict[str, Tensor]] = {}  # each member's key layers, as they came
        self._found: list[Residual] = []
        self._extended: dict[int, Train] = {}

    def prepare(self, round: Round) -> None:
        """Line 4, training on the node's own data; line 6, routing residuals."""
        self._round, self._name, keys = round, round.server.name, self.keys
        self._base = keys.read(round.state.model)
        round.start = round.state.model.copy()
        round.expected, round.aggregated = keys.layout, keys.backbone
        round.partial = not self.hierarchy.keys_travel
        self._sequential = self.hierarchy.order == "sequential"
        self._trained = self._train_own(round) if self.own is not None and self._sequential else None
        self._state: LayerState = round.state.slots.get(HIERARCHY) or LayerState()
        self._routed = self._route(round.record.cohort)
        if self.own is not None and (not self._sequential or self.hierarchy.filter is not None):
            round.plan.waves[0].append(Assignment(self._name, round.number, round.turn.durable))
        self._deadline = round.deadline()

    def extend(self, assignment: Assignment, request: Train) -> Train:
        """Lines 7 and 8. Children that get the same are asked with the same request, so that it is written once."""
        if assignment.node == self._name:
            return replace(request, schedule=self._window(0), reference=self._sequential)
        if id(request) not in self._extended:
            after_own = self.own.steps if self.own is not None and self._sequential else 0
            limit = 0.0 if self._deadline is None else max(NO_TIME_LEFT, self._deadline - monotonic())
            self._extended[id(request)] = replace(
                request,
                model=request.model if self.hierarchy.keys_travel else request.model.only(self.keys.backbone.names),
                schedule=self._window(after_own),
                subtree=SubtreePart(self._name, no_tensors(), limit),
            )
        common = self._extended[id(request)]
        routed = self._routed.get(assignment.node)
        if not routed:
            return common
        assert common.subtree is not None
        return replace(common, subtree=replace(common.subtree, residuals=pack(routed)))

    def sift(self, answers: Iterator[Answer]) -> Iterator[Answer]:
        """Replace the answers of children that the filter does not trust, or whose key layers do not fit."""
        if self._round.masked and self.hierarchy.keys_travel:
            answers = map(self._with_keys, answers)
        if self.hierarchy.filter is None:
            return answers
        opened = (replace(answer, reply=decoded(answer.reply, self.keys.layout)) for answer in answers)
        return self.hierarchy.filter.sift(opened, self._name, not self._sequential, self.keys.names)

    def accept(self, assignment: Assignment, update: Update) -> Update:
        """Keep the key layers and residuals of an update, and pass its backbone on to the aggregator."""
        keys, record, gradient = self.keys, self._round.record, update.gradient
        layers = update.layers or LayersPart()
        if self._round.masked:  # the backbone is under masks, and key layers came beside it
            gradient = Tensors.zeros(keys.layout)
            if layers.keys.layout.names:
                keys.write(gradient, layers.keys.named())
        elif gradient.layout != keys.layout:  # what a child did not send has not moved
            gradient = Tensors.zeros(keys.layout)
            gradient.write(update.gradient)
        began = keys.read(self._round.start if assignment.model is None else assignment.model)
        moved = keys.read(gradient)
        theirs = {layer: began[layer].sub_(moved[layer]) for layer in began}
        self._keys[assignment.node] = self._damped(theirs, assignment.staleness)
        found, reason = unpack(layers.residuals, keys)
        self._found += [replace(r, origin=f"{assignment.node}/{r.origin}") for r in found]
        record.attention |= layers.attention
        record.refused |= layers.refused | ({assignment.node: reason} if reason else {})
        return update if self._round.masked else replace(update, gradient=gradient.only(keys.backbone.names))

    def finish(self, round: Round) -> None:
        """Lines 12 to 15: merge the key layers, and choose residuals."""
        keys, model, record = self.keys, round.start, round.record
        if isinstance(self._trained, Update):
            record.updates[self._name] = self._trained
        elif isinstance(self._trained, Failure):
            record.failures[self._name] = f"its own training: {self._trained.reason}"
        members = {self._name: keys.read(model)} | self._keys  # trained beside its children, its own are among them
        new, attention = self.hierarchy.merge(self._name, members, self._base)
        keys.write(model, new)
        if attention:
            record.attention[f"up {self._name}"] = attention
        children = {node: layers for node, layers in self._keys.items() if node != self._name}
        self.upwards = self.hierarchy.select_residuals(new, children, self._base) + self._found
        known = self._state.children | {node: Tensors.of(layers) for node, layers in children.items()}
        round.state.slots[HIERARCHY] = replace(self._state, children=known)

    def _with_keys(self, answer: Answer) -> Answer:
        """Under masks, the answer of a child if its key layers fit; else a failure, as if it had dropped out."""
        reply, keys = answer.reply, self.keys
        if not isinstance(reply, Update) or answer.node == self._name:
            return answer
        sent = (reply.layers or LayersPart()).keys
        if sent.layout == keys.flat and is_finite(sent.flat):
            return answer
        return replace(answer, reply=Failure("its key layers do not fit those of the model, or are not finite"))

    def _train_own(self, round: Round) -> Update | Failure:
        """Train on data of its own, in place; where that fails, the model stays."""
        probe = Record(round.number, [self._name])
        request = replace(Train(round.number, round.start, round.turn.durable), schedule=self._window(0))
        for answer in round.link.ask({self._name: request}, round.turn.end):
            update = admit(answer, round.start.layout, probe)
            if update is not None:  # while the link still holds its tensors
                round.start.flat.sub_(update.gradient.flat)
        return probe.updates.get(self._name) or Failure(probe.failures[self._name])

    def _window(self, offset: int) -> StepWindow | None:
        turn = self._round.turn
        return StepWindow(turn.begin + offset, turn.total) if turn.total else None

    def _route(self, cohort: Sequence[NodeId]) -> dict[NodeId, list[Residual]]:
        """By what the children's key layers were when they last came; before that, they have their parent's."""
        if not self.residuals:
            return {}
        known = {name: self._state.children.get(name) for name in cohort}
        children = {name: tensors.named() if tensors is not None else self._base for name, tensors in known.items()}
        return self.hierarchy.route(self.residuals, children, self._base)

    def _damped(self, theirs: dict[str, Tensor], staleness: int) -> dict[str, Tensor]:
        """K_c ← K_q + s(τ)·(K_c − K_q): key layers that come late count less, as backbones do."""
        if not staleness:
            return theirs
        share, here = self._round.server.method.participation.damping(staleness), self.keys.read(self._round.start)
        return {layer: torch.lerp(here[layer], values, share) for layer, values in theirs.items()}
