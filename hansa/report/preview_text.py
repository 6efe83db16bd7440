"""The preview of a run as text: what `hansa check` prints."""

from rich.console import Console

from hansa.config.outline import Branch, drawn
from hansa.preview.preview import Preview
from hansa.privacy.policy.disclosures import disclosures
from hansa.report.text import table


def print_preview(console: Console, seen: Preview) -> None:
    """Print a preview: shares and weights, traffic, what leaves the silos."""
    total, per_round = sum(s.samples for s in seen.silos), sum(s.per_round for s in seen.silos)
    rows = [
        [
            s.name,
            f"{s.samples:,}",
            f"{s.samples / total:.1%}",
            f"{s.per_round:,}",
            f"{s.per_round / per_round:.1%}",
            "–" if s.weight is None else f"{s.weight:.1%}",
        ]
        for s in seen.silos
    ]
    f = seen.federation
    title = f"{f.name}: {f.kind}, {f.task.name}, {f.method.name}, {f.rounds} rounds"
    console.print(table(["silo", "training samples", "share", "per round", "share of a round", "weight"], rows, title))
    if len(seen.languages) != len(seen.silos) or any(len(s.sources) > 1 for s in seen.silos):  # else it stands above
        shares = [
            [name, f"{one.samples:,}", f"{one.share:.1%}", "–" if one.weight is None else f"{one.weight:.1%}"]
            for name, one in seen.languages.items()
        ]
        console.print(table(["language", "training samples", "share of a round", "weight"], shares, "By language"))
    if seen.tree is not None:
        _print_tree(console, seen.tree, seen.sampling)
    if seen.parameters is not None:
        console.print(f"Model: at most {seen.parameters:,} parameters", highlight=False)
    else:
        console.print(
            f"Model and traffic: not known yet, because '{f.model.path}' is not a folder on this machine: the run "
            "downloads it",
            highlight=False,
        )
    if seen.traffic is not None:
        console.print(f"Traffic: at most {seen.traffic.line}", highlight=False)
    if f.kind == "federated" and len(seen.silos) > 1:
        console.print(f"Claims: {seen.claims}", highlight=False)
    console.print("What leaves the silos:", highlight=False)
    for line in disclosures(f):
        console.print(f"· {line}", highlight=False)
    for silo in seen.silos:
        for problem in silo.problems:
            console.print(f"note: {silo.name}: {problem}", highlight=False, markup=False)
    for warning in seen.warnings:
        console.print(f"[yellow]warning:[/] {warning}", highlight=False)


def _print_tree(console: Console, tree: Branch, sampling: dict[str, float]) -> None:
    """Print the tree and the effective sampling ratio of each source."""
    rows = [
        [line, f"{branch.samples:,}" if branch.held else "–", ", ".join(f"{s} {n:,}" for s, n in branch.held.items())]
        for line, branch in drawn(tree)
    ]
    console.print(table(["node", "trains on", "sources"], rows, "The tree"))
    total = sum(sampling.values())
    shares = [[source, f"{ratio:.3f}", f"{ratio / total:.1%}"] for source, ratio in sampling.items()]
    console.print(table(["source", "ratio", "share"], shares, "Effective sampling ratio over the tree"))
