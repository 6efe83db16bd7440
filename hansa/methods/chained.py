"""Passban et al. (2022), Training Mixed-Domain Translation Models via Federated Learning, Section 5.2.

Chained fine-tuning: one model goes from silo to silo, and each trains what the one before it left; round r is the
turn of silo r. What came first is forgotten first, so the order is a setting.
Deviations: none; after the last silo the first would have its turn again.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from hansa.core.messages import NodeId
from hansa.core.method import METHODS, Method
from hansa.core.participation import Assignment, Plan, PlanContext, silo_duration
from hansa.core.settings import Section
from hansa.core.state import ServerState
from hansa.methods.fedavg import fedavg


@dataclass(frozen=True)
class InTurn:
    """One silo in each round, in a fixed order."""

    order: tuple[NodeId, ...] = ()  # default: as the federation has them

    synchronous: ClassVar[bool] = False
    buffer: ClassVar[int] = 0
    on_trees: ClassVar[bool] = False

    def plan(self, context: PlanContext, state: ServerState) -> Plan:
        number, settings = context.number, context.settings
        order = self.order or tuple(context.children)
        node = order[state.round % len(order)]
        state.clock += silo_duration(node, number, settings.simulate, settings.seed)
        return Plan([node], [[Assignment(node, number, context.durable)]])

    def damping(self, staleness: int) -> float:
        return 1.0


@METHODS.register("chained")
class Chained(Section):
    order: tuple[str, ...] = ()

    def build(self) -> Method:
        return replace(fedavg(), name="chained", participation=InTurn(self.order))
