"""Nguyen et al. (2022), Federated Learning with Buffered Asynchronous Aggregation (FedBuff), Algorithm 1.

    Δᵢ = θ_v − θᵢ from the version v that silo i began with;  τᵢ = versions since then
    s(τ) = (1 + τ)^(−a)                                                                    a = ½ in the paper
    θ ← θ − η·(1/K)·Σ_{K arrivals} s(τᵢ)·Δᵢ                                                 then the buffer is empty

Nobody waits for a slow silo: every silo works all the time, its update goes into the buffer when it is done, and the
silo begins again with the newest model; when K updates are there, the server takes a step (a round, for ledger and
schedule). ``temperature`` t weighs silos by Nᵢ^t among the K (0, the paper: all the same).
Deviations: time is virtual (`simulate.delay`), so a run gives the same result on any machine.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import Field

from hansa.core.messages import NodeId, Update
from hansa.core.method import METHODS, Method
from hansa.core.participation import Assignment, BufferState, PendingWork, Plan, PlanContext, silo_duration
from hansa.core.settings import Count, Section
from hansa.core.state import PARTICIPATION, ServerState
from hansa.core.tensors import Layout, Tensors, WeightedMean
from hansa.methods.fedavg import fedavg


@dataclass(frozen=True)
class Buffered:
    """The next ``buffer`` silos to be done, by the virtual clock."""

    buffer: int
    synchronous: ClassVar[bool] = False
    on_trees: ClassVar[bool] = False

    def plan(self, context: PlanContext, state: ServerState) -> Plan:
        before: BufferState = state.slots.get(PARTICIPATION) or BufferState()
        arrived, pending = self._arrivals(context, before, state)
        after = before.with_arrivals(pending, arrived, state)
        state.slots[PARTICIPATION] = after
        return Plan([work.node for work in arrived], self._waves(context, arrived, after, state))

    def damping(self, staleness: int) -> float:
        return 1.0

    def _arrivals(
        self, context: PlanContext, before: BufferState, state: ServerState
    ) -> tuple[list[PendingWork], list[PendingWork]]:
        """The earliest works to be done, and those still under way: a silo that is done starts again at once."""
        simulate, seed = context.settings.simulate, context.settings.seed

        def start(node: NodeId, version: int, at: float, number: int) -> PendingWork:
            return PendingWork(node, version, at + silo_duration(node, number, simulate, seed), number)

        pending = list(before.pending) or [start(n, state.round, state.clock, 1) for n in sorted(context.children)]
        arrived: list[PendingWork] = []
        while len(arrived) < self.buffer:
            pending.sort(key=lambda work: (work.due, work.node))
            first = pending.pop(0)
            arrived.append(first)
            pending.append(start(first.node, state.round, first.due, first.number + 1))
        state.clock = arrived[-1].due
        # A silo that is done at the very moment of the step starts from the model that the step makes.
        now = {(work.node, work.number + 1) for work in arrived if work.due == state.clock}
        newest = state.round + 1
        return arrived, [replace(w, version=newest) if (w.node, w.number) in now else w for w in pending]

    def _waves(
        self, context: PlanContext, arrived: list[PendingWork], after: BufferState, state: ServerState
    ) -> list[list[Assignment]]:
        """A silo that arrives twice is asked again after the others. Silos count their own works; since the durable
        round, one of them has done at most ``buffer`` in every round.
        """
        waiting, waves = list(arrived), list[list[Assignment]]()
        forgotten = self.buffer * (state.round + 1 - context.durable)
        while waiting:
            first = {work.node: work for work in reversed(waiting)}
            waves.append(
                [
                    Assignment(node, w.number, w.number - forgotten, after.versions[w.version], state.round - w.version)
                    for node, w in sorted(first.items())
                ]
            )
            waiting = [work for work in waiting if work is not first[work.node]]
        return waves


@dataclass(frozen=True)
class ByStaleness:
    """wᵢ ∝ Nᵢ^t·s(τᵢ)."""

    power: float
    temperature: float = 0.0
    known_before_training: ClassVar[bool] = False
    replaceable: ClassVar[bool] = True

    def weight(self, update: Update) -> float:
        return float(update.samples**self.temperature * (1 + update.staleness) ** -self.power)


@dataclass(frozen=True)
class DampedMean:
    """(1/K)·Σ s·Δ: stale updates make the step smaller, not only their share of it."""

    power: float
    linear: ClassVar[bool] = False  # its denominator is not the sum of the weights
    per_tensor: ClassVar[bool] = True
    min_cohort: ClassVar[int] = 1
    replaceable: ClassVar[bool] = False

    def combine(self, layout: Layout, updates: Iterable[tuple[Update, float]]) -> Tensors:
        mean = WeightedMean(layout)
        for update, weight in updates:
            mean.add(update.gradient, weight, weight * (1 + update.staleness) ** self.power)
        return mean.mean()


@METHODS.register("fedbuff")
class FedBuff(Section):
    buffer: Count = 3
    power: Annotated[float, Field(ge=0.0)] = 0.5
    temperature: Annotated[float, Field(ge=0.0)] = 0.0

    def build(self) -> Method:
        weighting, mean = ByStaleness(self.power, self.temperature), DampedMean(self.power)
        return replace(
            fedavg(), name="fedbuff", participation=Buffered(self.buffer), weighting=weighting, aggregator=mean
        )
