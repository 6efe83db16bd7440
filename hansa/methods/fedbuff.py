"""Nguyen et al. (2022), Federated Learning with Buffered Asynchronous Aggregation (FedBuff), Algorithm 1.

    Δᵢ = θ_v − θᵢ, with v the version that silo i started from;  τᵢ = versions since then
    s(τ) = (1 + τ)^(−a)                                                                    a = ½ in the paper
    θ ← θ − η·(1/K)·Σ_{K arrivals} s(τᵢ)·Δᵢ                                                 then the buffer is empty

K (``buffer``): updates per step; a (``power``): exponent of the damping. Every silo trains all the time. When a silo
is done, its update enters the buffer and the silo starts again from the newest model. When the buffer holds K
updates, the server takes a step, which counts as a round. ``temperature`` t weighs silos by Nᵢ^t among the K (0, the
paper: equally).
On a tree, a child may be a region, whose reply is an update as a silo's is. A region with a method of its own
(`silos.NAME.method: fedbuff`) is asynchronous itself (`hansa/core/region_rounds.py`); without one it waits for its
silos.
Deviations: in a simulation time is virtual (`simulate.delay`), so that a run gives the same result on any machine.
Between organisations updates count as they arrive (`hansa/core/arrivals.py`). The updates of one round are summed in
the order of names, so that a recorded order of arrivals gives the same bits.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import Field

from hansa.core.arrivals import Arrivals, BufferState, PendingWork, RecordedArrivals, arrivals_of, in_use
from hansa.core.messages import NodeId, Update
from hansa.core.method import METHODS, Method
from hansa.core.participation import Assignment, Plan, PlanContext, deadline_of, duration
from hansa.core.settings import Count, Section
from hansa.core.state import PARTICIPATION, ServerState
from hansa.core.tensors import Layout, Tensors, WeightedMean
from hansa.methods.fedavg import fedavg


@dataclass(frozen=True)
class Buffered:
    """A round ends with the next ``buffer`` updates, or at its deadline with those that are there."""

    buffer: int
    synchronous: ClassVar[bool] = False
    on_trees: ClassVar[bool] = False
    state: ClassVar[type[BufferState]] = BufferState

    @property
    def most_per_child(self) -> int:
        """The whole buffer: a silo that is much faster than the others fills it by itself."""
        return self.buffer

    def plan(self, context: PlanContext, state: ServerState) -> Plan:
        """Take the next ``buffer`` finished works, each with the model version that its silo started from.

        Replaces the buffer's state; the clock advances to the last arrival unless the deadline ends the round earlier.
        """
        before: BufferState = state.slots.get(PARTICIPATION) or BufferState()
        versions, source = before.with_version(state), self._source(context, state)
        arrived, pending = self._arrivals(context, source, before, versions, state)
        state.slots[PARTICIPATION] = after = in_use(pending, arrived, versions)
        names = [work.node for work in arrived]
        return Plan(names, self._waves(context, arrived, after, state), arrivals=names, failures=source.failures)

    def damping(self, staleness: int) -> float:
        """Always 1: `ByStaleness` and `DampedMean` damp stale updates."""
        return 1.0

    def _arrivals(
        self,
        context: PlanContext,
        source: Arrivals,
        before: BufferState,
        versions: Mapping[int, Tensors],
        state: ServerState,
    ) -> tuple[list[PendingWork], list[PendingWork]]:
        """The next works to end, and those still under way. A silo that is done starts again at once."""

        def start(node: NodeId, version: int, at: float, number: int) -> PendingWork:
            """The work that a child begins at virtual time ``at``, from a version of the model."""
            due = at + duration(node, context.children[node], number, context.settings)
            return PendingWork(node, version, due, number)

        pending = list(before.pending) or [start(n, state.round, state.clock, 1) for n in sorted(context.children)]
        source.begin(pending, versions)
        arrived: list[PendingWork] = []
        while len(arrived) < self.buffer and (first := source.next(pending)) is not None:
            arrived.append(first)
            again = start(first.node, state.round, first.due, first.number + 1)
            pending = [*(work for work in pending if work.node != first.node), again]
            if len(arrived) < self.buffer:
                source.begin([again], versions)
        if len(arrived) < self.buffer:
            return arrived, pending
        state.clock = arrived[-1].due
        # A silo that is done at the very moment of the step starts from the model that the step makes.
        now = {(work.node, work.number + 1) for work in arrived if work.due == state.clock}
        newest = state.round + 1
        return arrived, [replace(w, version=newest) if (w.node, w.number) in now else w for w in pending]

    def _source(self, context: PlanContext, state: ServerState) -> Arrivals:
        """What decides the order of the updates."""
        settings, forgotten = context.settings, self._done_since(context.durable, state)
        if context.arrivals:
            return RecordedArrivals(context.arrivals, state.clock)
        return arrivals_of(
            context.link,
            settings.simulate.arrivals,
            context.number,
            state.clock,
            deadline_of(settings.participation),
            lambda number: number - forgotten,
        )

    def _done_since(self, durable: int, state: ServerState) -> int:
        """Works that a silo has done since the durable round, at most."""
        return self.buffer * (state.round + 1 - durable)

    def _waves(
        self, context: PlanContext, arrived: list[PendingWork], after: BufferState, state: ServerState
    ) -> list[list[Assignment]]:
        """The assignments of a round; a silo that arrives twice is asked again in a second wave.

        Silos number their own works.
        """
        waiting, waves = list(arrived), list[list[Assignment]]()
        forgotten = self._done_since(context.durable, state)
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
        """Weight by Nᵢ^t, damped by the staleness."""
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
        """Sum the damped pseudo-gradients, and divide by the sum of the weights without damping."""
        mean = WeightedMean(layout)
        for update, weight in updates:
            mean.add(update.gradient, weight, weight * (1 + update.staleness) ** self.power)
        return mean.mean()


@METHODS.register("fedbuff")
class FedBuff(Section):
    """FedBuff (Nguyen et al., 2022): buffered asynchronous aggregation."""

    buffer: Count = Field(default=3, description="Number K of updates that end a round.")
    power: float = Field(default=0.5, ge=0.0, description="a: an update that is τ versions old counts (1 + τ)^−a.")
    temperature: float = Field(
        default=0.0, ge=0.0, description="Exponent t of the weight N^t; 0: equal, as in the paper."
    )

    def build(self) -> Method:
        """FedAvg with buffered participation, weights by staleness and the damped mean."""
        weighting, mean = ByStaleness(self.power, self.temperature), DampedMean(self.power)
        return replace(
            fedavg(), name="fedbuff", participation=Buffered(self.buffer), weighting=weighting, aggregator=mean
        )
