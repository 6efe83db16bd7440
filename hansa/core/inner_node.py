"""A node answers requests. A federation is a node that asks other nodes.

A `Silo` (leaf) answers from its own data; a `Federation` (inner node) answers the same requests by asking its
children. So flat federated learning and federations of federations are one recursion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hansa.config.federation import Federation as FederationSettings
from hansa.core.link import Link
from hansa.core.messages import (
    DataCard,
    Evaluate,
    Failure,
    NodeId,
    Reply,
    Request,
    Scores,
    Train,
    Update,
    VocabularyCounts,
)
from hansa.core.method import Method
from hansa.core.participation import Child, ServerState, until
from hansa.core.round import federated_round, summed
from hansa.core.tensors import Tensors
from hansa.methods.fedavg import ServerSgd


class Node(Protocol):
    def answer(self, request: Request) -> Reply: ...


@dataclass(frozen=True)
class Federation:
    """An inner node: to its parent a node like any other, to its children the one who asks.

    It averages its children (the root alone has a server optimiser) and answers with how far the mean has moved.
    """

    name: NodeId
    members: Mapping[NodeId, Child]
    link: Link
    method: Method
    settings: FederationSettings
    rounds: int = 1

    def answer(self, request: Request) -> Reply:
        match request:
            case Train():
                return self._train(request)
            case _:
                return self._gather(request)

    def _train(self, request: Train) -> Reply:
        method = replace(self.method, server=ServerSgd())
        moving = ServerState(request.model.copy(), {})
        records = []
        for k in range(self.rounds):
            moving.round = (request.round - 1) * self.rounds + k
            record = federated_round(
                self.name, self.members, self.link, method, self.settings, moving, request.durable * self.rounds
            )
            if record.failed:
                return Failure(f"federation '{self.name}': {record.failed}")
            records.append(record)
        sent = {name for record in records for names in record.tensors.values() for name in names}
        gradient = Tensors(request.model.layout, request.model.flat - moving.model.flat).only(sent)
        answered = [update for record in records for update in record.updates.values()]
        return Update(
            gradient=gradient,
            samples=sum(u.samples for u in records[-1].updates.values()),
            seen=sum(u.seen for u in answered),
            steps=sum(u.steps for u in answered),
            loss=sum(u.loss * u.samples for u in answered) / max(1, sum(u.samples for u in answered)),
            seconds=sum(u.seconds for u in answered),
            lost={name: reason for record in records for name, reason in record.lost.items()},
            sent=summed(*(record.bytes("sent", self.name) for record in records)),
            received=summed(*(record.bytes("received", self.name) for record in records)),
        )

    def _gather(self, request: Request) -> Reply:
        """The children's replies as one; scores do without those who could not give any."""
        patience = until(self.settings.participation) if isinstance(request, Evaluate) else None
        replies = [answer.reply for answer in self.link.ask(dict.fromkeys(self.members, request), patience)]
        given = [reply for reply in replies if not isinstance(reply, Failure)]
        reasons = [reply.reason for reply in replies if isinstance(reply, Failure)]
        if not given or (reasons and not isinstance(request, Evaluate)):
            return Failure(f"federation '{self.name}': {reasons[0]}")
        return merge(given)


def merge(replies: Sequence[Reply]) -> Reply:
    """Replies of several nodes as if one had given them."""
    first, *rest = replies
    for other in rest:
        match first, other:
            case Scores(), Scores():
                first = first + other
            case VocabularyCounts(), VocabularyCounts():
                pieces = summed(first.pieces, other.pieces)
                labels = tuple(sorted({*first.labels, *other.labels}))
                first = VocabularyCounts(pieces, labels, first.withheld + other.withheld)
            case DataCard(), DataCard():
                groups = {
                    split: summed(first.groups.get(split, {}), other.groups.get(split, {}))
                    for split in ("train", "valid", "test")
                }
                first = DataCard(groups, first.per_round + other.per_round, first.problems + other.problems)
            case _:
                raise TypeError(f"cannot merge {type(first).__name__} with {type(other).__name__}")
    return first
