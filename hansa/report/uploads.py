"""The report's page on uploads: what the bytes bought, what was saved, and how far tensors moved."""

from collections.abc import Mapping, Sequence
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
    quality: float | None  # the mean over groups of the task's headline metric

    @property
    def drawn(self) -> bool:
        return self.up > 0 and self.quality is not None


def quality_against_bytes(costs: Sequence[Cost], metric: str, lower_is_better: bool) -> dict[str, Any]:
    """A plot and a table of several runs, set against the one that sent most."""
    points = [cost for cost in costs if cost.drawn]
    if len(points) < 2:
        return {}
    most = max(points, key=lambda cost: cost.up)
    rows = []
    for cost in points:
        assert cost.quality is not None
        assert most.quality is not None
        loss = (cost.quality - most.quality) / (abs(most.quality) or 1.0) * (1 if lower_is_better else -1)
        rows.append(
            {
                "name": cost.name,
                "up": f"{cost.up / 1e6:,.3f} MB",
                "down": f"{cost.down / 1e6:,.3f} MB",
                "fewer": f"{most.up / cost.up:.1f}×",
                "quality": short(cost.quality),
                "loss": "" if cost is most else f"{-loss:+.1%}",
            }
        )
    title = f"mean {metric} against bytes sent up" + (" (lower is better)" if lower_is_better else "")
    chart = scatter(title, [(c.name, c.up / 1e6, float(c.quality or 0)) for c in points], "MB up in all rounds")
    return {"chart": chart, "rows": rows, "metric": metric, "most": most.name}


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
