"""`hansa evaluate`, `hansa predict`: what a run left behind."""

import json
import sys
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
    few_shot: Annotated[
        Path | None, typer.Option(help="a YAML file of multiple-choice tasks for causal models: docs/instruct.md")
    ] = None,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="of the silos' test data")] = 1.0,
    text: str = "text",
    label: str = "label",
    second: Annotated[str, typer.Option(help="of pairs: the field of the other text")] = "second",
    target: Annotated[str, typer.Option(help="of translations and answers: the field beside --text")] = "target",
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

    if few_shot is not None and data is not None:
        raise UserError("--few-shot names its own files, and --data another one: leave one of them out")

    def scores(runtime: Any, model: Any) -> dict[str, dict[str, float]]:
        if few_shot is not None:
            return few_shot_scores(runtime, model, few_shot)
        if data is None:
            return on_silos(runtime, model, share)
        return score(runtime, model, data, fields, lambda problem: errors.print(f"note: {problem}", markup=False))

    if silo == "all":
        if checkpoint is not None:
            raise UserError("--checkpoint is one model, and --silo all asks for all final ones: leave one of them out")
        found = every_model(run, scores)
        if not any(found.values()):
            raise UserError(f"{data or run}: there is nothing in it that could be scored")
        finish(format, found, lambda: show_models(found, f"{run} on {few_shot or data or 'the silos'}"))
    else:
        runtime, model = load(run, silo, checkpoint)
        metrics = scores(runtime, model)
        if not metrics:
            raise UserError(f"{data or run}: there is nothing in it that could be scored")

        def show() -> None:
            show_metrics(metrics, f"{run} on {few_shot or data or 'the silos'}")
            if few_shot is None:
                show_signatures(runtime.federation)

        finish(format, metrics, show)


def few_shot_scores(runtime: Any, model: Any, file: Path) -> dict[str, dict[str, float]]:
    """The scores of a model on the tasks of a few-shot file."""
    from hansa.runs.few_shot import evaluate_few_shot, read_tasks

    tasks = read_tasks(file)
    return evaluate_few_shot(model, runtime.task.auto, runtime.vocabulary, tasks, runtime.federation.seed)


def show_signatures(federation: Any) -> None:
    """How exactly the figures were computed, where a library of metrics did."""
    from hansa.tasks.base import TASKS, GenerationTask

    task = TASKS.build(federation.task)
    for line in task.signatures if isinstance(task, GenerationTask) else ():
        output.print(line, highlight=False)


def predict(
    run: RunFolder,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…")] = None,
    silo: Annotated[str | None, typer.Option(help="the model of this silo")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="one conversation: every TEXT, or line of the input, is its next question")
    ] = False,
    format: FormatOption = Format.text,
) -> None:
    """Fill masks, classify, continue, translate or answer a text."""
    from hansa.runs.inference import load

    if not texts and not chat:
        raise UserError("no text was given: write it after the run directory, or use --chat for a conversation")
    runtime, model = load(run, silo)
    if chat:
        converse(runtime, model, texts or [], format)
        return
    assert texts is not None
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


def converse(runtime: Any, model: Any, texts: list[str], format: Format) -> None:
    """Answer questions one after another; the model sees the earlier ones. Without texts, they come from the input."""
    from hansa.tasks.base import ChatTask

    if not isinstance(runtime.task, ChatTask):
        raise UserError(f"--chat needs a model of the task 'instruct', and this is '{runtime.federation.task.name}'")
    messages: list[dict[str, str]] = []
    for text in texts or (line.strip() for line in sys.stdin):
        if not text:
            continue
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": runtime.task.reply(model, runtime.vocabulary, messages)})
        if format is Format.text:
            if texts:
                output.print(text, markup=False, highlight=False)
            output.print("  " + messages[-1]["content"], markup=False, highlight=False)
    finish(format, {"messages": messages}, lambda: None)


def said(answer: dict[str, Any]) -> str:
    """An answer of any task in one line."""
    if "fillings" in answer:
        return ", ".join(f"{one['token']!r} {one['probability']:.1%}" for one in answer["fillings"])
    if "type" in answer:
        return f"{answer['type']}: {answer['text']} (characters {answer['span'][0]} to {answer['span'][1]})"
    if "label" in answer:
        return f"{answer['label']} {answer['probability']:.1%}"
    for written in ("translation", "answer"):
        if written in answer:
            return str(answer[written])
    return json.dumps(answer, ensure_ascii=False)
