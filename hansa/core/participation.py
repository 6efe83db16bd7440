"""Who is waited for: the first steps of a round, and the slot that FedBuff fills differently.

`Synchronous` asks a cohort and waits for all of it. Time may be virtual: `simulate.delay` says how long a silo's work
would take, nobody sleeps, and methods can be compared by the clock on one machine.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Annotated

from pydantic import Field, model_validator

from hansa.config.federation import Federation
from hansa.core.link import Answer, Link
from hansa.core.messages import NodeId, Train
from hansa.core.seeds import stream
from hansa.core.settings import Count, Positive, Section, Share
from hansa.core.simulation import Simulation
from hansa.core.tensors import Tensors


class Participation(Section):
    """Who takes part in a round: everyone, a share or a number of silos; how many must answer, and by when."""

    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    count: Count | None = None
    quorum: Share = 0.5  # a round counts only if this share of those asked answered
    deadline: Positive | None = None  # seconds

    @model_validator(mode="after")
    def _one_size(self) -> "Participation":
        if self.count is not None and self.share < 1.0:
            raise ValueError(f"count is {self.count} and share {self.share:g}: both say how many take part; keep one")
        return self


@dataclass(frozen=True)
class Child:
    """What a federation knows of a child before it asks."""

    samples: int
    work: int  # samples per round: who has most is asked first, so that workers end together
    steps: int = 0  # on a tree: sequential steps of one answer
    leaf: bool = True
    lasts: Callable[[int], float] | None = None  # of a federation: virtual seconds of its n-th answer


@dataclass(frozen=True)
class PendingWork:
    """A silo at work: which version of the model it has, when it will be done, and how many such works there were."""

    node: NodeId
    version: int
    due: float
    number: int


@dataclass
class ServerState:
    """What a round moves: the shared model, the server optimiser's memory, the number of rounds done, virtual time."""

    model: Tensors
    state: dict[str, Tensors]
    round: int = 0
    clock: float = 0.0
    flights: list[PendingWork] = field(default_factory=list)  # of silos that nobody waits for (fedbuff)
    sent: dict[NodeId, list[str]] = field(
        default_factory=dict
    )  # the tensors each sent last (uploads in both directions)


@dataclass(frozen=True)
class Asker:
    """Who asks whom, by which rules; silos may forget what is older than the ``durable`` round."""

    name: NodeId
    members: Mapping[NodeId, Child]
    link: Link
    settings: Federation
    durable: int


Brief = Callable[[NodeId, Train], Train | None]  # what a member is asked, made of the plain request; None: it is not
Ask = Callable[[Brief], Iterator[Answer]]


@dataclass(frozen=True)
class Synchronous:
    """A cohort, drawn from the seed; the round ends when all of it has answered, or the deadline has passed."""

    def gather(self, asker: Asker, moving: ServerState) -> tuple[list[NodeId], Ask]:
        number, settings = moving.round + 1, asker.settings
        cohort = choose(asker.members, settings.participation, settings.seed, number, asker.name)
        moving.clock += together(asker.members, cohort, number, settings)
        plain = Train(number, moving.model, asker.durable)

        def ask(brief: Brief) -> Iterator[Answer]:
            asks = {node: told for node in cohort if (told := brief(node, plain)) is not None}
            return asker.link.ask(asks, until(settings.participation))

        return cohort, ask


@dataclass(frozen=True)
class BufferedRegions:
    """On a tree: the root's round ends when ``size`` of its children are done, by the virtual clock. Whoever is done
    waits for that moment and goes on from the model it makes; the others go on with the one they have. What is τ
    versions old counts (1 + τ)^−power."""

    size: int
    power: float = 0.5

    def land(self, members: Mapping[NodeId, Child], settings: Federation, moving: ServerState) -> list[PendingWork]:
        """The children whose work ends this round; they take off again at its end."""

        def take_off(node: NodeId, version: int, number: int) -> PendingWork:
            due = moving.clock + span(node, members[node], number, settings)
            return PendingWork(node, version, due, number)

        flights = moving.flights or [take_off(node, moving.round, 1) for node in sorted(members)]
        flights = sorted(flights, key=lambda flight: (flight.due, flight.node))
        arrived, away = flights[: self.size], flights[self.size :]
        moving.clock = max(moving.clock, arrived[-1].due)
        moving.flights = away + [take_off(f.node, moving.round + 1, f.number + 1) for f in arrived]
        return arrived


def until(participation: Participation) -> float | None:
    return None if participation.deadline is None else monotonic() + participation.deadline


def choose(
    members: Mapping[NodeId, Child], participation: Participation, seed: int, round: int, federation: NodeId
) -> list[NodeId]:
    """The cohort, largest work first. Who takes part depends on the seed and on names, not on their order."""
    names = sorted(members)
    count = cohort_size(participation, len(names))
    if count < len(names):
        chosen = stream(seed, round, federation, "cohort").permutation(len(names))[:count]
        names = [names[i] for i in chosen]
    return sorted(names, key=lambda n: (-members[n].work, n))


def cohort_size(participation: Participation, members: int) -> int:
    return participation.count or max(1, round_half_up(participation.share * members))


def round_half_up(x: float) -> int:
    return int(x + 0.5)


def span(node: NodeId, member: Child, number: int, settings: Federation) -> float:
    """Virtual seconds until a member answers; a federation is as slow as those below it, unless a delay is its own."""
    if member.lasts is None or node in settings.simulate.delay:
        return duration(node, number, settings.simulate, settings.seed)
    return member.lasts(number)


def together(members: Mapping[NodeId, Child], cohort: Sequence[NodeId], number: int, settings: Federation) -> float:
    """Virtual seconds until all of a cohort have answered."""
    return max(span(node, members[node], number, settings) for node in cohort)


def duration(node: NodeId, number: int, simulate: Simulation, seed: int) -> float:
    """Virtual seconds of a silo's work."""
    usual = simulate.delay.get(node, simulate.usual)
    if not simulate.jitter:
        return usual
    return usual * (1 + simulate.jitter * float(stream(seed, node, number, "delay").uniform(-1.0, 1.0)))
