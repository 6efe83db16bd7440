"""What a federation is compared with. Each is an ordinary run: the same loop, ledger and report on another layout.

    central    all data pooled in one silo                    (Manoel et al., 2023, Section 2.2)
    dominant   the same, but trained on the language with most data alone  (Wang et al., 2022, Table 3, "only en")
    per-silo   one model per silo, nothing is exchanged
    chained    one model that goes from silo to silo           (Passban et al., 2022, Section 5.2)
    base       the starting model, untouched

All train with the ``baseline`` section (AdamW, its state kept), every sample once per pass, on as many samples as the
federation sees in all: a silo that is asked in every tenth round trains alone on a tenth. Their rounds are the
federation's evaluation periods, of equal length: nothing happens in between, and a schedule goes by steps. A chained
run's rounds are its silos' turns, and its schedule goes by these.
"""

from collections.abc import Mapping
from math import ceil

from hansa.config.federation import Federation
from hansa.config.nodes import Node, pooled
from hansa.config.sections import Samples, Training, Upload
from hansa.config.tree import holders
from hansa.core.messages import DataCard, NodeId
from hansa.core.participation import cohort_size
from hansa.core.settings import Named
from hansa.core.simulation import Simulation
from hansa.data.source import Source

POOL = "all"


def arrange(federation: Federation, cards: Mapping[NodeId, DataCard]) -> Federation:
    """The federation file that runs the baseline; ``cards`` say how much the silos hold and train on in a round."""
    if federation.kind == "federated":
        return federation
    asked = min(1.0, cohort_size(federation.participation, len(federation.silos)) / len(federation.silos))
    periods = 0 if federation.kind == "base" else ceil(federation.rounds / federation.evaluate.every)
    # In a period, a silo of the federation trains so often; where there are none, nobody asks.
    often = asked * federation.rounds / periods if periods else 1.0
    changes = {
        "rounds": periods,
        "method": Named(name="fedavg"),
        "server": None,
        "aggregate": None,
        "secure_aggregation": None,
        "upload": Upload(),
        "personal": None,
        "root": None,
        "simulate": Simulation(),
        "participation": federation.participation.model_copy(update={"share": 1.0, "count": None}),
        "evaluate": federation.evaluate.model_copy(update={"every": 1}),
        "checkpoint": federation.checkpoint.model_copy(update={"every": 1}),
    }
    if federation.kind in ("central", "dominant"):
        sources = _pooled(federation)
        if federation.kind == "dominant":
            only = dominant(cards)
            sources = tuple(s if s.group(POOL) == only else s.model_copy(update={"limit": 0}) for s in sources)
        changes["silos"] = {POOL: Node(sources=sources)}
        amount = max(1, round(often * sum(card.per_round for card in cards.values())))
        changes["train"] = _training(federation, Samples(floor=amount, replace=False), None)
    elif federation.kind == "per-silo":
        changes["method"] = Named(name="alone")
        changes["silos"] = {name: Node(sources=node.sources) for name, node in holders(federation).items()}
        changes["train"] = _as_often(federation, often)
    elif federation.kind == "chained":
        holding = {name: Node(sources=node.sources) for name, node in holders(federation).items()}
        order = federation.order or tuple(holding)
        changes["method"] = Named.model_validate({"name": "chained", "order": order})
        changes["silos"] = holding
        changes["rounds"] = len(order)
        changes["train"] = _as_often(federation, asked * max(1, federation.rounds))
    return federation.model_copy(update=changes)


def dominant(cards: Mapping[NodeId, DataCard]) -> str:
    """The language with most training samples."""
    counts: dict[str, int] = {}
    for card in cards.values():
        for group, count in card.groups.get("train", {}).items():
            counts[group] = counts.get(group, 0) + count
    return max(sorted(counts), key=lambda group: counts[group])


def _pooled(federation: Federation) -> tuple[Source, ...]:
    """Every source of every node; a mixture has none of its own."""
    own = federation.root.sources if federation.root else ()
    return (*own, *pooled(federation.silos))


def _training(federation: Federation, samples: Samples, max_batches: int | None) -> Training:
    return federation.baseline.model_copy(update={"samples": samples, "max_batches": max_batches})


def _as_often(federation: Federation, times: float) -> Training:
    """What a silo does in so many rounds of the federation."""
    train, samples = federation.train, federation.train.samples.scaled(times, replace=False, adapt=None)
    most = train.max_batches and ceil(times * train.max_batches * train.batch / federation.baseline.batch)
    return _training(federation, samples, most)
