"""Passban et al. (2022), Training Mixed-Domain Translation Models via Federated Learning, Section 5.2.

Chained fine-tuning: one model passes from silo to silo. In round r, silo r trains the model that
the silo before it returned. The model forgets earlier silos first, so the order is a setting.
Deviations: none. If there are more rounds than silos, the order repeats.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import Field

from hansa.core.messages import NodeId
from hansa.core.method import METHODS, Method
from hansa.core.participation import Assignment, Plan, PlanContext, silo_duration
from hansa.core.settings import Section
from hansa.core.state import ServerState
from hansa.methods.fedavg import fedavg


@dataclass(frozen=True)
class RoundRobin:
    """One silo per round, in a fixed order."""

    order: tuple[NodeId, ...] = ()  # default: the order of the federation file

    synchronous: ClassVar[bool] = False
    buffer: ClassVar[int] = 0
    most_per_child: ClassVar[int] = 1
    on_trees: ClassVar[bool] = False
    state: ClassVar[None] = None

    def plan(self, context: PlanContext, state: ServerState) -> Plan:
        """Assign the round to the next silo of the order, and advance the clock by that silo's duration."""
        number, settings = context.number, context.settings
        order = self.order or tuple(context.children)
        node = order[state.round % len(order)]
        state.clock += silo_duration(node, number, settings.simulate, settings.seed)
        return Plan([node], [[Assignment(node, number, context.durable)]])

    def damping(self, staleness: int) -> float:
        """Always 1: each silo continues from the newest model, so no update is stale."""
        return 1.0


@METHODS.register("chained")
class Chained(Section):
    """Chained fine-tuning (Passban et al., 2022): one silo per round continues the model of the one before."""

    order: tuple[str, ...] = Field(default=(), description="Names of silos in order; default: that of the file.")

    def build(self) -> Method:
        """FedAvg with one silo per round, in the given order."""
        return replace(fedavg(), name="chained", participation=RoundRobin(self.order))
