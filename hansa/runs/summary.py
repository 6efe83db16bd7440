"""Summaries of results: means over groups, the worst group, several runs side by side."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

from hansa.runs.results import Metrics, MetricsByGroup, RunResults, lower_is_better

UNLIKE = 0.05  # relative difference of two budgets above which a comparison says so


def average(final: MetricsByGroup, metric: str, weights: Mapping[str, float] | None = None) -> float | None:
    """The mean of a metric over groups, or the mean weighted by ``weights``; None if no group has the metric."""
    values = {group: metrics[metric] for group, metrics in final.items() if metric in metrics}
    if not values:
        return None
    if weights is None:
        return fmean(values.values())
    total = sum(weights.get(group, 0.0) for group in values)
    return sum(value * weights.get(group, 0.0) for group, value in values.items()) / total if total else None


def worst(final: MetricsByGroup, metric: str, lower: bool) -> float | None:
    """A metric of the group with the worst value, which measures fairness; ``lower``: smaller values are better."""
    values = [metrics[metric] for metrics in final.values() if metric in metrics]
    return (max if lower else min)(values) if values else None


def mean_and_deviation(by_node: MetricsByGroup, metric: str) -> tuple[float, float] | None:
    """The mean and the standard deviation of a metric over nodes; None if no node has it."""
    values = [metrics[metric] for metrics in by_node.values() if metric in metrics]
    return (fmean(values), pstdev(values)) if values else None


def metric_names(runs: Sequence[RunResults]) -> list[str]:
    """The metrics that the runs' final scores have, the headline first; the loss is left out."""
    found = dict.fromkeys(m for run in runs for metrics in run.final.values() for m in metrics if m != "loss")
    return sorted(found, key=lambda metric: metric != runs[0].task.headline)


@dataclass(frozen=True)
class ComparisonRow:
    """One row of a comparison: the value of every run, and the best of them where they differ."""

    label: str
    values: tuple[float | None, ...]
    best: float | None
    deviations: tuple[float | None, ...]
    summary: bool  # whether the row is a mean or a worst value over groups


@dataclass(frozen=True)
class Comparison:
    """One metric of several runs on the test set: a row for every group, then means and the worst group."""

    metric: str
    lower_is_better: bool
    rows: tuple[ComparisonRow, ...]


def compare_metric(runs: Sequence[RunResults], metric: str) -> Comparison:
    """Set the final values of a metric side by side; groups weigh by the first run's training samples."""
    lower = lower_is_better(runs[0].task, metric)
    groups = list(dict.fromkeys(group for run in runs for group in run.final))
    weights = runs[0].samples

    def row(label: str, values: Sequence[float | None], summary: bool) -> ComparisonRow:
        """A row of the comparison with its best value, which is None if all known values are equal."""
        known = [value for value in values if value is not None]
        best = (min if lower else max)(known) if len(set(known)) > 1 else None
        deviations = tuple(run.deviations.get(label, {}).get(metric) for run in runs)
        return ComparisonRow(label, tuple(values), best, deviations, summary)

    rows = [row(group, [run.final.get(group, {}).get(metric) for run in runs], False) for group in groups]
    if len(groups) > 1:
        rows.append(row("mean", [average(run.final, metric) for run in runs], True))
        rows.append(row("weighted by data", [average(run.final, metric, weights) for run in runs], True))
        rows.append(row("worst", [worst(run.final, metric, lower) for run in runs], True))
    return Comparison(metric, lower, tuple(rows))


def budget_line(runs: Sequence[RunResults]) -> str:
    """A sentence on runs that trained on clearly more or fewer samples than the others; empty if all are alike."""
    trained = {run.name: run.samples_seen for run in runs if run.samples_seen}
    if len(trained) < 2:
        return ""
    usual = median(trained.values())
    other = {name: seen for name, seen in trained.items() if abs(seen - usual) > UNLIKE * usual}
    if not other:
        return ""
    said = ", ".join(f"{name} {seen / usual:.2f} times" for name, seen in other.items())
    return f"Not the same number of samples: {said} the median of the runs ({usual:,.0f}); compare with care."


def baseline_lines(runs: Sequence[RunResults]) -> list[str]:
    """What each baseline among the runs trains with, which is not the section `train` of the methods."""
    found = [(run.name, run.federation.baseline) for run in runs if run.federation.kind not in ("federated", "base")]
    return [f"{name} trains with {how.optimizer}, learning rate {how.lr:g} (section baseline)" for name, how in found]


@dataclass(frozen=True)
class Cost:
    """The bytes that a federated run sent, and the quality of its model."""

    name: str
    up: int
    down: int
    quality: Metrics  # metric → mean over groups


def costs(runs: Sequence[RunResults], metrics: Collection[str]) -> list[Cost]:
    """The cost of every federated run among ``runs``."""
    found = []
    for run in runs:
        if run.federation.kind == "federated":
            quality = {metric: mean for metric in metrics if (mean := average(run.final, metric)) is not None}
            found.append(Cost(run.name, run.bytes_up, run.bytes_down, quality))
    return found
