"""Personalisation after the last round, at the server: asks every silo for a model of its own and notes the scores."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from hansa.client.personalisation import MIXED, NEARBY, OWN
from hansa.config.sections import Personal as Settings
from hansa.core.link import Link
from hansa.core.messages import Failure, NodeId, Personalise, PersonalScores
from hansa.core.tensors import Tensors, is_finite
from hansa.tasks.base import Task

# ── at the federation ─────────────────────────────────────────────────────────────────────────────────────────────


def personal_models(
    link: Link,
    names: list[NodeId],
    settings: Settings,
    round: int,
    model: Tensors,
    start: Tensors,
    task: Task,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Ask every silo for a model of its own; return what is known of them, silo by silo, for ledger and report.

    ``tell``: is called with the number of answers so far, and of all that will come.
    """
    found: dict[str, Any] = {"silos": {}, "nearby": {}}
    total = len(names) * (3 if settings.nearby else 1)
    tell(0, total)
    if not settings.nearby:
        ask = Personalise(round, model, start, OWN)
        _note(found, task, _told(_answers(link, dict.fromkeys(names, ask), found), tell, 0, total))
        return found
    first = Personalise(round, model, start, OWN, 0, True)
    updates = {}
    for name, reply in _told(_answers(link, dict.fromkeys(names, first), found), tell, 0, total):
        if reply.gradient.layout != start.layout or not is_finite(reply.gradient.flat):
            found.setdefault("lost", {})[name] = "its update does not fit the model, or is not finite"
        else:
            updates[name] = reply.gradient.copy()
    weights = similarity(updates, settings.nearby)
    found["nearby"] = weights
    for part, (label, mixed) in enumerate(((OWN, False), (NEARBY, True)), 1):
        asks = {}
        for name, update in updates.items():
            step = mixture(name, updates, weights) if mixed else update.flat
            asks[name] = Personalise(round, model, Tensors(start.layout, start.flat - step), label, 1)
        _note(found, task, _told(_answers(link, asks, found), tell, part * len(names), total))
    return found


def _told(
    answers: Iterator[tuple[NodeId, PersonalScores]], tell: Callable[[int, int], None], before: int, total: int
) -> Iterator[tuple[NodeId, PersonalScores]]:
    """The answers, each reported when it has come."""
    for number, answer in enumerate(answers, before + 1):
        yield answer
        tell(number, total)


def similarity(updates: Mapping[NodeId, Tensors], count: int) -> dict[NodeId, dict[NodeId, float]]:
    """For every silo, its nearest others by the cosine of their updates, as shares that sum to one."""
    unit = {name: u.flat / (u.flat.norm() + 1e-12) for name, u in updates.items()}
    found = {}
    for name, mine in unit.items():
        others = {other: max(0.0, float(torch.dot(mine, theirs))) for other, theirs in unit.items() if other != name}
        near = sorted(others, key=lambda other: (-others[other], other))[:count]
        total = sum(others[n] for n in near)
        found[name] = {n: others[n] / total for n in near if others[n] > 0} if total else {}
    return found


def mixture(
    name: NodeId, updates: Mapping[NodeId, Tensors], weights: Mapping[NodeId, Mapping[NodeId, float]]
) -> Tensor:
    """Half the silo's own step, half that of its neighbours; all its own where nobody is near."""
    if not weights[name]:
        return updates[name].flat
    mixed = updates[name].flat * 0.5
    for other, share in weights[name].items():
        mixed.add_(updates[other].flat, alpha=0.5 * share)
    return mixed


def _answers(
    link: Link, asks: Mapping[NodeId, Personalise], found: dict[str, Any]
) -> Iterator[tuple[NodeId, PersonalScores]]:
    for answer in link.ask(asks, None):
        if isinstance(answer.reply, PersonalScores):
            yield answer.node, answer.reply
        else:
            reason = answer.reply.reason if isinstance(answer.reply, Failure) else "it sent no personal scores"
            found.setdefault("lost", {})[answer.node] = reason


def _note(found: dict[str, Any], task: Task, answers: Iterator[tuple[NodeId, PersonalScores]]) -> None:
    for name, reply in answers:
        known = found["silos"].setdefault(name, {"models": {}, "losses": {}, "alpha": 0.0, "curves": {}})
        for model, groups in reply.sums.items():
            known["models"][model] = {group: task.metrics(sums) for group, sums in groups.items()}
        known["losses"] |= reply.losses
        if MIXED in reply.sums:
            known["alpha"], known["curves"] = reply.alpha, reply.curves
        known["kept"] = min(known["losses"], key=lambda model: known["losses"][model])
