"""One judgement for every claim: it holds only if all rules hold, and the line says which rule failed.

    baseline     the rival is healthy: better than where it started by more than the seeds' spread, and its setting was
                 selected from a grid whose best value is not at an end
    seeds        at least three seeds on both sides
    difference   it exceeds the seeds' spread (the larger sample standard deviation of the two sides); a claim of being
                 within a margin of the rival keeps the margin by more than the spread
    chance       the task is above chance by more than its spread
    published    the published setting was run; a setting of ours never stands in its place

What was not recorded counts as failed. A claim does not hold if ours is worse by more than the spread of at least three
seeds; in all other cases it is not shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final, Literal

HOLDS: Final = "holds"
FAILS: Final = "does not hold"
OPEN: Final = "not shown"
MIN_SEEDS = 3
MIN_GRID = 3  # values of a grid: with fewer, none lies inside
State = Literal["holds", "does not hold", "not shown"]


@dataclass(frozen=True)
class Evidence:
    """What a claim "ours is better than the rival" rests on.

    With ``margin``, the claim is that ours is at most this share of the rival's figure worse.
    """

    better: Literal["high", "low"]
    ours: Sequence[float]  # one figure for each seed
    rival: Sequence[float]
    start: float | None = None  # the rival's figure before training
    grid: Mapping[float, float] | None = None  # setting of the rival → its figure on validation data
    chance: float | None = None  # the figure of guessing; losses and perplexities have none
    has_chance: bool = False
    published: bool = False  # the published setting was run
    margin: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """``holds``, ``does not hold`` or ``not shown``, and why."""

    state: State
    why: str

    @property
    def line(self) -> str:
        """The verdict with its reason."""
        return f"{self.state}: {self.why}" if self.why else self.state


def judge(evidence: Evidence | None) -> Verdict:
    """Judge a claim by its evidence; without evidence it is not shown."""
    if evidence is None:
        return Verdict(OPEN, "the evidence for the rules was not recorded")
    if not evidence.ours or not evidence.rival:
        return Verdict(OPEN, "its runs are not finished")
    failed = [reason for reason in (rule(evidence) for rule in _RULES) if reason]
    ahead, wide = _ahead(evidence), _spread(evidence)
    if ahead < 0 and -ahead > wide and not _seeds(evidence):
        return Verdict(FAILS, "; ".join([_behind(evidence, ahead, wide), *failed]))
    if ahead <= wide:
        failed.insert(0, f"difference: {ahead:.4g} does not exceed the seeds' spread of {wide:.4g}")
    return Verdict(OPEN if failed else HOLDS, "; ".join(failed))


def spread(values: Sequence[float]) -> float:
    """The sample standard deviation over seeds; 0 for one seed, which the rule on seeds rejects."""
    return stdev(values) if len(values) > 1 else 0.0


def _ahead(evidence: Evidence) -> float:
    """By how much ours is better than the rival, or than the rival worsened by the margin."""
    sign = 1.0 if evidence.better == "high" else -1.0
    rival = fmean(evidence.rival)
    return sign * (fmean(evidence.ours) - rival) + evidence.margin * abs(rival)


def _spread(evidence: Evidence) -> float:
    return max(spread(evidence.ours), spread(evidence.rival))


def _behind(evidence: Evidence, ahead: float, wide: float) -> str:
    bound = f"the rival with a margin of {evidence.margin:.0%}" if evidence.margin else "the rival"
    return f"ours is worse than {bound} by {-ahead:.4g} (seeds' spread {wide:.4g})"


def _baseline(evidence: Evidence) -> str:
    sign = 1.0 if evidence.better == "high" else -1.0
    if evidence.start is None:
        return "baseline: its figure before training was not recorded"
    gained = sign * (fmean(evidence.rival) - evidence.start)
    if gained <= spread(evidence.rival):
        return f"baseline: it gains {gained:.4g} over its start, within the seeds' spread"
    grid = evidence.grid
    if grid is None or len(grid) < MIN_GRID:
        return f"baseline: it was not tuned over a grid of at least {MIN_GRID} values"
    best = max(grid, key=lambda setting: sign * grid[setting])
    if best in (min(grid), max(grid)):
        return f"baseline: the best value of its grid, {best:g}, lies at the grid's end"
    return ""


def _seeds(evidence: Evidence) -> str:
    fewest = min(len(evidence.ours), len(evidence.rival))
    return f"seeds: {fewest} of at least {MIN_SEEDS}" if fewest < MIN_SEEDS else ""


def _chance(evidence: Evidence) -> str:
    if not evidence.has_chance:
        return ""
    if evidence.chance is None:
        return "chance: its level was not recorded"
    sign = 1.0 if evidence.better == "high" else -1.0
    above = sign * (fmean(evidence.ours) - evidence.chance)
    if above <= spread(evidence.ours):
        return f"chance: ours is {above:.4g} above it, within the seeds' spread"
    return ""


def _published(evidence: Evidence) -> str:
    return "" if evidence.published else "published: only a setting of ours was run"


_RULES = (_baseline, _seeds, _chance, _published)
