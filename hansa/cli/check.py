"""`hansa new`, `hansa schema`, `hansa check`: before a run."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hansa.cli.console import Format, FormatOption, finish, output
from hansa.cli.options import FederationFile, RunPlugins, SetOption
from hansa.report.text import table


def new(
    template: Annotated[
        str, typer.Argument(help="medical · ner · classify · pairs · translation · worldlm · lora · instruct")
    ],
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
    resources: Annotated[bool, typer.Option(help="estimate memory and time, also of a small model")] = False,
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
    from hansa.report.preview_text import print_preview

    seen = preview(read_file, resources)
    finish(format, seen.as_dict(), lambda: print_preview(output, seen))


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
        """Print a table of the policy's decisions, and whether one of them is a refusal."""
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
