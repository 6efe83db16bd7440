"""The report's section on attention between the nodes of a tree: weights over rounds, and the last round by layer."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from hansa.report.charts import lines
from hansa.runs.results import AttentionWeight

PANELS = 24  # nodes whose weights are drawn; the ledger has all of them
STAGES = {"down": "attends to itself, its parent and residuals", "up": "attends to its children and itself"}


def attention_section(name: str, weights: Sequence[AttentionWeight]) -> dict[str, Any]:
    """A chart for every node, averaged over its key layers, and a table of the last round by layer."""
    panels: dict[tuple[str, str], dict[str, dict[int, list[float]]]] = {}
    last: dict[tuple[str, str, str], dict[str, float]] = {}
    newest = max((one.round for one in weights), default=0)
    for one in weights:
        member = "a residual" if "(residual" in one.member else one.member
        rounds = panels.setdefault((one.node, one.stage), {}).setdefault(member, {})
        rounds.setdefault(one.round, []).append(one.weight)
        if one.round == newest:
            last.setdefault((one.node, one.stage, one.layer), {})[one.member] = one.weight
    charts = []
    for (node, stage), members in list(panels.items())[:PANELS]:
        series = [(m, [(float(r), fmean(w)) for r, w in sorted(rounds.items())]) for m, rounds in members.items()]
        names = ", ".join(members) if len(members) <= 4 else f"{len(members)} members"
        charts.append(lines(f"{node} {'↓' if stage == 'down' else '↑'} {names}", series, "rounds"))
    rows = [
        {
            "node": node,
            "what": STAGES[stage],
            "layer": layer,
            "weights": ", ".join(f"{member} {weight:.3f}" for member, weight in members.items()),
        }
        for (node, stage, layer), members in last.items()
    ]
    return {"name": name, "charts": charts, "rows": rows, "round": newest}
