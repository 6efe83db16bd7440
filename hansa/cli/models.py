"""`hansa evaluate`, `hansa predict`, `hansa export`: what a run left behind."""

import json
import sys
from pathlib import Path
from time import monotonic
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
from hansa.cli.options import RunFolder, WorkersOption
from hansa.core.errors import UserError


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run directory; or FED.yaml, with --model")],
    data: Annotated[
        Path | None, typer.Option(help="a file or folder of samples; default: all silos' test data")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="any model folder or hub id, on every silo's test data; then RUN is a FED.yaml")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="--model: the run directory; default runs/NAME")] = None,
    workers: WorkersOption = None,
    silo: Annotated[str | None, typer.Option(help="the model of this silo; all: every model of the run")] = None,
    checkpoint: Annotated[int | None, typer.Option(help="the checkpoint of this round")] = None,
    few_shot: Annotated[
        Path | None, typer.Option(help="a YAML file of multiple-choice tasks for causal models: docs/instruct.md")
    ] = None,
    harness: Annotated[
        Path | None, typer.Option(help="a folder of local task files for lm-evaluation-harness: docs/instruct.md")
    ] = None,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="of the silos' test data")] = 1.0,
    text: Annotated[str | None, typer.Option(help="--data: the field of the text; default: as in the run")] = None,
    label: Annotated[str | None, typer.Option(help="the field of the label; default: as in the run")] = None,
    tokens: Annotated[
        str | None, typer.Option(help="of entities: the field of the words; default: as in the run")
    ] = None,
    tags: Annotated[str | None, typer.Option(help="of entities: the field of the tags; default: as in the run")] = None,
    second: Annotated[str | None, typer.Option(help="of pairs: the field of the other text")] = None,
    target: Annotated[str | None, typer.Option(help="of translations and answers: the field beside --text")] = None,
    language: Annotated[str, typer.Option(help="of a translation memory: the language to translate from")] = "",
    target_language: Annotated[str, typer.Option(help="… and the one to translate into")] = "",
    format: FormatOption = Format.text,
) -> None:
    """Score any model of a run, or any model folder, on any file or on every silo's test data."""
    if model is not None:
        evaluate_model(run, model, out, workers, format)
        return
    if run.suffix in (".yaml", ".yml"):
        raise UserError(f"{run} is a federation file: add --model with a folder or hub id, or give a run directory")
    from hansa.runs.inference import columns_of, every_model, load, on_silos, score

    columns = {"text": text, "label": label, "tokens": tokens, "tags": tags, "second": second, "target": target}
    given_fields = {name: value for name, value in columns.items() if value is not None}
    languages = {"language": language, "target_language": target_language}

    named = {"--few-shot": few_shot, "--harness": harness, "--data": data}
    given = [option for option, file in named.items() if file is not None]
    if len(given) > 1:
        raise UserError(f"{given[0]} names its own files, and {given[1]} another one: leave one of them out")
    asked = few_shot or harness or data or "the silos"

    began = monotonic()

    def say(text: str) -> None:
        """Print a line of progress with the seconds since the start; nothing if the output is JSON."""
        if format is Format.text:
            errors.print(f"{text} ({monotonic() - began:.0f} s)", style="dim", highlight=False, markup=False)

    def say_silo(name: str, number: int, of: int) -> None:
        """Print which silo's test data is scored next."""
        say(f"  silo {number} of {of}: {name}")

    def scores(runtime: Any, model: Any) -> dict[str, dict[str, float]]:
        """Group or task → metrics of a model: few-shot tasks, the harness, the silos' test data or the given file."""
        if few_shot is not None:
            return few_shot_scores(runtime, model, few_shot)
        if harness is not None:
            from hansa.runs.harness import evaluate_harness

            seed = runtime.federation.seed
            return evaluate_harness(model, runtime.task.auto, runtime.vocabulary, harness, seed)
        if data is None:
            return on_silos(runtime, model, share, say_silo)
        fields = columns_of(runtime.federation) | given_fields | languages
        return score(runtime, model, data, fields, lambda problem: errors.print(f"note: {problem}", markup=False))

    if silo == "all":
        if checkpoint is not None:
            raise UserError("--checkpoint is one model, and --silo all asks for all final ones: leave one of them out")
        found = every_model(run, scores, lambda name, number, of: say(f"model {number} of {of}: {name}"))
        if not any(found.values()):
            raise UserError(f"{data or run}: there is nothing in it that could be scored")
        finish(format, found, lambda: show_models(found, f"{run} on {asked}"))
    else:
        runtime, model = load(run, silo, checkpoint)
        metrics = scores(runtime, model)
        if not metrics:
            raise UserError(f"{data or run}: there is nothing in it that could be scored")

        def show() -> None:
            """Print the scores of the one model, with the signatures of its metrics if it was scored on samples."""
            show_metrics(metrics, f"{run} on {asked}")
            if few_shot is None and harness is None:
                show_signatures(runtime.federation)

        finish(format, metrics, show)


def evaluate_model(file: Path, model: str, out: Path | None, workers: int | None, format: Format) -> None:
    """Score a given model on the test data of every silo of a federation file: a run without rounds."""
    from hansa.config.checks import check
    from hansa.config.file import read
    from hansa.report import html
    from hansa.report.progress import Progress
    from hansa.runs.baselines import evaluation_only
    from hansa.runs.run import run as run_federation

    settings = evaluation_only(read(file), model)
    check(settings)
    found = run_federation(settings, out, workers=workers, callbacks=[Progress(errors, settings.name)])
    report = html.write([(settings.name, found.folder)], found.folder / "report.html")

    def show() -> None:
        """Print the scores of the given model, in total and by silo, and the paths of run and report."""
        show_metrics(found.metrics, f"{model} on the test set")
        if len(found.by_silo) > 1:
            show_metrics(found.by_silo, f"{model} on the test set of each silo")
        show_signatures(settings)
        output.print(f"Run: {found.folder}\nReport: {report}", highlight=False)

    result = {"run": str(found.folder), "metrics": found.metrics, "silos": found.by_silo, "report": str(report)}
    finish(format, result, show)


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
    as_json: Annotated[bool, typer.Option("--json", help="the same as --format json")] = False,
) -> None:
    """Fill masks, classify, find entities, continue, translate or answer texts: arguments, or lines of the input."""
    from hansa.runs.inference import load

    format = Format.json if as_json else format
    if not texts and not chat and not sys.stdin.isatty():
        texts = [line.strip() for line in sys.stdin if line.strip()]
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
        """Print each text with the model's answers below it."""
        for one in found:
            output.print(one["text"], markup=False, highlight=False)
            for answer in one["answers"] or ["nothing was found"]:
                output.print(f"  {answer if isinstance(answer, str) else said(answer)}", markup=False, highlight=False)

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
    for written in ("translation", "answer", "continuation"):
        if written in answer:
            return str(answer[written]).strip() or "(nothing)"
    return json.dumps(answer, ensure_ascii=False)
