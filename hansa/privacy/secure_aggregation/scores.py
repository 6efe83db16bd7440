"""Scores under masks: which number stands where in the vector that silos add up.

Silos and server lay the vector out from what both know before any data is read: the names of the task's sums
(`NamedSums.sum_names`) and the number of parts. It has one group, `ALL`: which languages a silo has does not show.
"""

from collections.abc import Sequence

from hansa.core.messages import PART, Scores

ALL = "all"  # the one group of masked scores: all samples of all silos


def flatten(scores: Scores, names: Sequence[str], parts: int) -> list[float]:
    """The sums of a silo over its groups, part by part, name by name; zero where there is none.

    Raises ValueError for a sum that is not among ``names``.
    """
    found = [dict.fromkeys(names, 0.0) for _ in range(parts)]
    for group, sums in scores.sums.items():
        part = int(group.rpartition(PART)[2]) if parts > 1 else 0
        for name, value in sums.items():
            if name not in found[part]:
                raise ValueError("the task returned a sum that it does not name beforehand ('sum_names')")
            found[part][name] += value
    return [value for sums in found for value in sums.values()]


def unflatten(values: Sequence[float], names: Sequence[str], parts: int) -> Scores:
    """The scores whose sums `flatten` laid out."""
    cut = len(names)
    named = [dict(zip(names, values[part * cut : (part + 1) * cut], strict=True)) for part in range(parts)]
    return Scores({ALL if parts == 1 else f"{ALL}{PART}{part}": sums for part, sums in enumerate(named)})
