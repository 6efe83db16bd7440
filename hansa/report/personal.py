"""The report's page on personal models: how they do beside the shared one, over α, and who is near whom."""

from typing import Any

from hansa.client.personalisation import ALPHAS
from hansa.report.charts import lines

SHOWN = ("accuracy", "strict_f1", "macro_f1", "perplexity")


def personal_tables(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One table per metric (Table 6 of the Medical paper): rows languages, columns kinds of model."""
    silos = found["silos"]
    kinds = list(dict.fromkeys(kind for known in silos.values() for kind in known["models"]))
    metrics = {m for known in silos.values() for groups in known["models"].values() for v in groups.values() for m in v}
    tables = []
    for metric in (m for m in SHOWN if m in metrics):
        rows = [row for name, known in silos.items() for row in _rows(name, known, kinds, metric)]
        tables.append({"title": metric.replace("_", " ").capitalize(), "columns": kinds, "rows": rows})
    return tables


def _rows(silo: str, known: dict[str, Any], kinds: list[str], metric: str) -> list[dict[str, Any]]:
    groups = list(dict.fromkeys(g for kind in known["models"].values() for g in kind))
    rows = []
    for group in groups:
        values = [known["models"].get(kind, {}).get(group, {}).get(metric) for kind in kinds]
        given = [v for v in values if v is not None]
        best = (min if metric == "perplexity" else max)(given)
        cells = [
            {"text": "–" if v is None else f"{v:,.1f}" if metric == "perplexity" else f"{v:.4f}", "best": v == best}
            for v in values
        ]
        label = group if group == silo or len(groups) == 1 else f"{silo}: {group}"
        rows.append({"name": label, "cells": cells, "alpha": f"{known['alpha']:.2f}", "kept": known["kept"]})
    return rows


def alpha_charts(found: dict[str, Any]) -> list[str]:
    """Figure 3 of the Medical paper, for every silo: validation score over α."""
    charts = []
    for name, known in found["silos"].items():
        metric = next((m for m in (*SHOWN, "loss") if m in known["curves"]), None)
        if metric is not None:
            points = list(zip(ALPHAS, known["curves"][metric], strict=True))
            charts.append(lines(f"{name}: {metric} over α", [(metric, points)], "α: 0 shared, 1 own"))
    return charts


def neighbours(found: dict[str, Any]) -> list[str]:
    return [
        f"{name}: " + ", ".join(f"{other} {share:.0%}" for other, share in near.items())
        for name, near in found["nearby"].items()
        if near
    ]
