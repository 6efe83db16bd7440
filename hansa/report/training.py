"""The report's section on training: losses, scores, weights and norms of updates, round by round and silo by silo."""

from collections.abc import Callable, Sequence
from typing import Any

from hansa.report.charts import lines
from hansa.runs.results import RunResults, SiloRound, lower_is_better

DRAWN = 8  # silos in one chart: a chart has eight colours


def loss_chart(runs: Sequence[RunResults]) -> str:
    """The mean training loss of every run against samples; empty if no run trained."""
    return lines("training loss", [(run.name, run.losses) for run in runs if run.losses], "samples")


def silo_section(run: RunResults) -> dict[str, Any] | None:
    """Charts with a line per silo; None if less than two silos released anything of their own."""
    names = list(dict.fromkeys([*run.silo_curves, *(one.node for one in run.silo_rounds)]))
    shown, headline = names[:DRAWN], run.task.headline
    if len(names) < 2:
        return None

    def over_rounds(value: Callable[[SiloRound], float | None]) -> list[tuple[str, list[tuple[float, float]]]]:
        """For each silo drawn, its points (round, value) where the value is known."""
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in shown}
        for one in run.silo_rounds:
            if one.node in found and (number := value(one)) is not None:
                found[one.node].append((float(one.round), number))
        return list(found.items())

    scores = [(name, run.silo_curves.get(name, [])) for name in shown]
    charts = [
        lines(f"{headline} on held-out data", scores, "samples", lower_is_better(run.task, headline)),
        lines("training loss", over_rounds(lambda one: one.loss), "round"),
        lines("norm of the update", over_rounds(lambda one: one.norm), "round"),
    ]
    weights = over_rounds(lambda one: one.weight)
    if any(len({round(weight, 4) for _, weight in values}) > 1 for _, values in weights):  # else the table has them
        charts.append(lines("weight in the aggregate", weights, "round"))
    left_out = f" The first {DRAWN} of {len(names)} silos are drawn." if len(names) > DRAWN else ""
    return {"name": run.name, "silos": shown, "charts": [chart for chart in charts if chart], "note": left_out}
