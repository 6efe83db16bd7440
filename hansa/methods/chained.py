"""Passban et al. (2022), Training Mixed-Domain Translation Models via Federated Learning, Section 5.2.

Chained fine-tuning: one model goes from silo to silo, and each trains what the one before it left; round r is the
turn of silo r. What came first is forgotten first, so the order is a setting.
Deviations: none; after the last silo the first would have its turn again.
"""

from dataclasses import dataclass, replace

from hansa.core.messages import NodeId, Train
from hansa.core.method import METHODS, Method
from hansa.core.participation import Ask, Asker, ServerState, duration, until
from hansa.core.settings import Section
from hansa.methods.fedavg import fedavg


@dataclass(frozen=True)
class InTurn:
    order: tuple[NodeId, ...] = ()  # default: as the federation has them

    def gather(self, asker: Asker, moving: ServerState) -> tuple[list[NodeId], Ask]:
        number, settings = moving.round + 1, asker.settings
        order = self.order or tuple(asker.members)
        node = order[moving.round % len(order)]
        moving.clock += duration(node, number, settings.simulate, settings.seed)
        request = Train(number, moving.model, asker.durable)
        return [node], lambda _brief: asker.link.ask({node: request}, until(settings.participation))


@METHODS.register("chained")
class Chained(Section):
    order: tuple[str, ...] = ()

    def build(self) -> Method:
        return replace(fedavg(), name="chained", pace=InTurn(self.order))
