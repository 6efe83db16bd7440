"""The report's section on personal models: their scores beside the shared model's, over α, and similar silos."""

from typing import Any

from hansa.client.personalisation import ALPHAS
from hansa.report.charts import lines
from hansa.report.scores import figure
from hansa.runs.results import Personalisation, PersonalModels, RunResults, lower_is_better

SHOWN = ("accuracy", "strict_f1", "macro_f1", "perplexity")


def personal_section(run: RunResults) -> dict[str, Any] | None:
    """Tables, charts and the most similar silos; None if the run made no personal models."""
    found = run.personal
    if found is None:
        return None
    return {
        "name": run.name,
        "tables": personal_tables(run, found),
        "charts": alpha_charts(found),
        "neighbours": neighbours(found),
    }


def personal_tables(run: RunResults, found: Personalisation) -> list[dict[str, Any]]:
    """One table for every metric (Table 6 of the Medical paper): rows are languages, columns kinds of model."""
    kinds = list(dict.fromkeys(kind for silo in found.silos.values() for kind in silo.models))
    metrics = {
        m for silo in found.silos.values() for groups in silo.models.values() for v in groups.values() for m in v
    }
    tables = []
    for metric in (m for m in SHOWN if m in metrics):
        lower = lower_is_better(run.task, metric)
        rows = [row for name, silo in found.silos.items() for row in _rows(name, silo, kinds, metric, lower)]
        tables.append({"title": metric.replace("_", " ").capitalize(), "columns": kinds, "rows": rows})
    return tables


def _rows(name: str, silo: PersonalModels, kinds: list[str], metric: str, lower: bool) -> list[dict[str, Any]]:
    groups = list(dict.fromkeys(group for models in silo.models.values() for group in models))
    rows = []
    for group in groups:
        values = [silo.models.get(kind, {}).get(group, {}).get(metric) for kind in kinds]
        known = [value for value in values if value is not None]
        best = (min if lower else max)(known)
        cells = [{"text": _text(value, metric), "best": value == best} for value in values]
        label = group if group == name or len(groups) == 1 else f"{name}: {group}"
        alpha = f"{silo.alpha:.2f}" if silo.curves else "–"  # without a mixture there is none
        rows.append({"name": label, "cells": cells, "alpha": alpha, "kept": silo.kept})
    return rows


def _text(value: float | None, metric: str) -> str:
    return f"{value:,.1f}" if metric == "perplexity" and value is not None else figure(value, metric)


def alpha_charts(found: Personalisation) -> list[str]:
    """Figure 3 of the Medical paper, for every silo: validation score over α."""
    charts = []
    for name, silo in found.silos.items():
        metric = next((m for m in (*SHOWN, "loss") if m in silo.curves), None)
        if metric is not None:
            points = list(zip(ALPHAS, silo.curves[metric], strict=True))
            charts.append(lines(f"{name}: {metric} over α", [(metric, points)], "α: 0 shared, 1 own"))
    return charts


def neighbours(found: Personalisation) -> list[str]:
    """For every silo, the silos with the most similar updates and their shares in its mixture."""
    return [
        f"{name}: " + ", ".join(f"{other} {share:.0%}" for other, share in near.items())
        for name, near in found.nearby.items()
        if near
    ]
