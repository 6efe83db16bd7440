"""The commands of deployment: `hansa serve`, `hansa join`, `hansa status`."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hansa.cli.console import INTERRUPTED, Format, FormatOption, finish, output, show_metrics
from hansa.cli.kit import require_extra
from hansa.cli.logs import LogFileOption, LogFormat, LogFormatOption, LogLevel, LogLevelOption, configure
from hansa.cli.options import OidcOption, PolicyOption, ProxyOption, TrustOption
from hansa.cli.serve_options import refuse_for_coordinator, refuse_for_region, refuse_without_queue, webhook_of
from hansa.core.errors import UserError, printable
from hansa.report.text import table

if TYPE_CHECKING:
    from hansa.deploy.alerts import Webhook
    from hansa.deploy.public_certificate import PublicCertificate

log = logging.getLogger("hansa")

MAX_REFUSALS = 20  # lines of `hansa status`
TERMINATED = 143  # exit code of a coordinator after SIGTERM: the run is not done, and resumes with the same command
ListenOption = Annotated[
    str | None,
    typer.Option("--listen", metavar="[HOST:]PORT", help="where to listen; default: the port of the kit's address"),
]
KitOption = Annotated[Path, typer.Option("--kit", help="the startup kit of this node")]
NatsOption = Annotated[
    str | None,
    typer.Option(
        "--nats", metavar="wss://HOST:PORT[,…]", help="existing NATS servers of one cluster, instead of starting one"
    ),
]
PluginsOption = Annotated[
    list[Path] | None, typer.Option("--plugins", help="a Python file that registers tasks or methods")
]
ModelOption = Annotated[
    Path | None, typer.Option("--model", help="this node's copy of the base model, where only adapters travel")
]
KeepDaysOption = Annotated[
    float | None,
    typer.Option(
        "--keep-days", min=1.0, metavar="DAYS", help="delete hourly what `hansa prune` would after so many days"
    ),
]
HealthOption = Annotated[
    str | None, typer.Option("--health", metavar="[HOST:]PORT", help="answer /healthz, /readyz and /metrics there")
]


def serve(
    federation: Annotated[
        Path | None, typer.Argument(metavar="FED.yaml", help="the federation file; not for a region")
    ] = None,
    kit: KitOption = Path("kits/coordinator"),
    out: Annotated[Path | None, typer.Option(help="the run directory; default runs/NAME")] = None,
    queue: Annotated[
        Path | None,
        typer.Option(
            "--queue", metavar="RUNS", help="work on the runs that `hansa submit` puts there; the port stays open"
        ),
    ] = None,
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, max=16, help="with --queue: how many runs go on at the same time")
    ] = 1,
    nats: NatsOption = None,
    listen: ListenOption = None,
    data: Annotated[list[Path] | None, typer.Option(help="the region's own data, if it has any")] = None,
    policy: Annotated[Path | None, typer.Option(help="of a region: the policy for what it may release")] = None,
    model: ModelOption = None,
    plugins: PluginsOption = None,
    proxy: ProxyOption = None,
    trust: TrustOption = None,
    health: HealthOption = None,
    accounts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="serve the dashboard on the same port to these accounts"),
    ] = None,
    oidc: OidcOption = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="certificate of the port for browsers and inspecting proxies; default: self-signed"
        ),
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="the private key of --certificate")] = None,
    keep_days: KeepDaysOption = None,
    webhook: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="alerts of failed rounds and missing members (of a region: members alone); needs HANSA_WEBHOOK_SECRET",
        ),
    ] = None,
    log_level: LogLevelOption = LogLevel.info,
    log_format: LogFormatOption = LogFormat.text,
    log_file: LogFileOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Run the coordinator of a federation, or of one region. Resumes where it stopped."""
    require_extra()
    configure(log_level, log_format, log_file)
    from hansa.deploy.kit import Kit
    from hansa.deploy.public_certificate import PublicCertificate

    own = Kit(kit)
    if own.info.kind == "region":
        refuse_for_region(
            kit,
            federation=federation is not None,
            queue=queue is not None,
            at_once=at_once != 1,
            keep_days=keep_days is not None,
            accounts=accounts is not None,
            oidc=oidc is not None,
        )
        public, hook = PublicCertificate.parse(certificate, key), webhook_of(webhook)
        serve_region(
            kit, out, nats, data or [], policy, plugins or [], proxy, health, model, trust, listen, public, hook
        )
        return
    if own.info.kind == "silo":
        raise UserError(f"{kit} is the kit of a silo, which has no children; use 'hansa join {kit} --data …'")
    if (federation is None) == (queue is None):
        raise UserError("the coordinator needs a federation file or a queue: hansa serve FED.yaml, or --queue RUNS")
    refuse_for_coordinator(
        kit,
        data=bool(data),
        policy=policy is not None,
        model=model is not None,
        plugins=bool(plugins),
    )
    refuse_without_queue(at_once=queue is None and at_once != 1, keep_days=queue is None and keep_days is not None)
    from hansa.cli.serving import Serving, pages_of
    from hansa.config.file import read
    from hansa.deploy.alerts import Alerts
    from hansa.deploy.health import serve_probes, unreachable_reason
    from hansa.deploy.metrics import coordinator_figures, exposition
    from hansa.deploy.standing import default_listen, parse_listen

    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, end_coordinator)
    settings = read(federation) if federation is not None else None
    folder = queue or out or Path("runs") / (settings.name if settings is not None else "")
    hook = webhook_of(webhook)
    shown = accounts is not None or oidc is not None
    pages = pages_of(queue or folder.parent, accounts, oidc, own) if shown else None
    alerts = Alerts(hook, log.warning) if hook is not None else None
    public = PublicCertificate.parse(certificate, key)
    serving = Serving(own, nats, listen, log_format, alerts, pages, public)
    host, port = parse_listen(listen) if listen is not None else default_listen(own)
    metrics = exposition(coordinator_figures(lambda: serving.open if queue is not None else [folder], own, folder))
    with ExitStack() as stack:
        if alerts is not None:
            stack.callback(alerts.close)
        stack.enter_context(serve_probes(health, lambda: unreachable_reason((host or "127.0.0.1", port)), metrics))
        if settings is None:
            serving.queue(folder, at_once, keep_days)
            return
        outcome, report = serving.run(settings, folder)
    result = {"run": str(outcome.folder), "report": str(report), "metrics": outcome.metrics}

    def show() -> None:
        """Print the test scores, and the paths of the run and its report."""
        show_metrics(outcome.metrics, f"{settings.name} on the test set")
        output.print(f"Run: {outcome.folder}\nReport: {report}", highlight=False)

    finish(format, result, show)


def serve_region(
    kit: Path,
    out: Path | None,
    nats: str | None,
    data: list[Path],
    policy: Path | None,
    plugins: list[Path],
    proxy: str | None,
    health: str | None,
    model: Path | None = None,
    trust: Path | None = None,
    listen: str | None = None,
    public: "PublicCertificate | None" = None,
    hook: "Webhook | None" = None,
) -> None:
    """Run the region with a kit until SIGTERM or Ctrl-C."""
    from hansa.deploy.agent import Agent
    from hansa.deploy.alerts import Alerts
    from hansa.deploy.health import serve_probes
    from hansa.deploy.join import sources
    from hansa.deploy.kit import Kit
    from hansa.deploy.metrics import coordinator_figures, exposition
    from hansa.deploy.network.address import choose_proxy
    from hansa.deploy.policy_enforcer import PolicyEnforcer
    from hansa.deploy.region import serve_region as serve_it

    own = Kit(kit)
    folder = out or Path("runs") / own.name
    http_proxy = choose_proxy(proxy, own.parent.host)
    held = sources(own, data) if data or own.info.sources else ()
    enforcer = PolicyEnforcer.load(own, policy, folder) if policy is not None or held else None
    with ExitStack() as stack:

        def ready(agent: Agent) -> None:
            """Let signals stop the agent; serve its health probes and watch its members until the region ends."""
            on_stop(agent.stop)
            if hook is not None:
                alerts = Alerts(hook, log.warning)
                stack.callback(alerts.close)
                alerts.watch(folder, own.info.federation, folder.name)
            stack.enter_context(
                serve_probes(health, agent.not_ready, exposition(coordinator_figures(list, own, folder)))
            )

        serve_it(
            own,
            folder,
            nats,
            held,
            paths(plugins),
            log.info,
            ready,
            enforcer,
            http_proxy,
            log.warning,
            folder_of(model),
            trust,
            listen,
            public,
        )
    exit_agent()


def join(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="the silo's startup kit")],
    data: Annotated[list[Path], typer.Option(help="the file or folder with this silo's data; one for each source")],
    home: Annotated[Path | None, typer.Option(help="the folder for this silo's own files; default KIT/home")] = None,
    policy: PolicyOption = None,
    model: ModelOption = None,
    threads: Annotated[int, typer.Option(min=1, help="threads for training; 1 gives the same bits as 'hansa run'")] = 1,
    at_once: Annotated[
        int,
        typer.Option("--at-once", min=1, max=16, help="runs to work on at the same time, each in a process of its own"),
    ] = 1,
    processes: Annotated[
        int | None, typer.Option(min=1, help="processes that compute each gradient together; default: train.processes")
    ] = None,
    plugins: PluginsOption = None,
    proxy: ProxyOption = None,
    trust: TrustOption = None,
    health: HealthOption = None,
    keep_days: KeepDaysOption = None,
    log_level: LogLevelOption = LogLevel.info,
    log_format: LogFormatOption = LogFormat.text,
    log_file: LogFileOption = None,
) -> None:
    """Run the agent of a silo: it answers requests from local data, and opens only outbound connections."""
    require_extra()
    configure(log_level, log_format, log_file)
    from hansa.deploy.kit import Kit

    folder = home or kit / "home"
    own = Kit(kit, folder)
    if own.info.kind != "silo":
        raise UserError(f"{kit} is the kit of a {own.info.kind}, and 'hansa join' is for silos; use 'hansa serve'")
    from hansa.client.processes import CHOICE
    from hansa.deploy.agent import Agent
    from hansa.deploy.health import serve_probes
    from hansa.deploy.join import SiloSetup, sources
    from hansa.deploy.leave import check_not_left
    from hansa.deploy.lock_file import lock_folder
    from hansa.deploy.metrics import exposition, silo_figures
    from hansa.deploy.network.address import choose_proxy
    from hansa.deploy.policy_enforcer import PolicyEnforcer
    from hansa.deploy.retention import deleting, old_files_of_silo
    from hansa.deploy.run_process import ProcessService

    if processes is not None:
        os.environ[CHOICE] = str(processes)  # the machine's own affair: it is no part of the approved settings
    http_proxy = choose_proxy(proxy, own.parent.host)
    check_not_left(folder)
    enforcer = PolicyEnforcer.load(own, policy, folder)
    if enforcer.problem:
        log.warning("the policy allows no release: %s", enforcer.problem)
    setup = SiloSetup(kit, folder, sources(own, data), paths(plugins or []), policy, threads, folder_of(model))
    service = setup.service_with(own, enforcer)
    with lock_folder(folder, "hansa join"), ExitStack() as stack:
        if keep_days is not None:
            stack.enter_context(deleting(lambda: old_files_of_silo(folder, keep_days), log.info))
        services = [ProcessService(setup, service, log.warning) for _ in range(at_once)] if at_once > 1 else []
        agent = Agent(own, folder, service, log.info, http_proxy, log.warning, trust, services)
        on_stop(agent.stop)
        metrics = exposition(silo_figures(own, folder, enforcer.policy, agent.not_ready))
        with serve_probes(health, agent.not_ready, metrics):
            agent.run()
    exit_agent()


def status(
    run: Annotated[Path, typer.Argument(metavar="RUN|KIT", help="the --out of 'hansa serve', or a silo's kit")],
    home: Annotated[Path | None, typer.Option(help="of a silo: its own files; default KIT/home")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Show connected nodes, awaited replies and their deadlines, versions, clocks, and refusals; at a silo, its own."""
    if (run / "kit.json").is_file():
        silo_status(run, home or run / "home", format)
        return
    from time import time

    from rich.markup import escape

    from hansa.deploy.status import COLUMNS, as_dict, footnotes, is_running, read_refusals, read_status

    nodes, refused, running = read_status(run, time()), read_refusals(run), is_running(run)

    def show() -> None:
        """Print a table of the nodes with footnotes, then the refusals and their reasons."""
        ended = "finished" if (run / "report.html").is_file() else "not running"
        title = f"{run}: " + ("running" if running else f"{ended}; the last known state of the nodes")
        rows = [[escape(cell) for cell in node.row] for node in nodes]  # texts of other nodes are not markup
        output.print(table(COLUMNS, rows, title, figures=False))
        for line in footnotes(nodes):
            output.print(line, markup=False, highlight=False)
        if refused:
            output.print("Refused:", highlight=False)
        for one in refused[:MAX_REFUSALS]:
            output.print(f"· {printable(one.line)}", markup=False, highlight=False)
        if len(refused) > MAX_REFUSALS:
            more = len(refused) - MAX_REFUSALS
            output.print(f"· and {more} other reasons; --format json lists them", highlight=False)

    finish(format, as_dict(nodes, refused, running), show)


def silo_status(kit: Path, home: Path, format: Format) -> None:
    """Show what a silo's agent does, what waits for its administrator, and what left last."""
    require_extra()
    from hansa.deploy.kit import Kit
    from hansa.deploy.silo_status import silo_status as read
    from hansa.deploy.silo_status import status_lines

    own = Kit(kit)
    if own.info.kind != "silo":
        raise UserError(f"{kit} is the kit of a {own.info.kind}; 'hansa status' takes the --out of its 'hansa serve'")
    found = read(own, home)

    def show() -> None:
        """Print the status of the silo's agent, line by line."""
        for line in status_lines(found):
            output.print(printable(line, 1000), markup=False, highlight=False)

    finish(format, found, show)


def paths(files: list[Path]) -> tuple[str, ...]:
    """Absolute paths as texts."""
    return tuple(str(file.resolve()) for file in files)


def folder_of(model: Path | None) -> Path | None:
    """The absolute path of --model; raises `UserError` if it is no folder."""
    if model is not None and not model.is_dir():
        raise UserError(f"--model {model} is not a folder; give the folder with this node's copy of the base model")
    return model.resolve() if model is not None else None


def on_stop(stop: Callable[[], None]) -> None:
    """Call ``stop`` on SIGTERM and Ctrl-C."""
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, lambda *_: stop())


def exit_agent() -> None:
    """End the process of an agent at once.

    A worker thread may still train; that work is repeated after a restart, and Python must not wait for the thread.
    """
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


def end_coordinator(number: int, _: object) -> None:
    """End a coordinator on a signal. Further signals are ignored, so that they do not interrupt the shutdown."""
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, signal.SIG_IGN)
    raise SystemExit(TERMINATED if number == signal.SIGTERM else INTERRUPTED)
