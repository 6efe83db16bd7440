"""Hits@N: how many tokens an attacker recovers within N guesses, and how many without the release.

Hits@N is the share of positions where one of the first N candidates is true (Wang et al., 2022, Section 5.6):
*at any position* if any text behind the centroid has the token anywhere, *at its position* if one has it at that
position. Only ordinary tokens count, as truth and as candidates: every text begins with [CLS].

The score at any position says little: a cluster of thirty texts has hundreds of tokens, and random guesses often hit.
Every figure therefore stands beside two baselines that do not use the release: random tokens (the exact expectation),
and the most frequent tokens of the silo. For the score at a position, the second baseline knows the frequencies at that
position, which is more than a real attacker would know.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

MARGIN = 0.05  # an attack that recovers this share more than the most frequent tokens give has used the release
MAX_GUESSES = 90  # per position
MAX_RARE_COUNT = 5  # a token that a silo's texts contain at most this often is rare
BINS = ((1, 1), (2, 5), (6, 10), (11, 20), (21, 50), (51, 10**9))  # members of a cluster
MISSED = MAX_GUESSES + 1

Ids = NDArray[np.signedinteger[Any]]
Where = Literal["any", "same"]  # at any position, at the same position


@dataclass(frozen=True)
class Truth:
    """The texts behind one centroid. They are used for scoring only; the attacker does not see them."""

    texts: tuple[Ids, ...]
    special: NDArray[np.bool_]

    @cached_property
    def at(self) -> dict[int, set[int]]:
        """Position → the ordinary tokens that the texts have there."""
        found: dict[int, set[int]] = {}
        for text in self.texts:
            for position in np.flatnonzero(~self.special[text]):
                found.setdefault(int(position), set()).add(int(text[position]))
        return dict(sorted(found.items()))

    @cached_property
    def anywhere(self) -> set[int]:
        """The ordinary tokens of the texts."""
        return set().union(*self.at.values())


class Frequencies:
    """How often a silo's texts contain each ordinary token: in total, and at each position."""

    def __init__(self, texts: Iterable[Ids], special: NDArray[np.bool_]) -> None:
        self.total: Counter[int] = Counter()
        self.at: dict[int, Counter[int]] = {}
        for text in texts:
            for position in np.flatnonzero(~special[text]).tolist():
                self.total[int(text[position])] += 1
                self.at.setdefault(position, Counter())[int(text[position])] += 1

    @cached_property
    def top(self) -> list[int]:
        """The most frequent tokens, most frequent first."""
        return _most(self.total)

    @cached_property
    def top_at(self) -> dict[int, list[int]]:
        """Position → the most frequent tokens there, most frequent first."""
        return {position: _most(counts) for position, counts in self.at.items()}

    def rare(self, token: int) -> bool:
        """Whether the silo's texts contain a token at most `MAX_RARE_COUNT` times."""
        return self.total[token] <= MAX_RARE_COUNT


def _most(counts: Counter[int]) -> list[int]:
    return [token for token, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MAX_GUESSES]]


@dataclass(frozen=True)
class Score:
    """The score of one or several centroids: for each position the number of the first correct guess; rare tokens."""

    any: NDArray[np.int64]
    same: NDArray[np.int64]
    rare: tuple[int, int] = (0, 0)  # how many rare tokens were recovered, of how many

    def curve(self, where: Where) -> list[float]:
        """Hits@1 … Hits@90."""
        first = self.any if where == "any" else self.same
        return [float(np.mean(first <= n)) if len(first) else 0.0 for n in range(1, MAX_GUESSES + 1)]


def score(truth: Truth, guesses: Callable[[int], Sequence[int]], frequencies: Frequencies) -> Score:
    """Return the score of an attack; ``guesses(position)``: its candidates for a position, best first.

    A rare token at a position is *recovered* if it is among as many candidates as there are true tokens there.
    """
    any_, same, recovered, rare = [], [], 0, 0
    for position, true in truth.at.items():
        candidates = list(guesses(position))[:MAX_GUESSES]
        any_.append(_first(candidates, truth.anywhere))
        same.append(_first(candidates, true))
        seldom = {token for token in true if frequencies.rare(token)}
        rare += len(seldom)
        recovered += len(seldom & set(candidates[: len(true)]))
    return Score(np.array(any_, np.int64), np.array(same, np.int64), (recovered, rare))


def frequency_baseline(truth: Truth, frequencies: Frequencies) -> Score:
    """The score of guessing the silo's most frequent tokens, without the centroid."""
    plain = score(truth, lambda _: frequencies.top, frequencies)
    placed = score(truth, lambda position: frequencies.top_at[position], frequencies)
    return Score(plain.any, placed.same, placed.rare)


def combined(scores: Sequence[Score]) -> Score:
    """The score of several centroids together."""
    empty = np.zeros(0, np.int64)
    return Score(
        np.concatenate([empty, *(s.any for s in scores)]),
        np.concatenate([empty, *(s.same for s in scores)]),
        (sum(s.rare[0] for s in scores), sum(s.rare[1] for s in scores)),
    )


def random_baseline(truths: Sequence[Truth], where: Where) -> list[float]:
    """Expected Hits@N of random tokens: 1 − C(V − s, N)/C(V, N), where s of V ordinary tokens are true."""
    sizes = [len(truth.anywhere) if where == "any" else len(true) for truth in truths for true in truth.at.values()]
    ordinary = int((~truths[0].special).sum()) if truths else 0
    wrong = np.array([ordinary - s for s in sizes], float)
    missed, curve = np.ones(len(sizes)), []
    for drawn in range(MAX_GUESSES):
        missed = missed * np.clip((wrong - drawn) / max(1, ordinary - drawn), 0.0, 1.0)
        curve.append(float(1 - missed.mean()) if sizes else 0.0)
    return curve


def size_bin(members: int) -> str:
    """The name of the bin that a cluster of so many members belongs to."""
    low, high = next((low, high) for low, high in BINS if low <= members <= high)
    return str(low) if low == high else f"{low}–{high}" if high < 10**9 else f"{low} or more"


def _first(candidates: Sequence[int], true: set[int]) -> int:
    return next((i + 1 for i, token in enumerate(candidates) if token in true), MISSED)
