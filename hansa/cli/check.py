"""`hansa new`, `hansa schema`, `hansa check`: before a run."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hansa.cli.console import (
    Format,
    FormatOption,
    finish,
    output,
    table,
)
from hansa.cli.options import FederationFile, RunPlugins, SetOption


def new(
    template: Annotated[str, typer.Argument(help="medical · ner · classify · pairs · translation · worldlm · lora")],
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    seed: int = 0,
    format: FormatOption = Format.text,
) -> None:
    """Write a federation file and data to start from."""
    from hansa import templates

    file = templates.new(template, folder, seed)
    finish(
        format, {"federation": str(file)}, lambda: output.print(f"{file} is ready: hansa check {file}", highlight=False)
    )


def schema() -> None:
    """Print the JSON Schema of federation files, with which editors complete and check them."""
    from hansa.config.plugins import load_entry_points
    from hansa.config.schema import federation_schema

    load_entry_points()
    print(json.dumps(federation_schema(), indent=2, ensure_ascii=False))


def check(
    federation: FederationFile,
    set: SetOption = None,
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="a silo's policy: what would it say?")] = None,
    run_plugins: RunPlugins = False,
    format: FormatOption = Format.text,
) -> None:
    """Validate; preview shares, traffic and what would leave the silos. Trains nothing, executes no plug-in."""
    from hansa.config.checks import named_code, refuse_unknown_names
    from hansa.config.file import read
    from hansa.config.plugins import load_plugins

    read_file = read(federation, set)
    if policy is not None:
        if run_plugins:
            load_plugins(read_file.plugins)
        refuse_unknown_names(read_file, "add --run-plugins")
        check_policy(policy, read_file, format)
        return
    if named_code(read_file) and not run_plugins:
        check_file_only(read_file, format)
        return
    from hansa.preview.preview import preview

    seen = preview(read_file)
    finish(format, seen.as_dict(), lambda: show_preview(seen))


def check_file_only(federation: Any, format: Format) -> None:
    """Check a file that names code, without executing it, and say what was left out."""
    from hansa.config.checks import check_without_code, named_code

    check_without_code(federation)
    code = named_code(federation)
    left_out = ["the task, the method and their settings", "the rows of the data", "traffic", "what leaves the silos"]
    text = (
        f"{federation.name}: the file is valid, and its data files are there. It names code ({', '.join(code)}), which "
        f"was not executed, so these were not checked: {', '.join(left_out)}. Add --run-plugins to execute it and to "
        "check them, if you trust it."
    )
    found = {"name": federation.name, "code": list(code), "not_checked": left_out}
    finish(format, found, lambda: output.print(text, highlight=False, markup=False))


def check_policy(file: Path, federation: Any, format: Format) -> None:
    """A silo's view of a federation file: it needs no data. Exit code 1 where the silo would refuse."""
    from hansa.privacy.policy.preview import preview_policy
    from hansa.privacy.policy.rules import Policy

    decisions = preview_policy(Policy.read(file), federation)
    refused = any(not d.verdict.allowed for d in decisions)

    def show() -> None:
        rows = [
            [d.request, d.what, "allowed" if d.verdict.allowed else "refused", d.verdict.rule or d.verdict.reason]
            for d in decisions
        ]
        columns = ["asked to", "what leaves", "", "rule or reason"]
        output.print(table(columns, rows, f"{file} on {federation.name}", figures=False))
        said = "A silo with this policy refuses: the federation does without it." if refused else "Nothing is refused."
        output.print(said, highlight=False)

    finish(format, {"allowed": not refused, "decisions": [d.as_dict() for d in decisions]}, show)
    if refused:
        raise typer.Exit(1)


def show_preview(seen: Any) -> None:
    """Print a preview: shares and weights, traffic, what leaves the silos."""
    from hansa.privacy.policy.disclosures import disclosures

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
    output.print(table(["silo", "training texts", "share", "per round", "share of a round", "weight"], rows, title))
    if len(seen.languages) != len(seen.silos) or any(len(s.sources) > 1 for s in seen.silos):  # else it stands above
        shares = [
            [name, f"{one.samples:,}", f"{one.share:.1%}", "–" if one.weight is None else f"{one.weight:.1%}"]
            for name, one in seen.languages.items()
        ]
        output.print(table(["language", "training texts", "share of a round", "weight"], shares, "By language"))
    if seen.tree is not None:
        show_tree(seen)
    if seen.parameters is not None:
        output.print(f"Model: at most {seen.parameters:,} parameters", highlight=False)
    if seen.traffic is not None:
        output.print(f"Traffic: at most {seen.traffic.line}", highlight=False)
    if f.kind == "federated" and len(seen.silos) > 1:
        output.print(f"Claims: {seen.claims}", highlight=False)
    output.print("What leaves the silos:", highlight=False)
    for line in disclosures(f):
        output.print(f"· {line}", highlight=False)
    for silo in seen.silos:
        for problem in silo.problems:
            output.print(f"note: {silo.name}: {problem}", highlight=False, markup=False)
    for warning in seen.warnings:
        output.print(f"[yellow]warning:[/] {warning}", highlight=False)


def show_tree(seen: Any) -> None:
    """Print the tree and the effective sampling ratio of each source."""
    from hansa.config.outline import drawn

    rows = [
        [line, f"{branch.samples:,}" if branch.held else "–", ", ".join(f"{s} {n:,}" for s, n in branch.held.items())]
        for line, branch in drawn(seen.tree)
    ]
    output.print(table(["node", "trains on", "sources"], rows, "The tree"))
    total = sum(seen.sampling.values())
    shares = [[source, f"{ratio:.3f}", f"{ratio / total:.1%}"] for source, ratio in seen.sampling.items()]
    output.print(table(["source", "ratio", "share"], shares, "Effective sampling ratio over the tree"))
