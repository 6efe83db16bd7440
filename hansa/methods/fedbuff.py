"""Nguyen et al. (2022), Federated Learning with Buffered Asynchronous Aggregation (FedBuff), Algorithm 1.

    Δᵢ = θ_v − θᵢ from the version v that silo i began with;  τᵢ = versions since then
    s(τ) = (1 + τ)^(−a)                                                                    a = ½ in the paper
    θ ← θ − η·(1/K)·Σ_{K arrivals} s(τᵢ)·Δᵢ                                                 then the buffer is empty

Nobody waits for a slow silo: every silo works all the time, its update goes into the buffer when it is done, and the
silo begins again with the newest model; when K updates are there, the server takes a step (a round, for ledger and
schedule). ``temperature`` t weighs silos by Nᵢ^t among the K (0, the paper: all the same).
Deviations: time is virtual (`simulate.delay`), so a run gives the same result on any machine.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hansa.config.federation import Federation
from hansa.core.link import Answer
from hansa.core.messages import NodeId, Train, Update
from hansa.core.method import METHODS, Method
from hansa.core.participation import Ask, Asker, Child, PendingWork, ServerState, duration, until
from hansa.core.settings import Count, Section
from hansa.core.tensors import Layout, Tensors, WeightedMean
from hansa.methods.fedavg import fedavg

VERSION = "version."


@dataclass(frozen=True)
class Buffered:
    """The next ``size`` silos to be done, by the virtual clock."""

    size: int

    def gather(self, asker: Asker, moving: ServerState) -> tuple[list[NodeId], Ask]:
        arrived = self._arrivals(asker.members, asker.settings, moving)
        keep_versions(moving, arrived)
        return [flight.node for flight in arrived], lambda _brief: self._ask(asker, moving, arrived)

    def _arrivals(
        self, members: Mapping[NodeId, Child], settings: Federation, moving: ServerState
    ) -> list[PendingWork]:
        """Take the earliest flights off the list; whoever arrived takes off again with the newest model."""

        def take_off(node: NodeId, version: int, at: float, number: int) -> PendingWork:
            return PendingWork(node, version, at + duration(node, number, settings.simulate, settings.seed), number)

        flights = moving.flights or [take_off(node, moving.round, moving.clock, 1) for node in sorted(members)]
        arrived: list[PendingWork] = []
        while len(arrived) < self.size:
            flights.sort(key=lambda flight: (flight.due, flight.node))
            first = flights.pop(0)
            arrived.append(first)
            flights.append(take_off(first.node, moving.round, first.due, first.number + 1))
        moving.clock = arrived[-1].due
        # Who is there at the moment of the step takes the model that it makes.
        there = {(f.node, f.number + 1) for f in arrived if f.due == moving.clock}
        moving.flights = [replace(f, version=moving.round + 1) if (f.node, f.number) in there else f for f in flights]
        return arrived

    def _ask(self, asker: Asker, moving: ServerState, arrived: list[PendingWork]) -> Iterator[Answer]:
        """The arrivals' updates, in order. A silo that arrives twice is asked again after the others. Silos count their
        own works; since the durable round, one of them has done at most ``size`` in every round."""
        waiting = list(arrived)
        requests = {
            (f.version, f.number): Train(
                f.number,
                moving.state[f"{VERSION}{f.version}"],
                f.number - self.size * (moving.round + 1 - asker.durable),
            )
            for f in arrived
        }
        while waiting:
            now = {f.node: f for f in reversed(waiting)}  # the first of every silo
            asks = {node: requests[f.version, f.number] for node, f in sorted(now.items())}
            for answer in asker.link.ask(asks, until(asker.settings.participation)):
                reply, stale = answer.reply, moving.round - now[answer.node].version
                yield replace(answer, reply=replace(reply, stale=stale) if isinstance(reply, Update) else reply)
            waiting = [f for f in waiting if f is not now[f.node]]


def keep_versions(moving: ServerState, arrived: Iterable[PendingWork]) -> None:
    """Keep every version of the model that somebody still works with."""
    needed = {f"{VERSION}{f.version}" for f in (*moving.flights, *arrived)}
    newest = f"{VERSION}{moving.round}"
    if newest in needed:
        moving.state[newest] = moving.model.copy()
    for name in [n for n in moving.state if n.startswith(VERSION) and n not in needed]:
        del moving.state[name]


@dataclass(frozen=True)
class ByStaleness:
    power: float
    temperature: float = 0.0

    def weight(self, update: Update) -> float:
        return float(update.samples**self.temperature * (1 + update.stale) ** -self.power)


@dataclass(frozen=True)
class DampedMean:
    """(1/K)·Σ s·Δ: stale updates make the step smaller, not only their share of it."""

    power: float
    needs: ClassVar[Literal["sum"]] = "sum"

    def combine(self, layout: Layout, updates: Iterable[tuple[Update, float]]) -> Tensors:
        mean = WeightedMean(layout)
        for update, weight in updates:
            mean.add(update.gradient, weight, weight * (1 + update.stale) ** self.power)
        return mean.mean()


@METHODS.register("fedbuff")
class FedBuff(Section):
    buffer: Count = 3
    power: Annotated[float, Field(ge=0.0)] = 0.5
    temperature: Annotated[float, Field(ge=0.0)] = 0.0

    def build(self) -> Method:
        weighting, mean = ByStaleness(self.power, self.temperature), DampedMean(self.power)
        return replace(fedavg(), name="fedbuff", pace=Buffered(self.buffer), weigh=weighting, aggregate=mean)
