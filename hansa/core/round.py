"""START HERE: one federated round.

1 participation    which children are asked, and from which model each starts              participation.py
2 preparation      what the method does before training: exchange knowledge (exchange.py), train on the node's own data
                   (hierarchy.py), agree on keys for secure aggregation (privacy/secure_aggregation/server.py)
3 local training   every child starts from the model and minimises its objective           client/training.py
4 upload           the pseudo-gradient of the shared tensors, or a part of it, or an encoding   compression.py
5 aggregation      a running weighted sum, or each update by itself for robust rules; invalid updates never get in
6 server step      the server optimizer moves the model
7 finishing        what the method does after the step: key layers (hierarchy.py), shared state (shared_state.py)

`inner_node.py` runs rounds for a node of a tree, `hansa/runs/run.py` for a whole run; all methods run this function.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from time import perf_counter
from typing import Literal

from hansa.core.claims import counted, overclaim
from hansa.core.encoding import EncodingError
from hansa.core.errors import printable
from hansa.core.knowledge import ExchangeOutcome
from hansa.core.link import Answer, Link
from hansa.core.messages import BelowPart, Failure, LayersPart, NodeId, Reply, Train, Update
from hansa.core.method import Method
from hansa.core.participation import Assignment, Child, Participation, Plan, PlanContext, RoundSettings, deadline_of
from hansa.core.schedules import schedule_factor
from hansa.core.state import SERVER, ServerState, tensors_in
from hansa.core.tensors import NOTHING, Layout, Tensors, is_finite
from hansa.core.totals import RoundTotals

MAX_LOSS = 1e4  # a model that learns anything has a smaller one; weights that follow from losses must stay finite
MAX_SAMPLES = 1e12  # a larger claim is a lie or a bug


@dataclass(frozen=True)
class Server:
    """Who asks: a node with children, the link to them, and the method that they follow."""

    name: NodeId
    children: Mapping[NodeId, Child]
    link: Link
    method: Method
    settings: RoundSettings


@dataclass(frozen=True)
class Turn:
    """Which round it is. ``durable``: the newest checkpointed round; ``end``: when the parent goes on without us.

    ``arrivals``: the order of arrivals, where an asynchronous round is repeated. Where the nodes of a tree work one
    after another, this round begins at the sequential step ``begin`` of ``total`` of the whole tree.
    """

    number: int
    durable: int = 0
    begin: int = 0
    total: int = 0
    end: float | None = None
    arrivals: tuple[NodeId, ...] = ()


@dataclass
class Record:
    """What happened in a round."""

    round: int
    cohort: list[NodeId]
    updates: dict[NodeId, Update] = field(default_factory=dict)  # without their tensors
    failures: dict[NodeId, str] = field(default_factory=dict)
    sent: dict[NodeId, int] = field(default_factory=dict)
    received: dict[NodeId, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    clock: float = 0.0  # virtual time at its end
    tensors: dict[NodeId, Layout] = field(default_factory=dict)  # that each sent
    norms: dict[NodeId, float] = field(default_factory=dict)  # of each update, as it arrived
    failed: str = ""  # why the round does not count; empty if it does
    attention: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)  # on a tree: see `LayersPart`
    refused: dict[NodeId, str] = field(default_factory=dict)  # what was left out of a round that counts, and why
    exchange: ExchangeOutcome = field(default_factory=ExchangeOutcome)
    arrivals: list[NodeId] = field(default_factory=list)  # with an asynchronous method: in which order updates came
    hidden: RoundTotals | None = None  # what is known of losses and counts where updates do not state their own

    def count_bytes(self, answer: Answer) -> None:
        """Add what an answer took."""
        self.sent[answer.node] = self.sent.get(answer.node, 0) + answer.sent
        self.received[answer.node] = self.received.get(answer.node, 0) + answer.received

    def bytes(self, way: Literal["sent", "received"], own: NodeId) -> dict[NodeId, int]:
        """What went to, or came from, every node below; ``own`` work stays where it is."""
        here = {node: count for node, count in getattr(self, way).items() if node != own}
        return summed(here, *(getattr(update.below, way) for update in self.updates.values() if update.below))

    @property
    def totals(self) -> RoundTotals:
        """Losses, counts and seconds summed over the updates."""
        if self.hidden is not None:
            return self.hidden
        updates = self.updates.values()
        sums = (sum(getattr(u, name) for u in updates) for name in ("loss", "seen", "steps", "seconds"))
        return RoundTotals(*sums)

    @property
    def loss(self) -> float:
        """The mean training loss: weighted by samples, or over silos where each silo's own is under masks."""
        if self.hidden is not None:
            return self.hidden.loss / max(1, len(self.updates))
        samples = sum(u.samples for u in self.updates.values())
        return sum(u.loss * u.samples for u in self.updates.values()) / max(1, samples)


class RoundPart:
    """An optional part of a round, such as the exchange of knowledge.

    Each step does nothing unless a part overrides it.
    """

    def prepare(self, round: "Round") -> None:
        """Before training: ask the cohort something, or change where the round starts from."""

    def extend(self, assignment: Assignment, request: Train) -> Train | None:
        """Add this part to the request for a child; None: the child is not asked."""
        return request

    def sift(self, answers: Iterator[Answer]) -> Iterator[Answer]:
        """Look at answers before they are checked; one that is not trusted becomes a `Failure`."""
        return answers

    def accept(self, assignment: Assignment, update: Update) -> Update:
        """Take this part out of a valid update."""
        return update

    def finish(self, round: "Round") -> None:
        """After the server step."""


class Round:
    """A round under way, as its parts see it.

    They may change ``start``, ``moved``, ``expected``, ``aggregated`` and ``combine``.
    """

    def __init__(self, server: Server, state: ServerState, turn: Turn, plan: Plan) -> None:
        self.server, self.state, self.turn, self.plan = server, state, turn, plan
        failures, order = dict(plan.failures), plan.arrivals
        self.record = Record(turn.number, plan.cohort, {}, failures, clock=state.clock, arrivals=order)
        self.start: Tensors = state.model  # the model that children start from
        self.moved: Tensors | None = None  # the model that the server moves, if it is not the one children start from
        self.expected: Layout = state.model.layout  # the tensors that an update may have
        self.aggregated: Layout = state.model.layout  # those of them that are combined by the aggregator
        self.partial = server.method.upload.selects  # whether updates may leave tensors out
        self.masked = False  # whether updates come under masks
        self.combine: Callable[[Layout, Iterator[Update]], Tensors] = self._combine
        self._requests: dict[tuple[int, int, int], Train] = {}
        self._began = perf_counter()

    @property
    def number(self) -> int:
        """The number of the round, counted from 1."""
        return self.turn.number

    @property
    def link(self) -> Link:
        """The link to the children."""
        return self.server.link

    def deadline(self) -> float | None:
        """When requests that are sent now are given up: the node's own deadline or its parent's, whichever is first."""
        given = [at for at in (deadline_of(self.server.settings.participation), self.turn.end) if at is not None]
        return min(given, default=None)

    def request(self, assignment: Assignment) -> Train:
        """The plain request of an assignment; the same object for all that get the same, so that it is written once."""
        model = self.start if assignment.model is None else assignment.model
        key = (assignment.number, assignment.durable, id(model))
        if key not in self._requests:
            self._requests[key] = Train(assignment.number, model, assignment.durable)
        return self._requests[key]

    def lap(self, phase: str) -> None:
        """Note the seconds since the last lap."""
        began, self._began = self._began, perf_counter()
        self.record.seconds[phase] = self._began - began

    def _combine(self, layout: Layout, updates: Iterator[Update]) -> Tensors:
        method = self.server.method
        return method.aggregator.combine(layout, ((u, method.weighting.weight(u)) for u in updates))


def federated_round(server: Server, state: ServerState, turn: Turn, parts: Sequence[RoundPart] = ()) -> Record:
    """Run one round and move ``state``; if too few children answer, the state stays and the record says so."""
    method, before = server.method, (state.clock, dict(state.slots))

    # 1 participation
    who, when = (server.name, server.children, server.settings), (turn.number, turn.durable)
    plan = method.participation.plan(PlanContext(*who, *when, server.link, turn.arrivals), state)
    round = Round(server, state, turn, plan)

    # 2 preparation
    for part in parts:
        part.prepare(round)

    # 3 local training, 4 upload, 5 aggregation: `accepted` asks children (3, 4) while `combine` consumes their updates
    gradient = round.combine(round.aggregated, accepted(round, parts))
    round.lap("work")
    record = round.record
    record.failed = record.failed or too_few(record, server.settings.participation) or not_finite(record, gradient)
    if record.failed:
        state.clock, state.slots = before
        return record

    # 6 server step
    move(round, gradient)

    # 7 finishing
    for part in parts:
        part.finish(round)
    record.clock = state.clock
    round.lap("move")
    return record


def accepted(round: Round, parts: Sequence[RoundPart]) -> Iterator[Update]:
    """Ask the children; yield the updates that pass the checks, decoded. The record notes the others, with a reason."""
    for wave in round.plan.waves:
        assignments = {assignment.node: assignment for assignment in wave}
        asks = {node: request for node, one in assignments.items() if (request := requested(round, one, parts))}
        answers = round.link.ask(asks, round.deadline())
        for part in parts:
            answers = part.sift(answers)
        for answer in answers:
            assignment = assignments[answer.node]
            child = round.server.children.get(answer.node)
            update = admit(answer, round.expected, round.record, round.partial, round.masked, child)
            if update is None:
                continue
            if not round.masked:  # under masks each silo weighs its own update
                update = counted(update, child)
            if assignment.staleness:
                update = replace(update, staleness=assignment.staleness)
            for part in parts:
                update = part.accept(assignment, update)
            yield update


def requested(round: Round, assignment: Assignment, parts: Sequence[RoundPart]) -> Train | None:
    """The request for a child with all its parts; None if the child is not asked."""
    request: Train | None = round.request(assignment)
    for part in parts:
        request = part.extend(assignment, request) if request is not None else None
    return request


def move(round: Round, gradient: Tensors) -> None:
    """Let the server optimizer move the aggregated tensors of the model."""
    server, state, number = round.server, round.state, round.number
    factor = schedule_factor(server.settings.server_schedule, number, server.settings.rounds)
    model = round.start if round.moved is None else round.moved
    moving = model.only(round.aggregated.names)
    own = state.slots.get(SERVER)
    with unmoved(round.record, moving, [moving, *tensors_in(own)]):
        server.method.server.step(moving, gradient, own, number, factor)
    if moving is not model:
        model.write(moving)
    state.model, state.round = model, number


@contextmanager
def unmoved(record: Record, model: Tensors, changing: Sequence[Tensors]) -> Iterator[None]:
    """Leave tensors that no child sent as they are, and the optimizer's state of them too.

    A zero in the pseudo-gradient would still let the optimizer's momentum move them.
    """
    layouts = set(record.tensors.values())
    sent = {name for layout in layouts for name in layout.names}
    missing = [name for name in model.layout.names if name not in sent]
    before = [tensors.only(missing).copy() for tensors in changing] if missing else []
    yield
    for tensors, old in zip(changing, before, strict=False):
        tensors.write(old)


def too_few(record: Record, participation: Participation) -> str:
    """Why the round does not count; empty if enough children answered."""
    asked = len(set(record.cohort))
    needed = max(1, ceil(participation.quorum * asked))
    if len(record.updates) >= needed:
        return ""
    reasons = "; ".join(f"{node}: {reason}" for node, reason in record.failures.items())
    return f"round {record.round}: {len(record.updates)} of {asked} sent a valid update, {needed} needed ({reasons})"


def not_finite(record: Record, gradient: Tensors) -> str:
    """Why the model must not take this step; empty if it may. Each update was finite; their combination may not be."""
    if is_finite(gradient.flat):
        return ""
    return (
        f"round {record.round}: the combined update has values that are not finite (lower train.lr or set train.clip, "
        "or look at the weights of 'method' and 'aggregate')"
    )


def admit(
    answer: Answer,
    layout: Layout,
    record: Record,
    partial: bool = False,
    masked: bool = False,
    child: Child | None = None,
) -> Update | None:
    """The update of an answer, decoded, if it passes the checks; else None, and the record has the reason."""
    record.count_bytes(answer)
    reply = decoded(answer.reply, layout)
    reason = problem(reply, layout, partial, masked) or (overclaim(reply, child) if isinstance(reply, Update) else "")
    if reason:
        record.failures[answer.node] = reason
        return None
    assert isinstance(reply, Update)
    sent = reply.gradient.layout
    before = record.tensors.get(answer.node)
    record.tensors[answer.node] = (
        sent if before is None or before == sent else layout.only({*before.names, *sent.names})
    )
    if layout.names and not sent.names:
        record.refused[answer.node] = "no tensor is small enough for what 'upload' lets it send: raise upload.keep"
    if not masked:
        record.norms[answer.node] = float(reply.gradient.flat.norm())
    _note(record, answer.node, reply)
    return reply


def decoded(reply: Reply, layout: Layout) -> Reply:
    """An update as it was before it was encoded."""
    if not isinstance(reply, Update) or reply.encoded is None:
        return reply
    try:
        return replace(reply, gradient=reply.encoded.open(layout), encoded=None)
    except EncodingError as error:
        return Failure(str(error))


def _note(record: Record, node: NodeId, update: Update) -> None:
    """Remember an update without its tensors; of a silo that sent two, the later, with the work of both."""
    layers = update.layers and LayersPart(NOTHING, update.layers.attention, update.layers.refused)
    noted = replace(update, gradient=NOTHING, layers=layers, shared_state=None)
    before = record.updates.get(node)
    if before is not None:
        both = {key: getattr(before, key) + getattr(noted, key) for key in ("seen", "steps", "seconds")}
        noted = replace(noted, **both, below=below(before, noted))
    record.updates[node] = noted


def below(*updates: Update) -> BelowPart | None:
    """What happened below the senders of several updates, in one part; None if nothing is below them."""
    parts = [update.below for update in updates if update.below is not None]
    if not parts:
        return None
    failures = {node: reason for part in parts for node, reason in part.failures.items()}
    arrivals = tuple(order for part in parts for order in part.arrivals)
    return BelowPart(failures, summed(*(p.sent for p in parts)), summed(*(p.received for p in parts)), arrivals)


def summed(*counts: Mapping[str, int]) -> dict[str, int]:
    """Counts added up key by key."""
    total: dict[str, int] = {}
    for one in counts:
        for key, count in one.items():
            total[key] = total.get(key, 0) + count
    return total


def problem(reply: object, layout: Layout, partial: bool = False, masked: bool = False) -> str:
    """Why a reply must not enter the model; empty if it may. ``partial``: tensors may be left out."""
    if isinstance(reply, Failure):
        return reply.reason
    if not isinstance(reply, Update):
        return f"it sent a {type(reply).__name__} instead of an update"
    sent = reply.gradient.layout
    if sent != layout:
        known = dict(zip(layout.names, layout.shapes, strict=True))
        for name, shape in zip(sent.names, sent.shapes, strict=True):
            if known.get(name) != shape:
                return f"its update has {printable(name)} {list(shape)[:9]}, which the model does not have"
        missing = [name for name in layout.names if name not in sent.spans]
        if missing and not partial:
            return f"its update lacks {missing[0]}, and the federation's 'upload' leaves no tensors out"
    if not 0 < reply.samples <= MAX_SAMPLES:
        return f"it claims {reply.samples} samples; the number must lie between 1 and {MAX_SAMPLES:g}"
    if not abs(reply.loss) <= MAX_LOSS:  # nor is it NaN
        return f"its training loss is {reply.loss:g}; it must lie within ±{MAX_LOSS:g}"
    if masked and reply.masked is None:
        return "its update is not masked, and secure aggregation needs masked updates"
    if not masked and reply.masked is not None:
        return "its update is masked, and no masks were asked for"
    if not masked and not is_finite(reply.gradient.flat):
        return "its update has values that are not finite (NaN or Inf)"
    return ""
