"""The report's tree: every node with its samples and the score of its own model on its own data."""

from collections.abc import Iterator
from typing import Any

from hansa.config.outline import Branch, outline
from hansa.config.tree import is_tree
from hansa.report.charts import short, tree
from hansa.runs.results import RunResults


def tree_section(run: RunResults) -> dict[str, Any] | None:
    """A drawing of the tree and a note that explains its figures; None if the run has no tree."""
    if not is_tree(run.federation) or run.federation.kind == "central":
        return None
    held = {name: card.groups["train"] for name, card in run.cards.items()}
    nodes = [(depth, branch.name, _caption(run, branch)) for depth, branch in _walk(outline(run.federation, held))]
    metric = run.task.headline.replace("_", " ")
    own = f" {metric.capitalize()} of every node's own model on its own test data." if run.own else ""
    note = f"Training samples.{own} In brackets, for a node with one source: the global model on that source."
    return {"name": run.name, "chart": tree(f"The tree of {run.name}", nodes), "note": note}


def _walk(branch: Branch, depth: int = 0) -> Iterator[tuple[int, Branch]]:
    yield depth, branch
    for child in branch.below:
        yield from _walk(child, depth + 1)


def _caption(run: RunResults, branch: Branch) -> str:
    metric = run.task.headline
    caption = f"{short(branch.samples)} samples"
    own = run.own.get(branch.name, {}).get(metric)
    groups = list(branch.held)
    shared = run.final.get(groups[0], {}).get(metric) if len(groups) == 1 else None
    if own is not None:
        caption += f" · {short(own)}"
    return caption + (f" ({short(shared)})" if shared is not None else "")
