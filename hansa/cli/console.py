"""What the commands share: where results and progress go, and how a table looks."""

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console

from hansa.report.text import number, table

errors = Console(stderr=True, soft_wrap=True)
output = Console(soft_wrap=True)
if not output.is_terminal:  # a pipe or a file is as wide as the table
    output = Console(soft_wrap=True, width=240)


INTERRUPTED = 130  # how typer ends after Ctrl-C


class Format(StrEnum):
    """How a command prints its result."""

    text = "text"
    json = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="text for people, json for machines")]


def finish(format: Format, result: dict[str, Any] | list[Any], show: Callable[[], None]) -> None:
    """Print a result: as JSON, or for people by calling ``show``."""
    if format is Format.json:
        sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n")
    else:
        show()


def show_metrics(metrics: dict[str, dict[str, float]], title: str) -> None:
    """Print metrics (group → metric → value) as a table."""
    columns = list(dict.fromkeys(m for values in metrics.values() for m in values))
    rows = [[group, *(number(values.get(c)) for c in columns)] for group, values in metrics.items()]
    output.print(table(["", *columns], rows, title))


def show_models(found: dict[str, dict[str, dict[str, float]]], title: str) -> None:
    """A table for every metric: models, and what each was scored on."""
    for metric in dict.fromkeys(m for scored in found.values() for values in scored.values() for m in values):
        columns = list(dict.fromkeys(name for scored in found.values() for name in scored))
        rows = [[model, *(number(scored.get(c, {}).get(metric)) for c in columns)] for model, scored in found.items()]
        output.print(table(["model", *columns], rows, f"{title}: {metric}"))
