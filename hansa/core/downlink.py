"""Partial downlink: a silo is sent only the tensors that it sent last time, for uploads that choose both ways.

A silo does not know the server's value of a tensor it was not sent; if it sends that tensor now, its update holds −θᵢ
instead of θ − θᵢ, and θ is added here. Silos that overlap training and transfer (`hansa.client.overlap`) know what they
were sent last, and always send differences.
"""

from dataclasses import dataclass, field, replace

from hansa.core.messages import NodeId, Train, Update
from hansa.core.participation import Assignment
from hansa.core.round import Round, RoundPart
from hansa.core.state import DOWNLINK
from hansa.core.tensors import Layout, Tensors


@dataclass(frozen=True)
class DownlinkState:
    """The names of the tensors that each silo sent last; a silo that is not here is sent everything."""

    sent: dict[NodeId, tuple[str, ...]] = field(default_factory=dict)


@dataclass
class PartialDownlink(RoundPart):
    """The part of a round that leaves tensors out of what silos are sent."""

    differences: bool = False  # silos send differences, also of tensors that they were not sent in this round
    state: DownlinkState = field(default_factory=DownlinkState)
    model: Tensors | None = None
    pushed: dict[NodeId, Layout] = field(default_factory=dict)

    def prepare(self, round: Round) -> None:
        """Recall which tensors each silo sent last."""
        self.state = round.state.slots.get(DOWNLINK) or DownlinkState()
        self.model = round.start

    def extend(self, assignment: Assignment, request: Train) -> Train:
        """Leave out of the request the tensors that the silo did not send last."""
        names = self.state.sent.get(assignment.node)
        if names is None:
            return request
        model = request.model.only(names)
        self.pushed[assignment.node] = model.layout
        return replace(request, model=model, capacity=request.model.layout.size)

    def accept(self, assignment: Assignment, update: Update) -> Update:
        """Add the server's value to tensors that the silo was not sent."""
        pushed = self.pushed.get(assignment.node)
        if pushed is None or self.model is None or self.differences:
            return update
        gradient = update.gradient.copy()
        for name, value in gradient.named().items():
            if name not in pushed.spans:
                value.add_(self.model[name])
        return replace(update, gradient=gradient)

    def finish(self, round: Round) -> None:
        """Remember which tensors each silo sent."""
        record = round.record
        kept = {node: names for node, names in self.state.sent.items() if node not in record.failures}
        round.state.slots[DOWNLINK] = DownlinkState(kept | {n: layout.names for n, layout in record.tensors.items()})
