"""The report's page on trees: how every node's own model does, and who listens to whom."""

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from hansa.report.charts import lines, short

PANELS = 24  # nodes whose attention is drawn; all of it is in the ledger
STAGES = {"down": "takes from itself, its parent and residuals", "up": "takes from its children and itself"}

Heard = Sequence[tuple[int, str, str, str, str, float]]  # round, node, stage, layer, member, weight
Metrics = Mapping[str, Mapping[str, float]]


def spread(own: Metrics, metric: str) -> tuple[float, float] | None:
    """Mean and standard deviation over nodes."""
    values = [m[metric] for m in own.values() if metric in m]
    return (fmean(values), pstdev(values)) if values else None


def own_table(runs: Sequence[tuple[str, Metrics]], metric: str) -> dict[str, Any]:
    """Rows: nodes; columns: runs; at the end mean ± standard deviation over nodes."""
    nodes = list(dict.fromkeys(node for _, own in runs for node in own))
    rows = [
        {"name": node, "cells": [_figure(own.get(node, {}).get(metric)) for _, own in runs], "sum": False}
        for node in nodes
    ]
    found = [spread(own, metric) for _, own in runs]
    cells = ["–" if s is None else f"{short(s[0])} ± {short(s[1])}" for s in found]
    rows.append({"name": "mean ± deviation over nodes", "cells": cells, "sum": True})
    return {"title": metric.replace("_", " ").capitalize(), "columns": [name for name, _ in runs], "rows": rows}


def listening(heard: Heard) -> dict[str, Any]:
    """Weights over rounds, one panel per node, the mean over its key layers; and the last round layer by layer."""
    panels: dict[tuple[str, str], dict[str, dict[int, list[float]]]] = {}
    last: dict[tuple[str, str, str], dict[str, float]] = {}
    newest = max((round for round, *_ in heard), default=0)
    for round, node, stage, layer, member, weight in heard:
        name = "a residual" if "(residual" in member else member
        panels.setdefault((node, stage), {}).setdefault(name, {}).setdefault(round, []).append(weight)
        if round == newest:
            last.setdefault((node, stage, layer), {})[member] = weight
    charts = []
    for (node, stage), members in list(panels.items())[:PANELS]:
        series = [(m, [(float(r), fmean(w)) for r, w in sorted(rounds.items())]) for m, rounds in members.items()]
        names = ", ".join(members) if len(members) <= 4 else f"{len(members)} members"
        charts.append(lines(f"{node} {'↓' if stage == 'down' else '↑'} {names}", series, "rounds"))
    rows = [
        {"node": n, "what": STAGES[s], "layer": layer, "whom": ", ".join(f"{m} {w:.3f}" for m, w in members.items())}
        for (n, s, layer), members in last.items()
    ]
    return {"charts": charts, "rows": rows, "round": newest}


def _figure(value: float | None) -> str:
    return "–" if value is None else short(value)
