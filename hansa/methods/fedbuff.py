"""Nguyen et al. (2022), Federated Learning with Buffered Asynchronous Aggregation (FedBuff), Algorithm 1.

    Δᵢ = θ_v − θᵢ, with v the version that silo i started from;  τᵢ = versions since then
    s(τ) = (1 + τ)^(−a)                                                                    a = ½ in the paper
    θ ← θ − η·(1/K)·Σ_{K arrivals} s(τᵢ)·Δᵢ                                                 then the buffer is empty

K (``buffer``): updates per step; a (``power``): exponent of the damping. Every silo trains all the time. When a silo
is done, its update enters the buffer and the silo starts again from the newest model. When the buffer holds K
updates, the server takes a step, which counts as a round. ``temperature`` t weighs silos by Nᵢ^t among the K (0, the
paper: equally).
Deviations: time is virtual (`simulate.delay`), so that a run gives the same result on any machine.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

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
    """A round ends with the next ``buffer`` updates, by the virtual clock."""

    buffer: int
    synchronous: ClassVar[bool] = False
    on_trees: ClassVar[bool] = False
    state: ClassVar[type[BufferState]] = BufferState

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
        """The next works to end, and those still under way. A silo that is done starts again at once."""
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
        """The assignments of a round; a silo that arrives twice is asked again in a second wave.

        Silos number their own works. In each round since the durable one, a silo has done at most ``buffer`` works.
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
    """(1/K)·Σ s·Δ: a stale update makes the whole step smaller, not only its share of it."""

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
    """FedBuff (Nguyen et al., 2022): buffered asynchronous aggregation."""

    buffer: Count = Field(default=3, description="Number K of updates that end a round.")
    power: float = Field(default=0.5, ge=0.0, description="a: an update that is τ versions old counts (1 + τ)^−a.")
    temperature: float = Field(default=0.0, ge=0.0, description="t: silos weigh N^t; 0: equally, as in the paper.")

    def build(self) -> Method:
        weighting, mean = ByStaleness(self.power, self.temperature), DampedMean(self.power)
        return replace(
            fedavg(), name="fedbuff", participation=Buffered(self.buffer), weighting=weighting, aggregator=mean
        )
