"""`hansa evaluate`, `hansa predict`, `hansa export`: what a run left behind."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hansa.cli.console import (
    Format,
    FormatOption,
    errors,
    finish,
    output,
    show_metrics,
    show_models,
)
from hansa.cli.options import RunFolder
from hansa.core.errors import UserError


def evaluate(
    run: RunFolder,
    data: Annotated[
        Path | None, typer.Option(help="a file or folder of samples; default: all silos' test data")
    ] = None,
    silo: Annotated[str | None, typer.Option(help="the model of this silo; all: every model of the run")] = None,
    checkpoint: Annotated[int | None, typer.Option(help="the checkpoint of this round")] = None,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="of the silos' test data")] = 1.0,
    text: str = "text",
    label: str = "label",
    second: Annotated[str, typer.Option(help="of pairs: the field of the other text")] = "second",
    target: Annotated[str, typer.Option(help="of translations: the field beside --text")] = "target",
    language: Annotated[str, typer.Option(help="of a translation memory: the language to translate from")] = "",
    target_language: Annotated[str, typer.Option(help="… and the one to translate into")] = "",
    format: FormatOption = Format.text,
) -> None:
    """Score any model of a run, or all of them, on any file or on every silo's test data."""
    from hansa.runs.inference import every_model, load, on_silos, score

    fields = {
        "text": text,
        "label": label,
        "second": second,
        "target": target,
        "language": language,
        "target_language": target_language,
    }

    def scores(runtime: Any, model: Any) -> dict[str, dict[str, float]]:
        if data is None:
            return on_silos(runtime, model, share)
        return score(runtime, model, data, fields, lambda problem: errors.print(f"note: {problem}", markup=False))

    if silo == "all":
        if checkpoint is not None:
            raise UserError("--checkpoint is one model, and --silo all asks for all final ones: leave one of them out")
        found = every_model(run, scores)
        if not any(found.values()):
            raise UserError(f"{data or run}: there is nothing in it that could be scored")
        finish(format, found, lambda: show_models(found, f"{run} on {data or 'the silos'}"))
    else:
        runtime, model = load(run, silo, checkpoint)
        metrics = scores(runtime, model)
        if not metrics:
            raise UserError(f"{data or run}: there is nothing in it that could be scored")

        def show() -> None:
            show_metrics(metrics, f"{run} on {data or 'the silos'}")
            show_signatures(runtime.federation)

        finish(format, metrics, show)


def show_signatures(federation: Any) -> None:
    """How exactly the figures were computed, where a library of metrics did."""
    from hansa.tasks.base import TASKS, GenerationTask

    task = TASKS.build(federation.task)
    for line in task.signatures if isinstance(task, GenerationTask) else ():
        output.print(line, highlight=False)


def predict(
    run: RunFolder,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT…")],
    silo: Annotated[str | None, typer.Option(help="the model of this silo")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Fill masks, classify, continue or translate a text."""
    from hansa.runs.inference import load

    runtime, model = load(run, silo)
    takes = getattr(runtime.task, "takes", 1)  # texts for one answer
    if len(texts) % takes:
        raise UserError(f"task '{runtime.federation.task.name}' takes {takes} texts at a time; {len(texts)} were given")
    asked = ["\t".join(texts[i : i + takes]) for i in range(0, len(texts), takes)]
    found: list[dict[str, Any]] = [
        {"text": text, "answers": runtime.task.predict(model, runtime.vocabulary, text)} for text in asked
    ]

    def show() -> None:
        for one in found:
            output.print(one["text"], markup=False, highlight=False)
            for answer in one["answers"]:
                output.print("  " + said(answer), markup=False, highlight=False)

    finish(format, {"predictions": found}, show)


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="the folder to write; it must not exist")],
    merged: Annotated[
        bool, typer.Option("--merged", help="merge adapters into the base: a plain model that needs no PEFT")
    ] = False,
    silo: Annotated[str | None, typer.Option(help="the model of this silo")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Write a final model of a run into a folder: as it is (adapters by themselves), or merged."""
    from hansa.runs.inference import write_model

    if out.exists():
        raise UserError(f"{out} exists; give the name of a folder that does not")
    write_model(run, silo, out, merged)
    finish(format, {"model": str(out)}, lambda: output.print(f"Model: {out}", highlight=False))


def said(answer: dict[str, Any]) -> str:
    """An answer of any task in one line."""
    if "fillings" in answer:
        return ", ".join(f"{one['token']!r} {one['probability']:.1%}" for one in answer["fillings"])
    if "type" in answer:
        return f"{answer['type']}: {answer['text']} (characters {answer['span'][0]} to {answer['span'][1]})"
    if "label" in answer:
        return f"{answer['label']} {answer['probability']:.1%}"
    if "translation" in answer:
        return str(answer["translation"])
    return json.dumps(answer, ensure_ascii=False)
