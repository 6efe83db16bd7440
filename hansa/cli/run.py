"""`hansa run`, `hansa compare`, `hansa report`."""

import webbrowser
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from hansa.cli.console import Format, FormatOption, errors, finish, output, show_metrics
from hansa.cli.models import show_signatures
from hansa.cli.options import LINKS, FederationFile, SetOption, WorkersOption
from hansa.core.errors import UserError, did_you_mean
from hansa.report.text import number, table


def run(
    federation: FederationFile,
    set: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="the run directory; default runs/NAME")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue from the last checkpoint")] = False,
    workers: WorkersOption = None,
    link: Annotated[str, typer.Option(help="pool: this machine's cores; ray: a Ray cluster")] = "pool",
    patience: Annotated[
        int | None, typer.Option(min=1, help="stop after so many evaluations without improvement (evaluate.patience)")
    ] = None,
    keep_best: Annotated[
        bool, typer.Option("--keep-best", help="the final model is the best evaluated one (evaluate.keep_best)")
    ] = False,
    metric: Annotated[
        str | None, typer.Option(help="what --patience and --keep-best go by (evaluate.metric); default: the main one")
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="send scores to a tracker: tensorboard, mlflow or wandb; repeatable"),
    ] = None,
    arrivals: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="with an asynchronous method: repeat the order in which updates arrived in this run"
        ),
    ] = None,
    format: FormatOption = Format.text,
) -> None:
    """Run a federation file to its end."""
    from hansa.config.file import read

    chosen = {"patience": patience, "keep_best": "true" if keep_best else None, "metric": metric}
    given = [f"evaluate.{name}={value}" for name, value in chosen.items() if value is not None]
    settings = read(federation, [*(set or []), *given])
    if arrivals is not None:
        from hansa.runs.ledger import recorded_arrivals

        order = recorded_arrivals(arrivals)
        settings = settings.model_copy(update={"simulate": settings.simulate.model_copy(update=order)})
    from hansa.config.checks import check

    check(settings)  # before the heavy imports: a mistake is answered at once
    if link not in LINKS:
        raise UserError(f"--link {link} is not known; {did_you_mean(link, LINKS)}")
    if workers != 0 and link == "pool":
        from hansa.links.preload import preload

        preload()
    from hansa.api.federation import Federation
    from hansa.api.run import run as run_federation
    from hansa.callbacks import trackers
    from hansa.data.chunks import show_progress
    from hansa.report import html
    from hansa.report.progress import Progress
    from hansa.runs.run import Links

    show_progress()
    described, callbacks = Federation.from_settings(settings), [Progress(errors, settings.name), *trackers(track or ())]
    kind = cast(Links, link)
    found = run_federation(
        described, out=out, callbacks=callbacks, workers=workers, resume=resume, link=kind, progress=False
    )
    report = html.write([(settings.name, found.folder)], found.folder / "report.html")
    result = {
        "run": str(found.folder),
        "report": str(report),
        "metrics": found.metrics,
        "silos": found.by_silo,
        "own": found.own,
        "personal": found.personal,
    }

    def show() -> None:
        """Print the scores (shared model, each silo, own and personal models) and the paths of run and report."""
        show_metrics(found.metrics, f"{settings.name} on the test set")
        if len(found.by_silo) > 1 and found.by_silo.keys() != found.metrics.keys():
            show_metrics(found.by_silo, f"{settings.name} on the test set of each silo")
        show_signatures(settings)
        if found.own:
            show_metrics(found.own, "every node's own model on its own test set")
            output.print(own_line(found.own), highlight=False)
        if found.personal:
            show_personal(found)
        output.print(f"Run: {found.folder}\nReport: {report}", highlight=False)

    finish(format, result, show)


def show_personal(found: Any) -> None:
    """Print the silos' personal models beside the shared one, on each silo's own test data."""
    kinds = list(dict.fromkeys(kind for models in found.personal.values() for kind in models))
    rows = [[silo, *(number(models.get(kind)) for kind in kinds)] for silo, models in found.personal.items()]
    output.print(table(["", *kinds], rows, f"{found.headline} of each silo's models on its own test set"))


def own_line(own: dict[str, dict[str, float]]) -> str:
    """Mean ± standard deviation over nodes, of every metric."""
    from hansa.runs.summary import mean_and_deviation

    found = {m: mean_and_deviation(own, m) for m in dict.fromkeys(m for values in own.values() for m in values)}
    listed = ", ".join(f"{m} {number(s[0])} ± {number(s[1])}" for m, s in found.items() if s)
    return f"mean ± deviation over {len(own)} nodes: {listed}"


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
    """Run several methods on the same data, seed and budget of samples; write one report."""
    from hansa.config.file import read
    from hansa.report import html
    from hansa.report.progress import Progress
    from hansa.report.uploads import quality_against_bytes
    from hansa.runs.compare import compare as compare_methods
    from hansa.runs.compare import identical
    from hansa.runs.directory import RunDirectory
    from hansa.runs.results import RunResults
    from hansa.runs.summary import average, baseline_lines, budget_line, metric_names

    settings = read(federation, set)
    names = list(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
    if not names:
        raise UserError("--methods is empty; give the names of methods and baselines, separated by commas")
    folder = out or RunDirectory.unused(f"{settings.name}-compare")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose another --out")
    outcomes, failures = compare_methods(settings, names, folder, workers, lambda name: [Progress(errors, name)])
    folders = [(name, outcome.folder) for name, outcome in outcomes.items()]
    report = html.write(folders, folder / "report.html", settings.name)
    result = {
        "report": str(report),
        "runs": {name: {"run": str(o.folder), "metrics": o.metrics} for name, o in outcomes.items()},
        "failures": failures,
    }

    def show() -> None:
        """Print the runs side by side: scores, samples, bytes sent, baselines, identical and failed runs."""
        runs = [RunResults.read(path, name) for name, path in folders]
        metric = runs[0].task.headline
        groups = list(dict.fromkeys(g for o in outcomes.values() for g in o.metrics))
        rows = [[g, *(number(o.metrics.get(g, {}).get(metric)) for o in outcomes.values())] for g in groups]
        rows.append(["mean", *(number(average(o.metrics, metric)) for o in outcomes.values())])
        rows.append(["samples trained on", *(f"{run.samples_seen:,}" for run in runs)])
        output.print(table(["", *outcomes], rows, f"{metric} on the test set"))
        if line := budget_line(runs):
            output.print(line, highlight=False, markup=False)
        for line in baseline_lines(runs):
            output.print(line, highlight=False, markup=False)
        if found := quality_against_bytes(runs, metric_names(runs)):
            columns = ["", "sent up", "fewer bytes", *(f"mean {metric}" for metric in found["metrics"])]
            bytes_of = [[row["name"], row["up"], row["fewer"], *row["cells"]] for row in found["rows"]]
            output.print(
                table(
                    columns, bytes_of, f"quality against bytes (in brackets: better + or worse − than {found['most']})"
                )
            )
        for same in identical(outcomes):
            output.print(
                f"{', '.join(same)} have identical scores: what they differ in had no effect here (look at their "
                "settings)",
                highlight=False,
                markup=False,
            )
        for name, reason in failures.items():
            output.print(f"{name} failed: {reason}", highlight=False, markup=False)
        output.print(f"Report: {report}", highlight=False)

    finish(format, result, show)
    if failures:
        raise typer.Exit(1)


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
