"""Each silo's share of the data, of a round and of the aggregate: computed here for preview, report and model card.

`SiloShare.weight` is what the method's weighting gives a silo that takes part in a round with all others; the ledger
has the weight that each update had (`round_weights`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.tree import is_tree
from hansa.core.claims import counted, largest_count
from hansa.core.messages import DataCard, NodeId, Update
from hansa.core.round import Record, Server
from hansa.core.tensors import NOTHING
from hansa.privacy.secure_aggregation.limits import capped


@dataclass(frozen=True)
class SiloShare:
    """The data of one silo, and its shares."""

    name: NodeId
    samples: int  # training samples
    share: float  # of all training samples
    per_round: int
    round_share: float  # of the samples of a round
    weight: float | None  # its share of the aggregate; None if that depends on more than sample counts
    test: int  # test samples


def silo_shares(federation: Federation, cards: Mapping[NodeId, DataCard]) -> list[SiloShare]:
    """The shares of every node that holds data."""
    total = sum(card.samples() for card in cards.values()) or 1
    per_round = sum(card.per_round for card in cards.values()) or 1
    weights = expected_weights(federation, {name: card.samples() for name, card in cards.items()})
    return [
        SiloShare(
            name,
            card.samples(),
            card.samples() / total,
            card.per_round,
            card.per_round / per_round,
            weights.get(name),
            card.samples("test") if "test" in card.groups else 0,
        )
        for name, card in cards.items()
    ]


def expected_weights(federation: Federation, samples: Mapping[NodeId, int]) -> dict[NodeId, float]:
    """Each silo's share of the aggregate; empty in trees, and where weights overflow or need more than counts."""
    method = build_method(federation)
    known = method.weighting.known_before_training and method.aggregator.linear
    if federation.kind != "federated" or not known or is_tree(federation) or not samples:
        return {}
    share = federation.participation.max_share
    most = max(samples.values()) if share is None else largest_count(list(samples.values()), share)
    weigh = weighing(federation)
    try:
        weights = {name: weigh(min(count, most)) for name, count in samples.items()}
    except OverflowError:  # such as a temperature of 1e6, which the round itself refuses
        return {}
    cap = federation.secure_aggregation.max_share if federation.secure_aggregation is not None else 1.0
    return dict(capped(weights, cap))


def weighing(federation: Federation) -> Callable[[int], float]:
    """The weight of a node by its samples; 1 for all where the method's weights need more than that."""
    weighting = build_method(federation).weighting
    if not weighting.known_before_training:
        return lambda samples: 1.0
    return lambda samples: weighting.weight(Update(NOTHING, samples, 0, 0, 0.0, 0.0))


def round_weights(server: Server, record: Record) -> dict[NodeId, float]:
    """The share that each update of a round had in the aggregate.

    Empty where it is not known: under masks, with rules that are not a weighted sum, and on trees of models.
    """
    method = server.method
    if record.hidden is not None or not method.aggregator.linear or method.hierarchy is not None:
        return {}
    if any(update.masked is not None for update in record.updates.values()):
        return {}
    weights = {
        node: method.weighting.weight(counted(update, server.children.get(node)))
        for node, update in record.updates.items()
    }
    total = sum(weights.values())
    return {node: weight / total for node, weight in weights.items()} if total > 0 else {}
