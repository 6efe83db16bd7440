"""Hits@N: how many tokens an attacker names within N guesses, and how many are named by knowing nothing of the release.

Hits@N is the share of positions where one of the first N candidates is true (Wang et al., 2022, Section 5.6):
*at any position* if any text behind the centroid has it anywhere, *at its position* if one has it right there.
Only ordinary tokens count, as truth and as candidates: that a text begins with [CLS] is no secret.

Any position says little: a cluster of thirty texts has hundreds of tokens, and guessing blindly often hits. So every
figure stands beside what two ignorant attackers reach: one who draws tokens at random (its exact expectation), and one
who knows how frequent tokens are in the silo, for the score at a position even there, which is more than a real
attacker would know.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

MARGIN = 0.05  # by so much more than frequent tokens name, an attack has read something
MAX_GUESSES = 90  # guesses per position, at most
MAX_RARE_COUNT = 5  # a token that a silo's texts have at most so often says most about them
BINS = ((1, 1), (2, 5), (6, 10), (11, 20), (21, 50), (51, 10**9))  # members of a cluster
MISSED = MAX_GUESSES + 1

Ids = NDArray[np.signedinteger[Any]]
Where = Literal["any", "same"]


@dataclass(frozen=True)
class Truth:
    """What stood behind one centroid: only for scoring, an attacker has none of it."""

    texts: tuple[Ids, ...]
    special: NDArray[np.bool_]

    @cached_property
    def at(self) -> dict[int, set[int]]:
        """Position → the ordinary tokens that texts have there."""
        found: dict[int, set[int]] = {}
        for text in self.texts:
            for position in np.flatnonzero(~self.special[text]):
                found.setdefault(int(position), set()).add(int(text[position]))
        return dict(sorted(found.items()))

    @cached_property
    def anywhere(self) -> set[int]:
        return set().union(*self.at.values())


class Frequencies:
    """How often a silo's texts have each ordinary token: in all, and at each position."""

    def __init__(self, texts: Iterable[Ids], special: NDArray[np.bool_]) -> None:
        self.total: Counter[int] = Counter()
        self.at: dict[int, Counter[int]] = {}
        for text in texts:
            for position in np.flatnonzero(~special[text]).tolist():
                self.total[int(text[position])] += 1
                self.at.setdefault(position, Counter())[int(text[position])] += 1

    @cached_property
    def top(self) -> list[int]:
        return _most(self.total)

    @cached_property
    def top_at(self) -> dict[int, list[int]]:
        return {position: _most(counts) for position, counts in self.at.items()}

    def rare(self, token: int) -> bool:
        return self.total[token] <= MAX_RARE_COUNT


def _most(counts: Counter[int]) -> list[int]:
    return [token for token, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MAX_GUESSES]]


@dataclass(frozen=True)
class Score:
    """Of one centroid, or of several together: at which guess each position was first right; rare tokens named."""

    any: NDArray[np.int64]
    same: NDArray[np.int64]
    rare: tuple[int, int] = (0, 0)  # named, of so many

    def curve(self, where: Where) -> list[float]:
        first = self.any if where == "any" else self.same
        return [float(np.mean(first <= n)) if len(first) else 0.0 for n in range(1, MAX_GUESSES + 1)]


def score(truth: Truth, guesses: Callable[[int], Sequence[int]], frequencies: Frequencies) -> Score:
    """``guesses(position)``: the candidates for it, best first.

    A rare token at a position is *named* if it is among as many candidates as there are true tokens at that position.
    """
    any_, same, named, rare = [], [], 0, 0
    for position, true in truth.at.items():
        candidates = list(guesses(position))[:MAX_GUESSES]
        any_.append(_first(candidates, truth.anywhere))
        same.append(_first(candidates, true))
        seldom = {token for token in true if frequencies.rare(token)}
        rare += len(seldom)
        named += len(seldom & set(candidates[: len(true)]))
    return Score(np.array(any_, np.int64), np.array(same, np.int64), (named, rare))


def frequency_baseline(truth: Truth, frequencies: Frequencies) -> Score:
    """The attacker who knows which tokens are frequent, and has no centroid."""
    plain = score(truth, lambda _: frequencies.top, frequencies)
    placed = score(truth, lambda position: frequencies.top_at[position], frequencies)
    return Score(plain.any, placed.same, placed.rare)


def combined(scores: Sequence[Score]) -> Score:
    empty = np.zeros(0, np.int64)
    return Score(
        np.concatenate([empty, *(s.any for s in scores)]),
        np.concatenate([empty, *(s.same for s in scores)]),
        (sum(s.rare[0] for s in scores), sum(s.rare[1] for s in scores)),
    )


def random_baseline(truths: Sequence[Truth], where: Where) -> list[float]:
    """What N random tokens hit on average: 1 − C(V − s, N)/C(V, N), s of V ordinary tokens being true."""
    sizes = [len(truth.anywhere) if where == "any" else len(true) for truth in truths for true in truth.at.values()]
    ordinary = int((~truths[0].special).sum()) if truths else 0
    wrong = np.array([ordinary - s for s in sizes], float)
    missed, curve = np.ones(len(sizes)), []
    for drawn in range(MAX_GUESSES):
        missed = missed * np.clip((wrong - drawn) / max(1, ordinary - drawn), 0.0, 1.0)
        curve.append(float(1 - missed.mean()) if sizes else 0.0)
    return curve


def size_bin(members: int) -> str:
    low, high = next((low, high) for low, high in BINS if low <= members <= high)
    return str(low) if low == high else f"{low}–{high}" if high < 10**9 else f"{low} or more"


def _first(candidates: Sequence[int], true: set[int]) -> int:
    return next((i + 1 for i, token in enumerate(candidates) if token in true), MISSED)
