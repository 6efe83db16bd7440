"""Knowledge exchange: silos share something about their data before they train. Step 2 of a round.

    ShareKnowledge(model) → the cohort      the model travels now, and not again with `Train`: silos hold it
    Knowledge             ← each            what the method's exchange makes of the silo's data
    Train(others' knowledge) → each         every silo gets what all others shared

Knowledge that fails its checks goes no further: the reason is in the record, and the round goes on without it. What it
may contain is the method's business (`method.Exchange`); everything in it is a release.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hansa.core import wire
from hansa.core.knowledge import ExchangeOutcome, Sizes
from hansa.core.messages import Failure, Knowledge, KnowledgePart, NodeId, ShareKnowledge, Train
from hansa.core.method import Exchange
from hansa.core.participation import Assignment
from hansa.core.round import Round, RoundPart
from hansa.core.tensors import is_finite

MAX_VALUE = 1e4  # beyond what embedded texts and predictions reach: one silo must not ruin the others' training


@dataclass
class KnowledgeExchange(RoundPart):
    """The part of a round in which the cohort shares knowledge. ``sizes``: what it is checked by, where known."""

    exchange: Exchange
    sizes: Callable[[], Sizes] | None = None
    outcome: ExchangeOutcome = field(default_factory=ExchangeOutcome)

    def prepare(self, round: Round) -> None:
        """Ask the cohort, and note what each silo will receive. A silo that could not answer holds no model either."""
        outcome, good, holding = self.outcome, dict[NodeId, Knowledge](), list[NodeId]()
        sizes = self.sizes() if self.sizes is not None else None
        request = ShareKnowledge(round.number, round.start)
        for answer in round.link.ask(dict.fromkeys(round.record.cohort, request), round.deadline()):
            node, reply = answer.node, answer.reply
            round.record.count_bytes(answer)
            if isinstance(reply, Failure):
                outcome.rejected[node] = reply.reason
                continue
            holding.append(node)
            outcome.up[node] = wire.payload(reply)
            if reason := problem(reply, self.exchange, sizes):
                outcome.rejected[node] = reason
            else:
                assert isinstance(reply, Knowledge)
                good[node] = replace(reply, tensors=reply.tensors.copy())
        for node in holding:
            outcome.received[node] = tuple(knowledge for other, knowledge in good.items() if other != node)
            outcome.down[node] = sum(map(wire.payload, outcome.received[node]))
        round.record.exchange = outcome
        round.lap("exchange")

    def extend(self, assignment: Assignment, request: Train) -> Train:
        """A silo that took part gets what the others shared, and holds the model already."""
        if assignment.node not in self.outcome.received:
            return request
        return replace(request, knowledge=KnowledgePart(self.outcome.received[assignment.node], model_held=True))


def problem(reply: object, exchange: Exchange, sizes: Sizes | None) -> str:
    """Why the other silos must not get this reply; empty if they may."""
    if not isinstance(reply, Knowledge):
        return f"it sent a {type(reply).__name__} instead of knowledge"
    if not reply.members:
        too_small = f": {reply.withheld} groups of its samples are too small" if reply.withheld else ""
        return f"it shared nothing{too_small}"
    if any(shape[:1] != (len(reply.members),) for shape in reply.tensors.layout.shapes):
        return "the tensors that it shared differ in their number of rows"
    if any(count < 1 for count in reply.members):
        return "it shared a row that stands for no sample"
    if not reply.tensors.flat.numel():
        return "what it shared has no numbers"
    if not is_finite(reply.tensors.flat):
        return "it shared values that are not finite (NaN or Inf)"
    if float(reply.tensors.flat.abs().max()) > MAX_VALUE:
        return f"it shared values beyond {MAX_VALUE:g}, which embedded texts do not have"
    return exchange.check(reply, sizes) if sizes is not None else ""
