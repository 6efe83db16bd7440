"""Statistics of attacks: the area under the ROC curve with its confidence interval, and exposure."""

from dataclasses import dataclass
from math import log2

import numpy as np
from numpy.typing import NDArray

Z95 = 1.959964  # of a two-sided confidence interval of 95%
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Auc:
    """The area under the ROC curve, with its 95% confidence interval."""

    value: float
    low: float
    high: float


def auc(members: Values, others: Values) -> Auc:
    """The probability that a member scores above a non-member, ties counting half; interval by DeLong et al. (1988).

    The variance is that of the placements V: of every member the share of non-members below it, and the reverse.
    """
    ordered_others, ordered_members = np.sort(others), np.sort(members)
    above = _share_below(ordered_others, members)
    below = 1.0 - _share_below(ordered_members, others)
    value = float(above.mean())
    variance = sum(float(v.var(ddof=1)) / len(v) if len(v) > 1 else 0.25 for v in (above, below))
    half = Z95 * float(np.sqrt(variance))
    return Auc(value, max(0.0, value - half), min(1.0, value + half))


def _share_below(ordered: Values, values: Values) -> Values:
    """Of each value, the share of the ordered ones below it, ties counting half."""
    under, upto = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    found: Values = (under + upto) / (2 * len(ordered))
    return found


def true_positives(members: Values, others: Values, false_positives: float) -> float:
    """The share of members found by the threshold that at most this share of the non-members passes."""
    allowed = int(false_positives * len(others))
    threshold = np.sort(others)[::-1][allowed]
    return float((members > threshold).mean())


def exposure(rank: int, candidates: int) -> float:
    """Carlini et al. (2019), Definition 5: log₂|R| − log₂ rank, in bits; ``rank`` counts from 1."""
    return log2(candidates) - log2(rank)
