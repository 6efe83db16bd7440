"""The report's traffic section: bytes to and from every silo, measured in the format of the wire."""

from collections.abc import Sequence
from typing import Any

from hansa.report.charts import bars
from hansa.runs.results import ExchangeTraffic, RunResults


def traffic_rows(run: RunResults) -> list[dict[str, Any]]:
    """One row for every node, and their sum."""
    rows = [
        {
            "name": node.node,
            "rounds": node.rounds,
            "down": size(node.down),
            "up": size(node.up),
            "each": size(node.up / max(1, node.rounds)),
            "sum": False,
        }
        for node in run.traffic
    ]
    if len(rows) > 1:
        down, up = size(run.bytes_down), size(run.bytes_up)
        rows.append({"name": "all", "rounds": "", "down": down, "up": up, "each": "", "sum": True})
    return rows


def exchange_note(exchange: ExchangeTraffic) -> str:
    """How much of the traffic is knowledge that silos shared before training; empty if there was no exchange."""
    if not exchange.up:
        return ""
    per_round = (exchange.up + exchange.down) / max(1, exchange.rounds)
    return (
        f"Of this traffic, the knowledge that silos shared before training takes {size(exchange.up)} up and "
        f"{size(exchange.down)} down, {size(per_round)} per round; the rest is the model, its updates and headers."
    )


def traffic_chart(runs: Sequence[RunResults]) -> str:
    """The traffic of several federated runs as bars, empty for a single one; baselines send nothing to anybody."""
    federated = [run for run in runs if run.federation.kind == "federated"]
    rows = [(run.name, (run.bytes_down / 1e6, run.bytes_up / 1e6)) for run in federated]
    title = "Total traffic: down (first bar) and up (second)"
    return bars(title, rows, ["down", "up"], " MB") if len(federated) > 1 else ""


def size(count: float) -> str:
    """A number of bytes with its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    raise AssertionError("unreachable")
