"""Step 2 of a round: silos tell one another what they know before they train.

    Trade(model) → the cohort          the model travels now, and not again with Train: silos hold it
    Offer        ← each                what the method's exchange makes of the silo's data
    Train(others' offers) → each       every silo hears all offers but its own

An offer that makes no sense goes no further: the reason is in the record, and the round goes on without it. What an
offer may contain is the method's business (`method.Exchange`); everything in it is a release.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hansa.core import wire
from hansa.core.batch import Batch
from hansa.core.messages import Failure, Knowledge, NodeId, ShareKnowledge, Train
from hansa.core.method import Exchange
from hansa.core.participation import Asker, ServerState, until
from hansa.core.tensors import is_finite

FARTHEST = 1e4  # what embedded texts and predictions never come to: one silo's offer must not end the others' training

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """A silo's training samples as an exchange sees them."""

    size: int
    batches: Callable[[], Iterator[tuple[Indices, Batch]]]  # all of them, always in the same order
    rng: np.random.Generator


@dataclass(frozen=True)
class SharedKnowledge:
    """An offer, and the samples behind each of its rows; those stay in the silo."""

    offer: Knowledge
    samples: tuple[Indices, ...] = ()


@dataclass(frozen=True)
class Sizes:
    """What an offer is held against: the model's widths and classes, the longest sample."""

    embedding: int  # of a token where the first block gets it
    pooled: int  # of a text where the last linear layer gets it
    labels: int
    length: int


@dataclass
class ExchangeOutcome:
    """What an exchange came to: what each silo hears, who was not heard and why, and what it took."""

    heard: dict[NodeId, tuple[Knowledge, ...]] = field(default_factory=dict)
    unheard: dict[NodeId, str] = field(default_factory=dict)
    sent: dict[NodeId, int] = field(default_factory=dict)  # bytes down with Trade: the model
    received: dict[NodeId, int] = field(default_factory=dict)
    up: dict[NodeId, int] = field(default_factory=dict)  # of the offers' tensors alone, without headers
    down: dict[NodeId, int] = field(default_factory=dict)

    def brief(self, node: NodeId, plain: Train) -> Train:
        """Who took part hears the others, and holds the model already."""
        return replace(plain, offers=self.heard[node], held=True) if node in self.heard else plain


def trade(
    exchange: Exchange, cohort: list[NodeId], asker: Asker, moving: ServerState, sizes: Sizes | None
) -> ExchangeOutcome:
    """Ask the cohort for offers, and note what each member will hear. Who could not answer holds no model either."""
    traded, good, holding = ExchangeOutcome(), {}, []
    request = ShareKnowledge(moving.round + 1, moving.model)
    for answer in asker.link.ask(dict.fromkeys(cohort, request), until(asker.settings.participation)):
        node, reply = answer.node, answer.reply
        traded.sent[node], traded.received[node] = answer.sent, answer.received
        if isinstance(reply, Failure):
            traded.unheard[node] = reply.reason
            continue
        holding.append(node)
        traded.up[node] = wire.payload(reply)
        if reason := flaw(reply, exchange, sizes):
            traded.unheard[node] = reason
        else:
            assert isinstance(reply, Knowledge)
            good[node] = replace(reply, knowledge=reply.knowledge.copy())
    for node in holding:
        traded.heard[node] = tuple(offer for other, offer in good.items() if other != node)
        traded.down[node] = sum(map(wire.payload, traded.heard[node]))
    return traded


def flaw(offer: object, exchange: Exchange, sizes: Sizes | None) -> str:
    """Why the others must not get this offer; empty if they may."""
    if not isinstance(offer, Knowledge):
        return f"it sent a {type(offer).__name__} instead of an offer"
    if not offer.members:
        return (
            f"it told nothing: {offer.withheld} groups of its samples are too small"
            if offer.withheld
            else "it told nothing"
        )
    if any(shape[:1] != (len(offer.members),) for shape in offer.knowledge.layout.shapes):
        return "the tensors of its offer differ in their number of rows"
    if any(count < 1 for count in offer.members):
        return "its offer has a row that stands for no sample"
    if not offer.knowledge.flat.numel():
        return "its offer has no numbers"
    if not is_finite(offer.knowledge.flat):
        return "its offer has values that are not finite (NaN or Inf)"
    if float(offer.knowledge.flat.abs().max()) > FARTHEST:
        return f"its offer has values beyond {FARTHEST:g}, which no text has"
    return exchange.flaw(offer, sizes) if sizes is not None else ""
