"""The commands of deployment: `hansa serve`, `hansa join`, `hansa status`."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from hansa.cli.console import INTERRUPTED, Format, FormatOption, errors, finish, output, show_metrics
from hansa.cli.kit import require_extra
from hansa.cli.logs import LogFormat, LogFormatOption, LogLevel, LogLevelOption, configure
from hansa.core.errors import UserError, printable
from hansa.report.text import table

log = logging.getLogger("hansa")

MAX_REFUSALS = 20  # lines of `hansa status`
TERMINATED = 143  # exit code of a coordinator after SIGTERM: the run is not done, and resumes with the same command
ProxyOption = Annotated[
    str | None,
    typer.Option(
        "--proxy",
        metavar="http://HOST:PORT",
        envvar="HANSA_PROXY",
        help="the HTTP proxy for connections to the parent; with a password, use the variable HANSA_PROXY",
    ),
]
KitOption = Annotated[Path, typer.Option("--kit", help="the startup kit of this node")]
NatsOption = Annotated[
    str | None,
    typer.Option("--nats", metavar="tls://HOST:PORT", help="an existing NATS server, instead of starting one"),
]
PluginsOption = Annotated[
    list[Path] | None, typer.Option("--plugins", help="a Python file that registers tasks or methods")
]
HealthOption = Annotated[
    str | None, typer.Option("--health", metavar="[HOST:]PORT", help="answer the probes /healthz and /readyz there")
]


def serve(
    federation: Annotated[
        Path | None, typer.Argument(metavar="FED.yaml", help="the federation file; not for a region")
    ] = None,
    kit: KitOption = Path("kits/coordinator"),
    out: Annotated[Path | None, typer.Option(help="the run directory; default runs/NAME")] = None,
    nats: NatsOption = None,
    data: Annotated[list[Path] | None, typer.Option(help="the region's own data, if it has any")] = None,
    policy: Annotated[Path | None, typer.Option(help="of a region: the policy for what it may release")] = None,
    plugins: PluginsOption = None,
    proxy: ProxyOption = None,
    health: HealthOption = None,
    log_level: LogLevelOption = LogLevel.info,
    log_format: LogFormatOption = LogFormat.text,
    format: FormatOption = Format.text,
) -> None:
    """Run the coordinator of a federation, or of one region. Resumes where it stopped."""
    require_extra()
    configure(log_level, log_format)
    from hansa.deploy.kit import Kit

    own = Kit(kit)
    if own.info.kind == "region":
        serve_region(kit, out, nats, data or [], policy, plugins or [], proxy, health)
        return
    if own.info.kind == "silo":
        raise UserError(f"{kit} is the kit of a silo, which has no children; use 'hansa join {kit} --data …'")
    if federation is None:
        raise UserError("the coordinator needs the federation file: hansa serve FED.yaml")
    from hansa.config.file import read
    from hansa.report import html
    from hansa.report.progress import Progress

    settings = read(federation)
    from hansa.deploy.coordinator import serve as serve_federation
    from hansa.deploy.health import serve_probes, unreachable_reason
    from hansa.deploy.log_callbacks import LogCallbacks
    from hansa.deploy.server_session import parse_url

    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, end_coordinator)
    watcher = LogCallbacks() if log_format is LogFormat.json else Progress(errors, settings.name)
    known = own.endpoint.broker_address if own.endpoint.broker_host else ("127.0.0.1", own.endpoint.port)
    broker = parse_url(nats) if nats is not None else known
    with serve_probes(health, lambda: unreachable_reason(broker)):
        outcome = serve_federation(settings, own, out or Path("runs") / settings.name, nats, [watcher])
    report = html.write([(settings.name, outcome.folder)], outcome.folder / "report.html")
    result = {"run": str(outcome.folder), "report": str(report), "metrics": outcome.metrics}

    def show() -> None:
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
) -> None:
    """Run the region with a kit until SIGTERM or Ctrl-C."""
    from hansa.deploy.agent import Agent
    from hansa.deploy.health import serve_probes
    from hansa.deploy.join import sources
    from hansa.deploy.kit import Kit
    from hansa.deploy.network.address import Proxy
    from hansa.deploy.policy_enforcer import PolicyEnforcer
    from hansa.deploy.region import serve_region as serve_it

    own = Kit(kit)
    folder = out or Path("runs") / own.name
    http_proxy = Proxy.parse(proxy) if proxy else None
    held = sources(own, data) if data or own.info.sources else ()
    enforcer = PolicyEnforcer.load(own, policy, folder) if policy is not None or held else None
    with ExitStack() as stack:

        def ready(agent: Agent) -> None:
            on_stop(agent.stop)
            stack.enter_context(serve_probes(health, agent.not_ready))

        serve_it(own, folder, nats, held, paths(plugins), log.info, ready, enforcer, http_proxy, log.warning)
    exit_agent()


def join(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="the silo's startup kit")],
    data: Annotated[list[Path], typer.Option(help="the file or folder with this silo's data; one for each source")],
    home: Annotated[Path | None, typer.Option(help="the folder for this silo's own files; default KIT/home")] = None,
    policy: Annotated[
        Path | None, typer.Option(help="the policy for what the silo may release; default KIT/policy.yaml")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="threads for training; 1 gives the same bits as 'hansa run'")] = 1,
    processes: Annotated[
        int | None, typer.Option(min=1, help="processes that compute each gradient together; default: train.processes")
    ] = None,
    plugins: PluginsOption = None,
    proxy: ProxyOption = None,
    health: HealthOption = None,
    log_level: LogLevelOption = LogLevel.info,
    log_format: LogFormatOption = LogFormat.text,
) -> None:
    """Run the agent of a silo: it answers requests from local data, and opens only outbound connections."""
    require_extra()
    configure(log_level, log_format)
    from hansa.deploy.kit import Kit

    folder = home or kit / "home"
    own = Kit(kit, folder)
    if own.info.kind != "silo":
        raise UserError(f"{kit} is the kit of a {own.info.kind}, and 'hansa join' is for silos; use 'hansa serve'")
    from hansa.client.processes import CHOICE
    from hansa.deploy.agent import Agent
    from hansa.deploy.health import serve_probes
    from hansa.deploy.join import SiloService, sources
    from hansa.deploy.leave import check_not_left
    from hansa.deploy.lock_file import lock_folder
    from hansa.deploy.network.address import Proxy
    from hansa.deploy.policy_enforcer import PolicyEnforcer

    if processes is not None:
        os.environ[CHOICE] = str(processes)  # the machine's own affair: it is no part of the approved settings
    http_proxy = Proxy.parse(proxy) if proxy else None
    check_not_left(folder)
    enforcer = PolicyEnforcer.load(own, policy, folder)
    if enforcer.problem:
        log.warning("the policy allows no release: %s", enforcer.problem)
    service = SiloService(own, sources(own, data), paths(plugins or []), enforcer, threads)
    with lock_folder(folder, "hansa join"):
        agent = Agent(own, folder, service, log.info, http_proxy, log.warning)
        on_stop(agent.stop)
        with serve_probes(health, agent.not_ready):
            agent.run()
    exit_agent()


def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the --out of 'hansa serve'")],
    format: FormatOption = Format.text,
) -> None:
    """Show connected nodes, awaited replies and their deadlines, versions, clocks, and refusals."""
    from time import time

    from rich.markup import escape

    from hansa.deploy.status import COLUMNS, as_dict, footnotes, is_running, read_refusals, read_status

    nodes, refused, running = read_status(run, time()), read_refusals(run), is_running(run)

    def show() -> None:
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


def paths(files: list[Path]) -> tuple[str, ...]:
    """Absolute paths as texts."""
    return tuple(str(file.resolve()) for file in files)


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
