"""The report's scores: a table for every metric, learning curves, and scores by virtual time."""

from collections.abc import Mapping, Sequence
from typing import Any

from hansa.report.charts import lines, short
from hansa.runs.results import RunResults, lower_is_better
from hansa.runs.summary import Comparison, ComparisonRow, compare_metric, metric_names


def score_tables(runs: Sequence[RunResults]) -> list[dict[str, Any]]:
    """The scores on the test set: of one run in one table, of several runs in a table for every metric.

    A row for every language, then for every silo that released its own scores.
    """
    metrics = metric_names(runs)
    if len(runs) > 1:
        return [score_table(runs, compare_metric(runs, metric)) for metric in metrics]
    return [_single(runs[0], metrics)] if metrics else []


def _single(run: RunResults, metrics: Sequence[str]) -> dict[str, Any]:
    """All metrics of one run in one table: a row for every language, and for every silo."""
    shown = [*metrics, *(["loss"] if any("loss" in one for one in run.final.values()) else [])]
    found = {metric: compare_metric([run], metric) for metric in shown}
    labels = [row.label for row in found[shown[0]].rows]
    summaries = {row.label for row in found[shown[0]].rows if row.summary}
    values = {metric: {row.label: row for row in one.rows} for metric, one in found.items()}
    rows = [
        {
            "name": label,
            "cells": [_cell(values[m][label].values[0], values[m][label].deviations[0], m, None) for m in shown],
            "sum": label in summaries,
        }
        for label in labels
    ]
    silos = silo_values(run)
    if len(silos) > 1 and list(silos) != [label for label in labels if label not in summaries]:
        rows += [
            {"name": f"silo {name}", "cells": [_cell(one.get(m), None, m, None) for m in shown], "sum": False}
            for name, one in silos.items()
        ]
    better = ", ".join(m.replace("_", " ") for m in shown if found[m].lower_is_better)
    signatures = "".join(f" {line}." for line in run.signatures)
    return {
        "title": "Scores on the test set",
        "columns": [metric.replace("_", " ") for metric in shown],
        "rows": rows,
        "note": f"Higher is better{f', but for {better}' if better else ''}.{signatures}",
    }


def silo_values(run: RunResults) -> dict[str, Mapping[str, float]]:
    """Scores by silo; of a silo with several languages, by silo and language."""
    return {
        silo if len(groups) == 1 else f"{silo}, {group}": metrics
        for silo, groups in run.by_silo.items()
        for group, metrics in groups.items()
    }


def score_table(runs: Sequence[RunResults], found: Comparison) -> dict[str, Any]:
    """A metric on the test set: a row for every language and silo, a column for every run, the best of each marked."""
    metric, better = found.metric, "Lower is better." if found.lower_is_better else "Higher is better."
    signatures = "".join(
        f" {line}." for line in runs[0].signatures if line.lower().replace("-", "_").startswith(metric)
    )
    rows = [_row(row, metric) for row in found.rows]
    by_silo = [silo_values(run) for run in runs]
    silos = list(dict.fromkeys(name for one in by_silo for name in one))
    if len(silos) > 1 and set(silos) != {row.label for row in found.rows if not row.summary}:
        for name in silos:
            values = [one.get(name, {}).get(metric) for one in by_silo]
            known = [value for value in values if value is not None]
            best = (min if found.lower_is_better else max)(known) if len(set(known)) > 1 else None
            cells = [_cell(value, None, metric, best) for value in values]
            rows.append({"name": f"silo {name}", "cells": cells, "sum": False})
    return {
        "title": f"{metric.replace('_', ' ').capitalize()} on the test set",
        "columns": [run.name for run in runs],
        "rows": rows,
        "note": f"{better} The best of each row is marked.{signatures}",
    }


def _row(row: ComparisonRow, metric: str) -> dict[str, Any]:
    pairs = zip(row.values, row.deviations, strict=True)
    cells = [_cell(value, deviation, metric, row.best) for value, deviation in pairs]
    return {"name": row.label, "cells": cells, "sum": row.summary}


def _cell(value: float | None, deviation: float | None, metric: str, best: float | None) -> dict[str, Any]:
    spread = f"standard deviation {figure(deviation, metric)} over four parts of the test set"
    return {
        "text": figure(value, metric),
        "best": value is not None and value == best,
        "spread": "" if deviation is None else spread,
    }


def figure(value: float | None, metric: str) -> str:
    """A value of a metric as text; a dash if there is none."""
    if value is None:
        return "–"
    return short(value) if metric == "perplexity" else f"{value:.4f}"


def curve_charts(runs: Sequence[RunResults]) -> list[str]:
    """One chart for every language: the headline metric of every run against samples."""
    groups = list(dict.fromkeys(group for run in runs for group in run.curves))
    drawn, headline = [run for run in runs if run.curves], runs[0].task.headline.replace("_", " ")
    return [
        lines(
            f"{group}: {headline}",
            [(run.name, run.curves.get(group, [])) for run in drawn],
            "samples",
            _logarithmic(runs[0]),
        )
        for group in groups
    ]


def curve_note(run: RunResults) -> str:
    """What the learning curves show, in words."""
    validated = run.cards and all(card.samples("valid") for card in run.cards.values())
    data = "validation data" if validated else "test data (no silo has validation data of its own)"
    if not validated and any(card.samples("valid") for card in run.cards.values()):
        data = "test data (not every silo has validation data)"
    share = run.federation.evaluate.share
    part = "" if share == 1.0 else f"{share:.0%} of the "
    headline = run.task.headline.replace("_", " ")
    return f"{headline} on {part}{data}, against the samples that all silos together have trained on."


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
