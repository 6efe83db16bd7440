"""Evaluation of a model on samples, language by language.

The questions (masks, subset) come from the seed, so that every model is asked the same.
"""

from itertools import product
from statistics import stdev

import numpy as np
import torch
from torch import nn

from hansa.core.knowledge import Indices
from hansa.core.messages import PART, Scores
from hansa.core.seeds import stream
from hansa.data.arrays import places, without
from hansa.data.batching import batches
from hansa.data.examples import Examples
from hansa.tasks.base import GenerationTask, Task, Vocabulary


def evaluate(
    model: nn.Module,
    task: Task,
    examples: Examples,
    vocabulary: Vocabulary,
    seed: int,
    share: float = 1.0,
    batch_size: int = 64,
    parts: int = 1,
    decode: bool = False,
    draws: int = 1,
) -> Scores:
    """Return sums over each group's samples.

    With ``decode``, also of the texts that a generating task generates. With several ``draws``, each sample is
    masked that often anew. ``share`` and ``parts``: see `Evaluate`.
    """
    if model.training:
        model.eval()
    total, device = Scores({}), next(model.parameters()).device
    with torch.inference_mode():
        for number, group in enumerate(examples.groups):
            mine = scored_samples(examples, number, seed, share)
            rng = stream(seed, group, "questions")
            for draw, part in product(range(draws), range(parts)):
                name = part_name(group, part, parts)
                for indices in batches(mine[part::parts], examples.lengths, batch_size, None):
                    sums = task.score(model, task.batch(examples, indices, rng, vocabulary).to(device))
                    total = total + Scores({name: sums})
                if decode and draw == 0 and isinstance(task, GenerationTask):
                    chosen = generated_samples(task, mine, part, parts)
                    if not len(chosen):
                        continue
                    total = total + Scores({name: task.compare(model, examples, chosen, vocabulary, batch_size)})
    return total


def scored_samples(examples: Examples, number: int, seed: int, share: float) -> Indices:
    """The samples of a group that are scored: all, or a ``share`` of them, always the same."""
    mine = places(examples.group, number)
    if share >= 1.0 or not len(mine):
        return mine
    keep = max(1, round(share * len(mine)))
    stream(seed, examples.groups[number], "share").shuffle(mine)
    kept = mine[:keep]
    kept.sort()
    return kept


def generated_samples(task: GenerationTask, mine: Indices, part: int, parts: int) -> Indices:
    """The samples of one part of a group for which a task generates texts.

    A task that generates few of them does so in the first part only, so that as many rows as it says are behind the
    scores of their texts; they are spread evenly over that part.
    """
    chosen = mine[part::parts]
    if task.generated is None or not len(chosen):
        return chosen
    count = min(task.generated, len(chosen)) if part == 0 else 0
    return chosen[np.arange(count) * len(chosen) // max(1, count)]


def part_name(group: str, part: int, parts: int) -> str:
    """The name under which the scores of one part of a group are returned."""
    return group if parts == 1 else f"{group}{PART}{part}"


def writer(task: Task, decode: bool) -> GenerationTask | None:
    """The task, if it generates texts where an evaluation asks for them."""
    return task if decode and isinstance(task, GenerationTask) else None


def scored(
    examples: Examples, seed: int, share: float = 1.0, parts: int = 1, writing: GenerationTask | None = None
) -> dict[str, int]:
    """How many rows are behind the scores of each group and part that `evaluate` returns.

    ``writing``: the task, if it generates texts; fewer rows may be behind their scores.
    """
    found: dict[str, int] = {}
    for number, group in enumerate(examples.groups):
        mine = scored_samples(examples, number, seed, share)
        for part in range(parts):
            found[part_name(group, part, parts)] = _behind(examples, mine, part, parts, writing)
    return found


def _behind(examples: Examples, mine: Indices, part: int, parts: int, writing: GenerationTask | None) -> int:
    count = examples.rows_behind(mine[part::parts])
    some = generated_samples(writing, mine, part, parts) if writing is not None else mine[:0]
    return min(count, examples.rows_behind(some)) if len(some) else count


def least_shown(
    examples: Examples, seed: int, share: float, parts: int, writing: GenerationTask | None = None, both: bool = False
) -> dict[str, int]:
    """To how few rows the scores of each group and part lead, by themselves or with those of the whole group.

    The whole group's scores less those of all parts but one are the scores of that part; less those of a share of the
    samples, where ``both`` are asked of the same model, they are the scores of the rest.
    """
    found: dict[str, int] = {}
    for number, group in enumerate(examples.groups):
        mine = scored_samples(examples, number, seed, share)
        rest = without(places(examples.group, number), mine) if both else mine[:0]
        counts = [_behind(examples, mine, part, parts, writing) for part in range(parts)]
        fewest = min([*counts, examples.rows_behind(rest)] if len(rest) else counts)
        found |= {part_name(group, part, parts): fewest for part in range(parts)}
    return found


def whole(scores: Scores) -> Scores:
    """Scores with the parts of every group added up again."""
    total = Scores({})
    for name, sums in scores.sums.items():
        total = total + Scores({name.rpartition(PART)[0]: sums})
    return total


def deviations(task: Task, scores: Scores) -> dict[str, dict[str, float]]:
    """Group → metric → standard deviation over its parts (Manoel et al., 2023, Table 7)."""
    values: dict[str, dict[str, list[float]]] = {}
    for name, sums in scores.sums.items():
        for metric, value in task.metrics(sums).items():
            values.setdefault(name.rpartition(PART)[0], {}).setdefault(metric, []).append(value)
    return {g: {m: stdev(v) for m, v in found.items() if len(v) > 1} for g, found in values.items()}
