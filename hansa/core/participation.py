"""Client participation: which children are asked in a round, from which model each starts, and when the round ends.

`Synchronous` asks a cohort and waits for all of it; FedBuff fills the slot differently (arrivals.py). Time may be
virtual: `simulate.delay` says how long a silo's work would take, no process sleeps, and methods can be compared by the
clock on one machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Annotated, ClassVar, Protocol

from pydantic import Field, model_validator

from hansa.core.arrivals import BufferState, PendingWork, in_use
from hansa.core.link import Link
from hansa.core.messages import NodeId
from hansa.core.schedules import Schedule
from hansa.core.seeds import stream
from hansa.core.settings import Count, Positive, Section, Share
from hansa.core.simulation import Simulation
from hansa.core.state import PARTICIPATION, ServerState
from hansa.core.tensors import Tensors

MIN_ENROLMENT_SECONDS = 60.0  # agents and data take longer to load than a round's deadline may allow


class Participation(Section):
    """Which silos take part in a round (all, a share or a number of them), how many must answer, and by when."""

    share: Annotated[float, Field(gt=0.0, le=1.0, description="Fraction of the silos that take part in a round.")] = 1.0
    count: Annotated[
        Count | None, Field(description="Number of silos that take part in a round, instead of `share`.")
    ] = None
    quorum: Annotated[
        Share,
        Field(
            description="Least fraction of the silos asked that must send a valid update. With fewer, the model stays "
            "as it was and the run ends with an error; `--resume` (or `hansa serve` again) repeats the round."
        ),
    ] = 0.5
    deadline: Annotated[
        Positive | None, Field(description="Seconds after which a round ends without the silos that have not answered.")
    ] = None
    enrolment: Annotated[
        Positive | None,
        Field(
            description="Between organisations: seconds that the coordinator waits for all silos before the first "
            "round; then the quorum is enough. Default: `deadline`, but at least 60 s."
        ),
    ] = None
    max_absence: Annotated[
        Positive | None,
        Field(
            description="Between organisations: seconds without a heartbeat after which a round no longer waits for a "
            "silo. Default: the round waits until the deadline; with an asynchronous method, 15 s."
        ),
    ] = None
    max_share: Annotated[
        float | None,
        Field(
            gt=0.0,
            le=1.0,
            description="Largest weight of one silo, as a fraction of all training samples; a silo that states more "
            "samples is weighted as if it had this fraction. Default: no bound, but between organisations a silo that "
            "claims more than 99% is left out.",
        ),
    ] = None

    @model_validator(mode="after")
    def _one_size(self) -> "Participation":
        if self.count is not None and self.share < 1.0:
            raise ValueError(f"count is {self.count} and share {self.share:g}: both say how many take part; keep one")
        return self


@dataclass(frozen=True)
class RoundSettings:
    """The settings that a round needs."""

    federation: str = "federation"
    seed: int = 0
    rounds: int = 1
    participation: Participation = field(default_factory=Participation)
    simulate: Simulation = field(default_factory=Simulation)
    server_schedule: Schedule = field(default_factory=Schedule)


@dataclass(frozen=True)
class Child:
    """What an inner node knows of a child before it asks."""

    samples: int
    work: int  # samples per round: the largest is asked first, so that workers end together
    steps: int = 0  # on a tree: sequential steps of one reply
    duration: Callable[[int], float] | None = None  # of an inner node: virtual seconds of its n-th reply
    claimed: int | None = None  # samples that it stated before the first round: no update may claim more (claims.py)
    counted: int | None = None  # samples that it may count at most


@dataclass(frozen=True)
class Assignment:
    """One piece of work: which child trains, from which model, and as which of its rounds."""

    node: NodeId
    number: int  # the child's own count of rounds
    durable: int
    model: Tensors | None = None  # none: the model that the round starts from
    staleness: int = 0  # versions of the model since that one


@dataclass(frozen=True)
class Plan:
    """Who takes part in a round. Each wave is asked at once, the next one when all of it has answered.

    ``arrivals``: with an asynchronous method, the order in which updates arrived. ``failures``: children that were
    asked and could not work, with the reason.
    """

    cohort: list[NodeId]
    waves: list[list[Assignment]]
    arrivals: list[NodeId] = field(default_factory=list)
    failures: dict[NodeId, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanContext:
    """What a participation rule decides by. ``link``: the way to the children; None where nothing is sent.

    ``arrivals``: the order in which updates arrived, where an asynchronous round is repeated.
    """

    name: NodeId
    children: Mapping[NodeId, Child]
    settings: RoundSettings
    number: int
    durable: int
    link: Link | None = None
    arrivals: tuple[NodeId, ...] = ()


class ParticipationRule(Protocol):
    """The participation slot of a method."""

    @property
    def synchronous(self) -> bool:
        """Whether one cohort, known before anybody trains, starts from the newest model and is waited for."""

    @property
    def buffer(self) -> int:
        """How many replies end a round; 0: those of the whole cohort."""

    @property
    def most_per_child(self) -> int:
        """How many updates of one child a round may take: what a private child pays for."""

    @property
    def on_trees(self) -> bool:
        """Whether the root may use it where every node has a model of its own (a tree of models)."""

    @property
    def state(self) -> type | None:
        """The dataclass that the server keeps for it between rounds, in ``slots["participation"]``; None: nothing."""

    def plan(self, context: PlanContext, state: ServerState) -> Plan:
        """Choose who works; advance ``state.clock`` and the slot's own state.

        A rule that takes updates as they arrive follows ``context.arrivals`` where a round is repeated. The state must
        be replaced, not changed in place: a round that fails restores it.
        """

    def damping(self, staleness: int) -> float:
        """On a tree of models: the factor on a late child's key layers. FedBuff damps in its aggregator instead."""


@dataclass(frozen=True)
class Synchronous:
    """A cohort, drawn from the seed; the round ends when all of it has answered, or the deadline has passed."""

    synchronous: ClassVar[bool] = True
    buffer: ClassVar[int] = 0
    most_per_child: ClassVar[int] = 1
    on_trees: ClassVar[bool] = True
    state: ClassVar[None] = None

    def plan(self, context: PlanContext, state: ServerState) -> Plan:
        """Draw the cohort; all of it starts from the round's model."""
        settings, number = context.settings, context.number
        cohort = choose(context.children, settings.participation, settings.seed, number, context.name)
        state.clock += slowest(context.children, cohort, number, settings)
        return Plan(cohort, [[Assignment(node, number, context.durable) for node in cohort]])

    def damping(self, staleness: int) -> float:
        """No reply is late."""
        return 1.0


@dataclass(frozen=True)
class BufferedRegions:
    """On a tree: the root's round ends when ``buffer`` of its children are done, by the virtual clock.

    A child that is done waits for that moment and goes on from the model it makes; the others go on with the one they
    have. A reply that is τ versions old counts (1 + τ)^−power. What a child is sent depends on the round that it ends
    in (hierarchy.py), so between organisations, too, a child is asked in that round.
    """

    buffer: int
    power: float = 0.5
    synchronous: ClassVar[bool] = False
    most_per_child: ClassVar[int] = 1
    on_trees: ClassVar[bool] = True
    state: ClassVar[type[BufferState]] = BufferState

    def plan(self, context: PlanContext, state: ServerState) -> Plan:
        """Take the children that are done first, by the virtual clock."""
        before: BufferState = state.slots.get(PARTICIPATION) or BufferState()

        def start(node: NodeId, version: int, number: int) -> PendingWork:
            """The work that a child begins at the current virtual time, due after its virtual duration."""
            due = state.clock + duration(node, context.children[node], number, context.settings)
            return PendingWork(node, version, due, number)

        pending = before.pending or tuple(start(node, state.round, 1) for node in sorted(context.children))
        ordered = sorted(pending, key=lambda work: (work.due, work.node))
        arrived, away = ordered[: self.buffer], ordered[self.buffer :]
        state.clock = max(state.clock, arrived[-1].due)
        pending = (*away, *(start(work.node, state.round + 1, work.number + 1) for work in arrived))
        state.slots[PARTICIPATION] = after = in_use(pending, arrived, before.with_version(state))
        wave = [
            Assignment(w.node, context.number, context.durable, after.versions[w.version], state.round - w.version)
            for w in arrived
        ]
        return Plan([work.node for work in arrived], [wave])

    def damping(self, staleness: int) -> float:
        """(1 + τ)^−power."""
        return float((1 + staleness) ** -self.power)


def without_waiting(rule: ParticipationRule) -> ParticipationRule:
    """The rule of an inner node that follows its parent's method: it waits for its children."""
    return rule if rule.synchronous else Synchronous()


def enrolment_deadline(participation: Participation) -> float | None:
    """When silos that have not answered before the first round are given up, on the monotonic clock; None: never."""
    seconds = participation.enrolment
    if seconds is None and participation.deadline is not None:
        seconds = max(participation.deadline, MIN_ENROLMENT_SECONDS)
    return None if seconds is None else monotonic() + seconds


def deadline_of(participation: Participation) -> float | None:
    """When a request that is sent now is given up, on the monotonic clock; None: never."""
    return None if participation.deadline is None else monotonic() + participation.deadline


def choose(
    children: Mapping[NodeId, Child], participation: Participation, seed: int, round: int, federation: NodeId
) -> list[NodeId]:
    """The cohort, largest work first. Who takes part depends on the seed and on names, not on their order."""
    names = sorted(children)
    count = cohort_size(participation, len(names))
    if count < len(names):
        chosen = stream(seed, round, federation, "cohort").permutation(len(names))[:count]
        names = [names[i] for i in chosen]
    return sorted(names, key=lambda n: (-children[n].work, n))


def cohort_size(participation: Participation, children: int) -> int:
    """How many of so many children take part in a round."""
    return participation.count or max(1, round_half_up(participation.share * children))


def round_half_up(x: float) -> int:
    """The nearest whole number; halves go up."""
    return int(x + 0.5)


def duration(node: NodeId, child: Child, number: int, settings: RoundSettings) -> float:
    """Virtual seconds until a child answers.

    An inner node is as slow as those below it, unless it has a delay itself.
    """
    if child.duration is None or node in settings.simulate.delay:
        return silo_duration(node, number, settings.simulate, settings.seed)
    return child.duration(number)


def slowest(children: Mapping[NodeId, Child], cohort: Sequence[NodeId], number: int, settings: RoundSettings) -> float:
    """Virtual seconds until all of a cohort have answered."""
    return max(duration(node, children[node], number, settings) for node in cohort)


def silo_duration(node: NodeId, number: int, simulate: Simulation, seed: int) -> float:
    """Virtual seconds of a silo's work."""
    usual = simulate.delay.get(node, simulate.default_delay)
    if not simulate.jitter:
        return usual
    return usual * (1 + simulate.jitter * float(stream(seed, node, number, "delay").uniform(-1.0, 1.0)))
