"""The preview of a run as text: what `hansa check` prints."""

from rich.console import Console

from hansa.config.defaults import chosen_defaults
from hansa.config.outline import Branch, drawn
from hansa.preview.preview import Preview
from hansa.privacy.policy.disclosures import disclosures
from hansa.report.text import table

MOST_LABELS = 12  # shown


def print_preview(console: Console, seen: Preview) -> None:
    """Print a preview: shares and weights, traffic, what leaves the silos."""
    total, per_round = sum(s.samples for s in seen.silos), sum(s.per_round for s in seen.silos)
    rows = [
        [
            s.name,
            f"{s.samples:,}",
            f"{s.samples / total:.1%}",
            f"{s.valid:,}",
            f"{s.test:,}",
            f"{s.per_round:,}",
            f"{s.per_round / per_round:.1%}",
            "–" if s.weight is None else f"{s.weight:.1%}",
        ]
        for s in seen.silos
    ]
    f = seen.federation
    counted = "samples" if seen.foreseen.exact else "texts"
    title = f"{f.name}: {f.kind}, {f.task.name}, {f.method.name}, {f.rounds} rounds; {counted} of each silo"
    columns = ["silo", "training", "share", "validation", "test", "per round", "of a round", "weight"]
    console.print(table(columns, rows, title))
    if len(seen.languages) != len(seen.silos) or any(len(s.sources) > 1 for s in seen.silos):  # else it stands above
        shares = [
            [name, f"{one.samples:,}", f"{one.share:.1%}", "–" if one.weight is None else f"{one.weight:.1%}"]
            for name, one in seen.languages.items()
        ]
        console.print(table(["language", f"training {counted}", "of a round", "weight"], shares, "By language"))
    if seen.tree is not None:
        _print_tree(console, seen.tree, seen.sampling)
    if seen.parameters is not None:
        console.print(f"Model: {seen.parameters:,} parameters", highlight=False)
    else:
        console.print(
            f"Model, traffic and samples: not known yet, because '{f.model.path or f.tokenizer.path}' is not a folder "
            "on this machine: the run downloads it. A text counts as one sample here; long texts give several",
            highlight=False,
            soft_wrap=True,
        )
    for note in seen.foreseen.notes:
        console.print(f"Model: {note}", highlight=False, markup=False, soft_wrap=True)
    if seen.foreseen.labels:
        shown = ", ".join(seen.foreseen.labels[:MOST_LABELS]) + (
            " …" if len(seen.foreseen.labels) > MOST_LABELS else ""
        )
        console.print(f"Labels: {shown} ({len(seen.foreseen.labels)})", highlight=False, markup=False, soft_wrap=True)
    if seen.traffic is not None:
        console.print(f"Traffic: {seen.traffic.line}", highlight=False)
    if seen.resources is not None:
        console.print(f"Memory and time: about {seen.resources.line}", highlight=False)
    _print_training(console, seen)
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


def _print_training(console: Console, seen: Preview) -> None:
    """Print how a silo trains, and which of it are defaults."""
    f = seen.federation
    train, section = (f.train, "") if f.kind == "federated" else (f.baseline, " (section baseline)")
    often = "every round" if f.evaluate.every == 1 else f"every {f.evaluate.every} rounds"
    part = "the" if f.evaluate.share == 1.0 else f"{f.evaluate.share:.0%} of the"
    console.print(
        f"Training{section}: {train.optimizer}, learning rate {train.lr:g}, batches of {train.batch}, at most "
        f"{f.data.max_length} tokens per sample; evaluation after {often}, on {part} validation data",
        highlight=False,
        soft_wrap=True,
    )
    for one in chosen_defaults(f) if f.kind == "federated" else ():
        console.print(f"· default: {one.setting} = {one.value} ({one.reason})", highlight=False, soft_wrap=True)


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
