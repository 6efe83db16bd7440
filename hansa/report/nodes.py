"""The report's tree: every node with its samples and how its own model does on its own data."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hansa.config.outline import Branch, outline
from hansa.config.tree import is_tree
from hansa.report.charts import short, tree

if TYPE_CHECKING:
    from hansa.report.html import Seen


def tree_of(run: "Seen") -> dict[str, Any] | None:
    """A drawing and, where nodes have models of their own, the note that explains its figures."""
    if not is_tree(run.federation) or run.federation.kind == "central":
        return None
    held = {name: card["groups"]["train"] for name, card in run.cards.items()}
    nodes = [(depth, branch.name, _said(run, branch)) for depth, branch in _walk(outline(run.federation, held))]
    metric = run.task.headline.replace("_", " ")
    own = f" {metric.capitalize()} of every node's own model on its own test data." if run.own else ""
    note = f"Training samples.{own} In brackets, where a node has one source: the one global model on it."
    return {"name": run.name, "chart": tree(f"The tree of {run.name}", nodes), "note": note}


def _walk(branch: Branch, depth: int = 0) -> Iterator[tuple[int, Branch]]:
    yield depth, branch
    for child in branch.below:
        yield from _walk(child, depth + 1)


def _said(run: "Seen", branch: Branch) -> str:
    metric = run.task.headline
    said = f"{short(branch.samples)} samples"
    own = run.own.get(branch.name, {}).get(metric)
    groups = list(branch.held)
    shared = run.final.get(groups[0], {}).get(metric) if len(groups) == 1 else None
    if own is not None:
        said += f" · {short(own)}"
    return said + (f" ({short(shared)})" if shared is not None else "")
