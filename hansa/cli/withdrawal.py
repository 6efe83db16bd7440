"""`hansa leave` and `hansa retrain`: a silo leaves for good, and a run is repeated without it."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from hansa.cli.console import Format, FormatOption, errors, finish, output, show_metrics
from hansa.cli.kit import require_extra
from hansa.cli.logs import LogFormat, LogFormatOption, LogLevel, LogLevelOption, configure
from hansa.cli.options import ProxyOption, RunFolder, TrustOption, WorkersOption

log = logging.getLogger("hansa")


def retrain(
    run: RunFolder,
    without: Annotated[str, typer.Option("--without", metavar="SILO", help="the silo that has withdrawn")],
    out: Annotated[Path | None, typer.Option(help="the new run directory; default RUN-without-SILO")] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="use no checkpoint of the run")] = False,
    workers: WorkersOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Repeat a run without a silo, from the last checkpoint before the silo took part."""
    from hansa.report import html
    from hansa.report.progress import Progress
    from hansa.runs.withdrawal import plan_retraining
    from hansa.runs.withdrawal import retrain as repeat

    plan = plan_retraining(run, without, from_start)
    begin = f"the checkpoint of round {plan.begin}" if plan.begin else "the start"
    errors.print(f"{without}: {plan.remains.text}", highlight=False, markup=False)
    errors.print(f"repeating {run} without it from {begin}: {plan.why}", highlight=False, markup=False)
    progress = Progress(errors, plan.federation.name)
    try:
        outcome = repeat(plan, out, workers, [progress])
    finally:
        progress.stop()
    report = html.write([(plan.federation.name, outcome.folder)], outcome.folder / "report.html")
    result = {
        "run": str(outcome.folder),
        "report": str(report),
        "without": without,
        "begin": plan.begin,
        "why": plan.why,
        "remained": plan.remains.text,
        "metrics": outcome.metrics,
    }

    def show() -> None:
        """Print the test scores of the repeated run, its directory and its report."""
        show_metrics(outcome.metrics, f"{plan.federation.name} without {without} on the test set")
        output.print(f"Run: {outcome.folder}\nReport: {report}", highlight=False)

    finish(format, result, show)


def leave(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="the silo's startup kit")],
    home: Annotated[Path | None, typer.Option(help="the folder for this silo's own files; default KIT/home")] = None,
    proxy: ProxyOption = None,
    trust: TrustOption = None,
    seconds: Annotated[float, typer.Option(min=1, help="how long to try to reach the coordinator")] = 60.0,
    log_level: LogLevelOption = LogLevel.info,
    log_format: LogFormatOption = LogFormat.text,
) -> None:
    """Leave a federation for good: stop the silo's agent, and tell the coordinator in a signed message."""
    require_extra()
    configure(log_level, log_format)
    from hansa.deploy.kit import Kit
    from hansa.deploy.leave import leave as leave_federation
    from hansa.deploy.network.address import choose_proxy

    own = Kit(kit)
    through = choose_proxy(proxy, own.parent.host)
    leave_federation(own, home or kit / "home", through, log.info, seconds, trust)
    output.print(
        f"'{own.name}' has left federation '{own.info.federation}': the coordinator goes on without it, and the report "
        "says what of it remains in the model",
        highlight=False,
        markup=False,
    )
