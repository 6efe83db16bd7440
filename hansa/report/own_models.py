"""The report's section on nodes' own models: scores of each on the node's own test data."""

from collections.abc import Sequence
from typing import Any

from hansa.report.charts import short
from hansa.runs.results import MetricsByGroup
from hansa.runs.summary import mean_and_deviation


def own_tables(runs: Sequence[tuple[str, MetricsByGroup]]) -> list[dict[str, Any]]:
    """One table for every metric of (run name, node → metric → value) pairs; the loss is left out."""
    metrics = dict.fromkeys(m for _, own in runs for values in own.values() for m in values if m != "loss")
    return [own_table(runs, metric) for metric in metrics]


def own_table(runs: Sequence[tuple[str, MetricsByGroup]], metric: str) -> dict[str, Any]:
    """A row for every node, a column for every run; the last row is mean ± standard deviation over nodes."""
    nodes = list(dict.fromkeys(node for _, own in runs for node in own))
    rows = [
        {"name": node, "cells": [_figure(own.get(node, {}).get(metric)) for _, own in runs], "sum": False}
        for node in nodes
    ]
    found = [mean_and_deviation(own, metric) for _, own in runs]
    cells = ["–" if pair is None else f"{short(pair[0])} ± {short(pair[1])}" for pair in found]
    rows.append({"name": "mean ± deviation over nodes", "cells": cells, "sum": True})
    return {"title": metric.replace("_", " ").capitalize(), "columns": [name for name, _ in runs], "rows": rows}


def _figure(value: float | None) -> str:
    return "–" if value is None else short(value)
