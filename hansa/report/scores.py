"""The report's scores: a table for every metric, learning curves, and scores by virtual time."""

from collections.abc import Sequence
from typing import Any

from hansa.report.charts import lines, short
from hansa.runs.results import RunResults, lower_is_better
from hansa.runs.summary import Comparison, ComparisonRow


def score_table(runs: Sequence[RunResults], found: Comparison) -> dict[str, Any]:
    """A metric on the test set: a row for every language, a column for every run, the best of each row marked."""
    metric, better = found.metric, "Lower is better." if found.lower_is_better else "Higher is better."
    marked = " The best of each row is marked." if len(runs) > 1 else ""
    signatures = "".join(
        f" {line}." for line in runs[0].signatures if line.lower().replace("-", "_").startswith(metric)
    )
    return {
        "title": f"{metric.replace('_', ' ').capitalize()} on the test set",
        "columns": [run.name for run in runs],
        "rows": [_row(row, metric) for row in found.rows],
        "note": better + marked + signatures,
    }


def _row(row: ComparisonRow, metric: str) -> dict[str, Any]:
    cells = [
        {
            "text": figure(value, metric),
            "best": value is not None and value == row.best,
            "spread": ""
            if deviation is None
            else f"standard deviation {figure(deviation, metric)} over four parts of the test set",
        }
        for value, deviation in zip(row.values, row.deviations, strict=True)
    ]
    return {"name": row.label, "cells": cells, "sum": row.summary}


def figure(value: float | None, metric: str) -> str:
    """A value of a metric as text; a dash if there is none."""
    if value is None:
        return "–"
    return short(value) if metric == "perplexity" else f"{value:.4f}"


def curve_charts(runs: Sequence[RunResults]) -> list[str]:
    """One chart for every language: the headline metric of every run against samples."""
    groups = list(dict.fromkeys(group for run in runs for group in run.curves))
    drawn = [run for run in runs if run.curves]
    return [
        lines(group, [(run.name, run.curves.get(group, [])) for run in drawn], "samples", _logarithmic(runs[0]))
        for group in groups
    ]


def curve_note(run: RunResults) -> str:
    """What the learning curves show, in words."""
    return f"{run.task.headline} on held-out data, against the samples that all silos together have trained on."


def time_chart(runs: Sequence[RunResults]) -> str:
    """The mean of the headline metric against virtual time; empty unless a run simulates delays."""
    if not any(run.federation.simulate.delay for run in runs):
        return ""
    series = [(run.name, run.times) for run in runs]
    return lines(f"mean {runs[0].task.headline}", series, "virtual seconds", _logarithmic(runs[0]))


def targets(runs: Sequence[RunResults]) -> list[str]:
    """When each run reached ``evaluate.target``, in virtual seconds."""
    found = []
    for run in runs:
        target = run.federation.evaluate.target
        if target is not None:
            at = run.time_to_target()
            when = "was not reached" if at is None else f"was reached after {short(at)} virtual seconds"
            found.append(f"{run.name}: a mean {run.task.headline} of {short(target)} {when}")
    return found


def _logarithmic(run: RunResults) -> bool:
    return lower_is_better(run.task, run.task.headline)
