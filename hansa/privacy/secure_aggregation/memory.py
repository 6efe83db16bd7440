"""Differencing: what a silo remembers of the sums that it was a part of, across rounds, runs and restarts.

Two sums of the same updates over different cohorts, S₁ over n silos and S₂ over n − 1, differ by the update of one
silo. Training from the same model on the same data repeats the same update, so a coordinator can get both sums from two
runs. Each silo therefore keeps, for each model that it was asked to start from and for its own data, the weights of
every sum that it helped to unmask. It takes part in another sum from that model only under this rule:

    No linear combination of the sums shows fewer than ``min_cohort`` silos.

    M: one row of weights for each sum, one column for each silo. T: any ``min_cohort`` − 1 silos.
    max over c, T of ‖(cM)_T‖ / √(‖(cM)_rest‖² + (q‖c‖)²)  ≤  MAX_CONTRAST       q: the quantisation error

The same cohort with the same weights is always allowed. Of two cohorts A and B with proportional weights, the rule
allows B after A if A Δ B has at least ``min_cohort`` members; n after n − 1, in either order, is refused, and so is a
chain of cohorts (or of weights) that isolates a silo only together. One honest silo that was in both sums is not
enough: more than n − threshold of them must refuse, and every honest silo does.

Limits. The model and the data are compared by digest. A model that differs in one number counts as another model, and
its updates are almost the same: the approved start of a run and the distance to the last signed model (policy)
bound what a coordinator can choose, and only noise on updates protects a silo whose cohort changes from round to round.
A silo under another name counts as another silo. The file holds the newest `MAX_SUMS` sums.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hansa.core.messages import NodeId
from hansa.privacy.secure_aggregation.protocol import Refused

MEMORY_FILE = "summed.jsonl"
MAX_SUMS = 4096  # a line has about 40 bytes for each silo
MAX_ROWS = 24  # different sums from one model; beyond it, only cohorts that are known are allowed
MAX_GROUPS = 20_000  # groups of silos that are tried; beyond it too
MAX_CONTRAST = 10.0  # a combination shows a group of silos if the others are a tenth of it or less
QUANTISATION = 1e-6  # of a sum, relative to its values: see protocol.py
SAME = 1e-9  # weights that differ by less are the same


@dataclass(frozen=True)
class Summed:
    """One sum that a silo helped to unmask: from which model, on which data of its own, with which weights."""

    model: str
    data: str
    weights: dict[NodeId, float]


@dataclass(frozen=True)
class CohortMemory:
    """The sums that a silo was a part of; ``folder`` outlives a run, ``covered``: silos whose updates carry noise."""

    folder: Path
    data: str
    min_cohort: int
    covered: frozenset[NodeId] = frozenset()

    @property
    def file(self) -> Path:
        """The file of all sums, one line each, oldest first."""
        return self.folder / MEMORY_FILE

    def check(self, model: str, weights: Mapping[NodeId, float]) -> None:
        """Raise `Refused` if a sum with these weights, with those before it, would show too few silos."""
        known = [one.weights for one in self._load() if (one.model, one.data) == (model, self.data)]
        proposed = _normalised(weights)
        if not known or any(_same(proposed, row) for row in known):
            return
        reason = exposed([*known, proposed], self.min_cohort, self.covered)
        if reason:
            raise Refused(
                f"it was summed from this model on the same data with another cohort before, and {reason}: take the "
                f"same silos again, a cohort that differs by {self.min_cohort} silos or more, or another starting model"
            )

    def note(self, model: str, weights: Mapping[NodeId, float]) -> None:
        """Write a sum to disk, before anything leaves that helps to unmask it."""
        known, one = self._load(), Summed(model, self.data, _normalised(weights))
        if any((k.model, k.data) == (one.model, one.data) and _same(k.weights, one.weights) for k in known):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.file.with_name(f"{MEMORY_FILE}.draft")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
            stream.writelines(json.dumps(asdict(sum)) + "\n" for sum in [*known, one][-MAX_SUMS:])
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, self.file)

    def _load(self) -> list[Summed]:
        if not self.file.is_file():
            return []
        try:
            return [_parse(line) for line in self.file.read_text().splitlines()]
        except (ValueError, TypeError, AttributeError):
            raise Refused(
                f"{self.file.name} is damaged, so it is not known with whom the silo was summed; restore it from a "
                "backup, or move it away if no run from the same model will follow"
            ) from None


def _parse(line: str) -> Summed:
    """A line of the file; raises `ValueError`, `TypeError` or `AttributeError` if it is malformed."""
    raw = Summed(**json.loads(line))
    return Summed(str(raw.model), str(raw.data), {str(name): float(weight) for name, weight in raw.weights.items()})


def exposed(rows: list[dict[NodeId, float]], min_cohort: int, covered: frozenset[NodeId] = frozenset()) -> str:
    """Why these sums together show too few silos; empty if no combination does."""
    silos = sorted({name for row in rows for name in row})
    size = min(min_cohort - 1, len(silos))
    if len(rows) > MAX_ROWS or comb(len(silos), size) > MAX_GROUPS:
        return "there are too many different sums or silos to tell what they show together"
    matrix = np.array([[row.get(name, 0.0) for name in silos] for row in rows])
    for group in combinations(range(len(silos)), size):
        shown = [silos[i] for i in group]
        if not covered.issuperset(shown) and contrast(matrix, group) > MAX_CONTRAST:
            return f"the sums together would show fewer than {min_cohort} silos"
    return ""


def contrast(matrix: NDArray[np.float64], group: tuple[int, ...]) -> float:
    """How strongly a combination of the rows can show the columns of a group against all others."""
    inside = matrix[:, group]
    outside = np.delete(matrix, group, axis=1)
    noise = outside @ outside.T + QUANTISATION**2 * np.eye(len(matrix))
    whitened = np.linalg.solve(np.linalg.cholesky(noise), inside)
    return float(np.linalg.norm(whitened, 2))


def _normalised(weights: Mapping[NodeId, float]) -> dict[NodeId, float]:
    total = sum(weights.values())
    return {name: weights[name] / total for name in sorted(weights)}


def _same(one: Mapping[NodeId, float], other: Mapping[NodeId, float]) -> bool:
    return one.keys() == other.keys() and all(abs(one[name] - other[name]) < SAME for name in one)
