"""A node answers requests. A federation is a node that asks other nodes.

`InnerNode` is that federation: the root of a run, a region of a tree, and a region's process in another organisation.
To its parent it is a node like any other; of its children it asks what it was asked. A silo (client/silo.py) answers
the same requests from its own data, so flat federated learning and federations of federations are one recursion.

Without a ``hierarchy`` slot an inner node averages its children (the root alone has a server optimizer) and answers
with how far the mean has moved. With one, it has a model of its own (hierarchy.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic
from typing import Any, Protocol

from hansa.core import region_rounds
from hansa.core.downlink import PartialDownlink
from hansa.core.encoded_downlink import EncodedDownlink
from hansa.core.exchange import KnowledgeExchange
from hansa.core.factors import FactorNames, FactorPart
from hansa.core.hierarchy import (
    SLOT,
    Adopted,
    KeyLayers,
    LayerSharing,
    LayerState,
    adopt_parent,
    own_model,
    pack,
    to_keep,
    unpack,
)
from hansa.core.knowledge import Sizes
from hansa.core.messages import (
    ArrivalOrder,
    BelowPart,
    DataCard,
    Evaluate,
    Failure,
    LayersPart,
    NodeId,
    Reply,
    Request,
    Scores,
    Train,
    Update,
    VocabularyCounts,
)
from hansa.core.method import Hierarchy, Method, Residual
from hansa.core.participation import Child, deadline_of
from hansa.core.round import Record, RoundPart, Server, Turn, federated_round, summed
from hansa.core.shared_state import SharedStatePart, SharedValue
from hansa.core.state import HIERARCHY, SERVER, SHARED, ServerState, StateStore
from hansa.core.tensors import Tensors

IN_TIME = 0.9  # of the time a parent gives: the rest is for what is left to do when the children have answered
CHILDREN = "children"  # slot of an inner node's stored state


class Node(Protocol):
    """Anything that answers requests."""

    def answer(self, request: Request) -> Reply:
        """The reply; a `Failure` where the node has none."""


@dataclass(frozen=True)
class OwnTree:
    """State of an inner node whose method has a ``hierarchy``, so that every node keeps its own model.

    An inner node of a plain tree of regions has none.
    """

    keys: KeyLayers
    start: Tensors
    store: StateStore
    own: Child | None = None  # the node's data, if it holds any; the link reaches it under the node's name
    mixture: bool = False  # that data is its descendants', so scores on it would count twice


@dataclass(frozen=True)
class InnerNode:
    """A node with children; see the module."""

    server: Server
    rounds: int = 1  # among its children, for one request of its parent
    tree: OwnTree | None = None
    sizes: Callable[[], Sizes] | None = None  # what exchanged knowledge is checked by
    factors: Callable[[], Sequence[FactorNames]] | None = None  # the adapted layers, where a rule combines products
    store: StateStore | None = None  # of an asynchronous node below the root (region_rounds.py)
    masking: Callable[[], RoundPart] | None = None  # makes the part of a round that aggregates securely

    @property
    def name(self) -> NodeId:
        """The node's name."""
        return self.server.name

    @property
    def method(self) -> Method:
        """The method that its children follow."""
        return self.server.method

    @property
    def hierarchy(self) -> Hierarchy:
        """How models are combined, where every node has one."""
        assert self.method.hierarchy is not None
        return self.method.hierarchy

    @cached_property
    def steps(self) -> int:
        """Sequential steps of one round: children work at the same time."""
        own = self.tree.own.steps if self.tree is not None and self.tree.own is not None else 0
        below = max(child.steps for child in self.server.children.values())
        return (
            own + below
            if self.method.hierarchy is not None and self.hierarchy.order == "sequential"
            else max(own, below)
        )

    # ── rounds ────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, model: Tensors) -> ServerState:
        """The state before the first round that starts from ``model``."""
        moving = self.tree.keys.backbone if self.tree is not None else model.layout
        slots: dict[str, Any] = {SERVER: self.method.server.begin(moving)}
        if self.method.shared_state is not None:
            slots[SHARED] = SharedValue(self.method.shared_state.begin(moving))
        return ServerState(model, {slot: value for slot, value in slots.items() if value is not None})

    def round(
        self, state: ServerState, turn: Turn, residuals: Sequence[Residual] = (), *more: RoundPart
    ) -> tuple[Record, list[Residual]]:
        """One round among the children; and the residuals that go up, where every node has a model of its own."""
        parts, layers = self._parts(residuals)
        record = federated_round(self.server, state, turn, [*parts, *more])
        forwards = layers is not None and not record.failed and self.masking is None
        return record, layers.upwards if layers is not None and forwards else []

    def root_round(self, state: ServerState, durable: int, *more: RoundPart) -> Record:
        """The next round of the root. What its children pass up is routed down again in the round after it.

        ``more``: parts of the round beside those of the method.
        """
        number, rounds = state.round + 1, self.server.settings.rounds
        if self.tree is None:
            return self.round(state, Turn(number, durable), (), *more)[0]
        turn = Turn(number, durable, state.round * self.steps, rounds * self.steps)
        before: LayerState = state.slots.get(HIERARCHY) or LayerState()
        record, upwards = self.round(state, turn, unpack(before.waiting, self.tree.keys)[0], *more)
        if not record.failed:
            state.slots[HIERARCHY] = replace(state.slots[HIERARCHY], waiting=pack(upwards))
        return record

    def _parts(self, residuals: Sequence[Residual]) -> tuple[list[RoundPart], LayerSharing | None]:
        """The optional parts of this method's rounds."""
        method, parts, layers = self.method, list[RoundPart](), None
        if self.tree is not None:
            # A residual reaches one child alone, and under masks all children must start from the same layers.
            routed = residuals if self.masking is None else ()
            layers = LayerSharing(self.hierarchy, self.tree.keys, self.tree.own, routed)
            parts.append(layers)
        if method.upload.both_ways:
            parts.append(PartialDownlink(differences=method.overlaps))
        if method.download:
            parts.append(EncodedDownlink(method.download))
        if method.exchange is not None:
            parts.append(KnowledgeExchange(method.exchange, self.sizes))
        if method.shared_state is not None:
            parts.append(SharedStatePart(method.shared_state))
        if method.factors is not None and self.factors is not None:
            parts.append(FactorPart(method.factors, self.factors()))
        if self.masking is not None:
            parts.append(self.masking())
        return parts, layers

    # ── requests of the parent ────────────────────────────────────────────────────────────────────────────────────

    def answer(self, request: Request) -> Reply:
        """The children's replies as one."""
        match request:
            case Train():
                return self.train(request)
            case Evaluate():
                return self._evaluate(request)
            case _:
                return gather(self.name, self.server, request)

    def train(self, request: Train) -> Reply:
        """Run rounds among the children from the parent's model; answer with how far they led from it."""
        adopted, state = self._adopt(request)
        residuals = adopted.residuals if adopted is not None else []
        upwards, records = list[Residual](), list[Record]()
        limit = request.subtree.time_limit if request.subtree is not None else 0.0
        end = monotonic() + IN_TIME * limit if limit else None
        for number in range(1, self.rounds + 1):
            if records and end is not None and monotonic() > end:
                break  # what was done so far is worth more than nothing
            turn = self._turn(request, number, end)
            record, up = self.round(state, turn, residuals)
            if self.store is not None:
                region_rounds.keep(self.store, record, state, self.server.children, turn.durable)
            if record.failed and records and (self.store is not None or (end is not None and monotonic() > end)):
                break
            if record.failed:
                return Failure(f"region '{self.name}': {record.failed}")
            residuals, upwards = [], upwards + up  # each is routed once
            records.append(record)
        if self.tree is not None:
            self._keep(request, state)
        return self._reply(request, state.model, records, upwards, adopted)

    def _turn(self, request: Train, number: int, end: float | None) -> Turn:
        """The node's own ``number``-th round for a request."""
        window = request.schedule
        begin, total = (window.begin + (number - 1) * self.steps, window.total) if window is not None else (0, 0)
        own = (request.round - 1) * self.rounds + number
        live = self.store is not None and self.server.link.posting is not None  # a virtual clock repeats itself
        order = region_rounds.recorded(self.store, own) if self.store is not None and live else ()
        return Turn(own, request.durable * self.rounds, begin, total, end, order)

    def _adopt(self, request: Train) -> tuple[Adopted | None, ServerState]:
        """Where the rounds begin: at the parent's model, or at the node's own after it took in the parent's."""
        if self.tree is None:
            state = self.begin(request.model.copy())
            if self.store is not None:
                region_rounds.recall(self.store, state, (request.round - 1) * self.rounds + 1)
            return None, state
        tree, states = self.tree, self.tree.store.recall(request.round)
        adopted = adopt_parent(self.name, self.hierarchy, tree.keys, states, lambda: tree.start, request, leaf=False)
        state = self.begin(adopted.model)
        if SERVER in state.slots:
            state.slots[SERVER] = states.get(SERVER, type(state.slots[SERVER])) or state.slots[SERVER]
        state.slots[HIERARCHY] = states.get(CHILDREN, LayerState) or LayerState()
        return adopted, state

    def _keep(self, request: Train, state: ServerState) -> None:
        """Store the node's model, its server optimizer's state and its children's key layers."""
        assert self.tree is not None
        kept: dict[str, Any] = {
            SLOT: to_keep(self.tree.keys, self.hierarchy, state.model, request),
            CHILDREN: state.slots[HIERARCHY],
        }
        if SERVER in state.slots:
            kept[SERVER] = state.slots[SERVER]
        self.tree.store.keep(request.round, kept, request.durable)

    def _reply(
        self, request: Train, model: Tensors, records: list[Record], upwards: list[Residual], adopted: Adopted | None
    ) -> Update:
        """All rounds of the node as one update."""
        given = [u for record in records for u in record.updates.values()]
        failures = {node: reason for record in records for node, reason in record.failures.items()}
        orders = [ArrivalOrder(self.name, one.round, tuple(one.arrivals)) for one in records if one.arrivals]
        for part in (update.below for update in given if update.below is not None):
            failures |= part.failures
            orders += part.arrivals
        return Update(
            gradient=self._moved(request.model, model, records),
            samples=sum(u.samples for u in records[-1].updates.values()),
            seen=sum(u.seen for u in given),
            steps=sum(u.steps for u in given),
            loss=sum(u.loss * u.samples for u in given) / max(1, sum(u.samples for u in given)),
            seconds=sum(u.seconds for u in given),
            below=BelowPart(
                failures,
                summed(*(record.bytes("sent", self.name) for record in records)),
                summed(*(record.bytes("received", self.name) for record in records)),
                tuple(orders),
            ),
            layers=self._layers(records, upwards, adopted) if adopted is not None else None,
        )

    def _moved(self, received: Tensors, model: Tensors, records: list[Record]) -> Tensors:
        """How far the rounds led from the model that was received, for the tensors that some child sent."""
        layout = received.layout
        gradient = Tensors(layout, received.flat - model.only(layout.names).flat)
        if self.tree is not None:
            return gradient
        return gradient.only({name for record in records for one in record.tensors.values() for name in one.names})

    def _layers(self, records: list[Record], upwards: list[Residual], adopted: Adopted) -> LayersPart:
        attention = {f"down {self.name}": adopted.attention} if adopted.attention else {}
        refused = {self.name: adopted.refused} if adopted.refused else {}
        for record in records:
            attention |= record.attention
            refused |= record.refused
        return LayersPart(pack(upwards), attention, refused)

    # ── evaluation ────────────────────────────────────────────────────────────────────────────────────────────────

    def own_model(self, round: int) -> Tensors:
        """The node's own model after a round of its parent, where every node has one."""
        assert self.tree is not None
        tree = self.tree
        return own_model(tree.store.recall(round + 1), lambda: tree.start)

    def evaluation_asks(self, request: Evaluate, own: Callable[[], Tensors]) -> dict[NodeId, Request]:
        """Whom an evaluation is asked of: the children and, where it does not count twice, the node's own data.

        ``own``: the node's own model, asked for where every node scores its own.
        """
        asks: dict[NodeId, Request] = dict.fromkeys(self.server.children, request)
        if self.tree is not None and self.tree.own is not None:
            if request.by_node:
                asks[self.name] = replace(request, model=own())
            elif not self.tree.mixture:
                asks[self.name] = request
        return asks

    def _evaluate(self, request: Evaluate) -> Reply:
        """The scores of those that could give them, added up."""
        below = replace(request, round=request.round * self.rounds)
        asks = self.evaluation_asks(below, lambda: self.own_model(request.round))
        deadline = deadline_of(self.server.settings.participation)
        replies = [answer.reply for answer in self.server.link.ask(asks, deadline)]
        given = [reply for reply in replies if isinstance(reply, Scores)]
        if not given:
            reasons = [reply.reason for reply in replies if isinstance(reply, Failure)]
            return Failure(f"region '{self.name}': {reasons[0] if reasons else 'no node below it sent scores'}")
        return merge(given)


def gather(name: NodeId, server: Server, request: Request, others: Sequence[NodeId] = ()) -> Reply:
    """The replies of all children, and of ``others``, as one; a `Failure` if any is missing."""
    asks = dict.fromkeys([*server.children, *others], request)
    replies = [answer.reply for answer in server.link.ask(asks, None)]
    reasons = [reply.reason for reply in replies if isinstance(reply, Failure)]
    return Failure(f"region '{name}': {reasons[0]}") if reasons else merge(replies)


def merge(replies: Sequence[Reply]) -> Reply:
    """Replies of several nodes as if one had given them."""
    first, *rest = replies
    for other in rest:
        match first, other:
            case Scores(), Scores():
                first = first + other
            case VocabularyCounts(), VocabularyCounts():
                pieces = summed(first.pieces, other.pieces)
                labels = tuple(sorted({*first.labels, *other.labels}))
                first = VocabularyCounts(pieces, labels, first.withheld + other.withheld)
            case DataCard(), DataCard():
                groups = {
                    split: summed(first.groups.get(split, {}), other.groups.get(split, {}))
                    for split in ("train", "valid", "test")
                }
                first = DataCard(groups, first.per_round + other.per_round, first.problems + other.problems)
            case _:
                raise TypeError(f"cannot merge {type(first).__name__} with {type(other).__name__}")
    return first
