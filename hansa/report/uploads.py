"""The report's section on compressed updates: quality against bytes, bytes saved, and movement of tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

from hansa.report.charts import histogram, scatter, short
from hansa.runs.results import RunResults, lower_is_better
from hansa.runs.summary import Cost, costs

SILOS = 8  # drawn in one histogram: a chart has eight colours


def quality_against_bytes(runs: Sequence[RunResults], metrics: Sequence[str]) -> dict[str, Any]:
    """Charts and a table of several federated runs; see `cost_table`."""
    return cost_table(costs(runs, metrics), {metric: lower_is_better(runs[0].task, metric) for metric in metrics})


def cost_table(found: Sequence[Cost], metrics: Mapping[str, bool]) -> dict[str, Any]:
    """A chart for every metric, and a table that compares each run with the run that sent most bytes.

    ``metrics``: metric → whether smaller values are better. Empty if fewer than two runs sent anything.
    """
    points = [cost for cost in found if cost.up > 0 and cost.quality]
    if len(points) < 2:
        return {}
    most = max(points, key=lambda cost: cost.up)
    rows = [
        {
            "name": cost.name,
            "up": f"{cost.up / 1e6:,.3f} MB",
            "down": f"{cost.down / 1e6:,.3f} MB",
            "fewer": f"{most.up / cost.up:.1f}×",
            "cells": [_against(cost, most, metric, lower) for metric, lower in metrics.items()],
        }
        for cost in points
    ]
    charts = []
    for metric, lower in metrics.items():
        title = f"mean {metric} against bytes sent up" + (" (lower is better)" if lower else "")
        drawn = [(cost.name, cost.up / 1e6, cost.quality[metric]) for cost in points if metric in cost.quality]
        charts.append(scatter(title, drawn, "MB up over all rounds"))
    return {"charts": charts, "rows": rows, "metrics": list(metrics), "most": most.name}


def _against(cost: Cost, most: Cost, metric: str, lower: bool) -> str:
    """A value, and how much better (+) or worse (−) it is than that of the run that sent most bytes."""
    if metric not in cost.quality:
        return "–"
    value = short(cost.quality[metric])
    if cost is most or not most.quality.get(metric):
        return value
    change = cost.quality[metric] / most.quality[metric] - 1
    return f"{value} ({-change if lower else change:+.1%} against {most.name})"


def saved(run: RunResults) -> str:
    """A sentence on the bytes that compression saved; empty if updates were not compressed."""
    return saved_bytes(run.update_bytes, run.bytes_up, sum(node.rounds for node in run.traffic))


def saved_bytes(update: int, sent: int, updates: int) -> str:
    """A sentence on ``updates`` that took ``sent`` bytes, where one takes ``update`` bytes without compression."""
    whole = update * updates
    if not whole or not sent:
        return ""
    return (
        f"Updates took {sent / 1e6:,.3f} MB on the wire, measured; without compression the same {updates:,} updates "
        f"would have taken {whole / 1e6:,.3f} MB: {whole / sent:.2f} times as much."
    )


def movement_section(name: str, found: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """Figure 1 of Passban et al. (2022): tensors by how far they moved in a silo's last round, for each side."""
    silos = list(found)[:SILOS]
    sides = list(dict.fromkeys(side for silo in silos for side in found[silo]))
    charts = [histogram(f"{side}: movement of tensors", [(s, found[s].get(side, ())) for s in silos]) for side in sides]
    return {"name": name, "silos": list(found), "charts": charts}
