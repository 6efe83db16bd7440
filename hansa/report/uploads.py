"""The report's page on uploads: what the bytes bought, what was saved, and how far tensors moved."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hansa.report.charts import histogram, scatter, short

SILOS = 8  # drawn in one histogram; a ninth would have the first one's colour


@dataclass(frozen=True)
class Cost:
    """What a federated run sent, and how good its model became."""

    name: str
    up: int
    down: int
    quality: Mapping[str, float]  # metric → mean over groups


def quality_against_bytes(costs: Sequence[Cost], metrics: Sequence[str], lower: Collection[str]) -> dict[str, Any]:
    """A plot for every metric and a table of several runs, set against the one that sent most. ``lower``: the metrics
    of which less is better."""
    points = [cost for cost in costs if cost.up > 0 and cost.quality]
    if len(points) < 2:
        return {}
    most = max(points, key=lambda cost: cost.up)
    rows = [
        {
            "name": cost.name,
            "up": f"{cost.up / 1e6:,.3f} MB",
            "down": f"{cost.down / 1e6:,.3f} MB",
            "fewer": f"{most.up / cost.up:.1f}×",
            "cells": [_beside(cost, most, metric, metric in lower) for metric in metrics],
        }
        for cost in points
    ]
    charts = []
    for metric in metrics:
        title = f"mean {metric} against bytes sent up" + (" (lower is better)" if metric in lower else "")
        drawn = [(cost.name, cost.up / 1e6, cost.quality[metric]) for cost in points if metric in cost.quality]
        charts.append(scatter(title, drawn, "MB up in all rounds"))
    return {"charts": charts, "rows": rows, "metrics": list(metrics), "most": most.name}


def _beside(cost: Cost, most: Cost, metric: str, lower_is_better: bool) -> str:
    """A figure, and how much better (+) or worse it is than that of the run that sent most."""
    if metric not in cost.quality:
        return "–"
    figure = short(cost.quality[metric])
    if cost is most or not most.quality.get(metric):
        return figure
    better = cost.quality[metric] / most.quality[metric] - 1
    return f"{figure} ({-better if lower_is_better else better:+.1%})"


def saved(facts: Mapping[str, Any], received: int, updates: int) -> str:
    """In words, what an upload saved on the wire."""
    whole = facts.get("whole_update", 0) * updates
    if not whole or not received:
        return ""
    return (
        f"Updates took {received / 1e6:,.3f} MB on the wire, measured; whole, the same {updates:,} would have taken "
        f"{whole / 1e6:,.3f} MB: {whole / received:.2f} times as much."
    )


def movements(found: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    """Figure 1 of Passban et al. (2022): how many tensors moved how far in a silo's last round, each side apart."""
    silos = list(found)[:SILOS]
    sides = list(dict.fromkeys(side for silo in silos for side in found[silo]))
    return [histogram(f"{side}: movement of tensors", [(s, found[s].get(side, ())) for s in silos]) for side in sides]
