"""Baselines of a federation. Each is an ordinary run: the same loop, ledger and report on other settings.

    central    all data pooled in one silo                    (Manoel et al., 2023, Section 2.2)
    dominant   central, on the language with most data only    (Wang et al., 2022, Table 3, "only en")
    per-silo   one model per silo; silos exchange nothing
    chained    one model, trained by one silo after another    (Passban et al., 2022, Section 5.2)
    base       the starting model without training

All train with the ``baseline`` section (AdamW with its state kept), draw every sample once per pass, and train on as
many samples as the whole federation does: a silo that takes part in every tenth round of the federation trains on a
tenth. One round of a baseline is one evaluation period of the federation, all of equal length, and learning-rate
schedules advance by steps. One round of a chained run is one silo's turn, and its schedule advances by turns.
"""

from collections.abc import Mapping
from math import ceil
from pathlib import Path

from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import Node, pooled
from hansa.config.sections import Samples, Training, Upload
from hansa.config.tree import holders, is_tree
from hansa.core.messages import DataCard, NodeId
from hansa.core.participation import cohort_size
from hansa.core.settings import Named
from hansa.core.simulation import Simulation
from hansa.data.source import Source
from hansa.models import build
from hansa.models.settings import Model, Tokenizer

POOL = "all"


def arrange(federation: Federation, cards: Mapping[NodeId, DataCard]) -> Federation:
    """The settings that run the baseline which ``federation.kind`` names; a federated run is returned unchanged.

    ``cards``: how many samples each silo holds and trains on in a round.
    """
    if federation.kind == "federated":
        return federation
    asked = min(1.0, updates_per_round(federation) / len(federation.silos))
    periods = 0 if federation.kind == "base" else ceil(federation.rounds / federation.evaluate.every)
    often = asked * federation.rounds / periods if periods else 1.0  # rounds of one silo in a period, on average
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


def updates_per_round(federation: Federation) -> int:
    """How many updates a round of the root ends with: as many as silos take part, or the buffer's size."""
    rule = build_method(federation).participation
    if not rule.synchronous and rule.buffer:
        return rule.buffer
    return cohort_size(federation.participation, len(federation.silos))


def with_same_budget(federation: Federation, other: Federation) -> Federation:
    """``other`` with as many rounds as give it the updates, and so about the samples, of ``federation``.

    Evaluations and checkpoints come after as many samples. Baselines and trees are left as they are.
    """
    if "federated" not in (federation.kind, other.kind) or other.kind != federation.kind or is_tree(other):
        return other
    factor = updates_per_round(federation) / updates_per_round(other)
    if factor == 1.0:
        return other
    every, kept = other.evaluate.every, other.checkpoint.every
    changes = {
        "rounds": ceil(other.rounds * factor),
        "evaluate": other.evaluate.model_copy(update={"every": max(1, round(every * factor))}),
        "checkpoint": other.checkpoint.model_copy(update={"every": max(1, round(kept * factor))}),
    }
    return other.model_copy(update=changes)


def evaluation_only(federation: Federation, model: str) -> Federation:
    """A run without rounds: the given model on every silo's test data.

    A classifier or tagger brings its classes: they are the labels of the task, in the model's own order.
    """
    here = str(Path(model).resolve()) if Path(model).is_dir() else model
    settings = Model(path=here)
    task = federation.task
    own = build.head_labels(settings)
    if own and not task.settings.get("labels"):
        tags = tuple(dict.fromkeys(name[2:] for name in own if name[:2] in ("B-", "I-")))
        task = Named(name=task.name, **task.settings | {"labels": tags or own})
    changes = {
        "name": f"{federation.name}-evaluation",
        "kind": "base",
        "rounds": 0,
        "model": settings,
        "task": task,
        "tokenizer": Tokenizer(),
        "personal": None,
    }
    return federation.model_copy(update=changes)


def dominant(cards: Mapping[NodeId, DataCard]) -> str:
    """The language with most training samples over all silos."""
    counts: dict[str, int] = {}
    for card in cards.values():
        for group, count in card.groups.get("train", {}).items():
            counts[group] = counts.get(group, 0) + count
    return max(sorted(counts), key=lambda group: counts[group])


def _pooled(federation: Federation) -> tuple[Source, ...]:
    """Every source of every node; a mixture has no sources of its own."""
    own = federation.root.sources if federation.root else ()
    return (*own, *pooled(federation.silos))


def _training(federation: Federation, samples: Samples, max_batches: int | None) -> Training:
    return federation.baseline.model_copy(update={"samples": samples, "max_batches": max_batches})


def _as_often(federation: Federation, times: float) -> Training:
    """The training that a silo does in ``times`` rounds of the federation."""
    train, samples = federation.train, federation.train.samples.scaled(times, replace=False, adapt=None)
    most = train.max_batches and ceil(times * train.max_batches * train.batch / federation.baseline.batch)
    return _training(federation, samples, most)
