"""The commands of deployment: `hansa kit`, `hansa serve`, `hansa join`, `hansa status`."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from hansa.cli.console import INTERRUPTED, Format, FormatOption, errors, finish, output, show_metrics, table
from hansa.cli.logs import LogFormat, LogFormatOption, LogLevel, LogLevelOption, configure
from hansa.core.errors import UserError, printable

log = logging.getLogger("hansa")
kit = typer.Typer(no_args_is_help=True, help="Startup kits: certificates, addresses and who is a member.")

Kits = Annotated[Path, typer.Argument(metavar="KITS", help="the folder that 'kit create' wrote")]
Name = Annotated[str, typer.Argument(metavar="NODE", help="a member")]
Days = Annotated[int, typer.Option(min=1, help="how long the certificates are good")]
MOST_REFUSED = 20  # lines of `hansa status`
TERMINATED = 143  # a coordinator that SIGTERM ended has not done its work: started again, it goes on
ProxyOption = Annotated[
    str | None,
    typer.Option(
        "--proxy",
        metavar="http://HOST:PORT",
        envvar="HANSA_PROXY",
        help="the HTTP proxy through which the parent is reached; with a password, better in HANSA_PROXY",
    ),
]
KitOption = Annotated[Path, typer.Option("--kit", help="the startup kit of this node")]
NatsOption = Annotated[
    str | None, typer.Option("--nats", metavar="tls://HOST:PORT", help="an existing NATS instead of one of our own")
]
UsesOption = Annotated[
    list[Path] | None, typer.Option("--plugins", help="a Python file with tasks or methods of your own")
]


HealthOption = Annotated[
    str | None, typer.Option("--health", metavar="[HOST:]PORT", help="answer /healthz and /readyz there")
]


def needed() -> None:
    try:
        import cryptography  # noqa: F401
        import xxhash  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: pip install 'hansa[deploy]'") from None


@kit.command()
def create(
    federation: Annotated[Path, typer.Argument(metavar="FED.yaml", help="the federation file")],
    out: Annotated[Path, typer.Option(help="where the kits go")] = Path("kits"),
    address: Annotated[
        list[str] | None,
        typer.Option(metavar="[REGION=]HOST:PORT", help="where the coordinator, or a region, is reached"),
    ] = None,
    nats: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="of a NATS that somebody else runs: a configuration for it is written"),
    ] = None,
    days: Days = 365,
    format: FormatOption = Format.text,
) -> None:
    """A certificate authority and one kit for the coordinator, every region and every silo."""
    needed()
    from hansa.config.file import read
    from hansa.deploy import authority
    from hansa.deploy.kit import COORDINATOR

    addresses = {}
    for one in address or []:
        name, equals, place = one.rpartition("=")
        addresses[name if equals else COORDINATOR] = place
    made = authority.create(read(federation), out, addresses, days, nats)

    def show() -> None:
        for folder in made:
            output.print(f"{folder}", highlight=False)
        output.print(
            f"Hand each folder to its node over a channel you trust; keep {out / 'authority'} to yourself.",
            highlight=False,
        )
        if nats is not None:
            output.print(f"Whoever runs NATS starts it in {out / 'nats'}: nats-server -c nats.conf", highlight=False)

    finish(format, {"kits": [str(folder) for folder in made]}, show)


@kit.command()
def revoke(kits: Kits, node: Name, format: FormatOption = Format.text) -> None:
    """No certificate of this member is good any more."""
    needed()
    from hansa.deploy import authority

    authority.revoke(kits, node)
    text = (
        f"'{node}' is revoked; put members.json into the kit of every other member: whoever serves '{node}' cuts it "
        f"off, whoever it serves obeys it no more (those that run from here do so now){reload_broker(kits)}"
    )
    finish(format, {"revoked": node}, lambda: output.print(text, highlight=False))


@kit.command()
def renew(kits: Kits, node: Name, days: Days = 365, format: FormatOption = Format.text) -> None:
    """A new certificate for a member; after a revocation also a new key."""
    needed()
    from hansa.deploy import authority
    from hansa.deploy.nats_config import NATS

    if node == NATS:
        authority.renew_broker(kits, days)
        text = f"the broker has a new certificate: put the files of {kits / node} in place, and reload it"
        finish(format, {"renewed": node}, lambda: output.print(text, highlight=False))
        return
    generation = authority.renew(kits, node, days)
    text = (
        f"'{node}' has certificate number {generation}; put the files of {kits / node} in place there (nothing needs "
        f"a restart), and members.json into the coordinator's kit{reload_broker(kits)}"
    )
    finish(format, {"renewed": node, "generation": generation}, lambda: output.print(text, highlight=False))


def reload_broker(kits: Path) -> str:
    """What whoever runs NATS has to do, where that is somebody else."""
    file = kits / "nats" / "authorization.conf"
    return f"; whoever runs NATS needs {file}, and reloads it" if file.exists() else ""


@kit.command()
def show(kits: Kits, format: FormatOption = Format.text) -> None:
    """Who is a member, and until when."""
    needed()
    from hansa.deploy import authority

    lines = authority.show(kits)
    rows = [[line[key] for key in ("node", "kind", "parent", "state", "until")] for line in lines]
    columns = ["node", "kind", "parent", "state", "good until"]
    finish(format, {"members": lines}, lambda: output.print(table(columns, rows, "Members", figures=False)))


def serve(
    federation: Annotated[
        Path | None, typer.Argument(metavar="FED.yaml", help="the federation file (of a root)")
    ] = None,
    kit: KitOption = Path("kits/coordinator"),
    out: Annotated[Path | None, typer.Option(help="the run directory; default runs/NAME")] = None,
    nats: NatsOption = None,
    data: Annotated[list[Path] | None, typer.Option(help="data of the region's own, where it has any")] = None,
    policy: Annotated[Path | None, typer.Option(help="of a region: what may leave it")] = None,
    plugins: UsesOption = None,
    proxy: ProxyOption = None,
    health: HealthOption = None,
    log_level: LogLevelOption = LogLevel.info,
    log_format: LogFormatOption = LogFormat.text,
    format: FormatOption = Format.text,
) -> None:
    """Coordinate a federation between organisations, or a region of it. Started again, it goes on."""
    needed()
    configure(log_level, log_format)
    from hansa.deploy.kit import Kit

    own = Kit(kit)
    if own.card.kind == "region":
        serve_region(own, out or Path("runs") / own.name, nats, data or [], policy, plugins or [], proxy, health)
        return
    if own.card.kind == "silo":
        raise UserError(f"{kit} is the kit of a silo: it serves nobody; use 'hansa join {kit} --data …'")
    if federation is None:
        raise UserError("the coordinator needs the federation file: hansa serve FED.yaml")
    from hansa.config.file import read
    from hansa.report import html
    from hansa.report.progress import Progress

    settings = read(federation)
    from hansa.deploy.coordinator import serve as serve_federation
    from hansa.deploy.health import probes, unreachable
    from hansa.deploy.log_callbacks import LogCallbacks
    from hansa.deploy.server_session import parse_url

    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, end_coordinator)
    progress = LogCallbacks() if log_format is LogFormat.json else Progress(errors, settings.name)
    assert own.card.serves is not None
    letters = own.card.serves.letters
    broker = parse_url(nats) if nats is not None else letters if own.card.serves.broker else ("127.0.0.1", letters[1])
    with probes(health, lambda: unreachable(broker)):
        try:
            outcome = serve_federation(settings, own, out or Path("runs") / settings.name, nats, progress)
        finally:
            progress.stop()
    report = html.write([(settings.name, outcome.folder)], outcome.folder / "report.html")
    result = {"run": str(outcome.folder), "report": str(report), "metrics": outcome.metrics}

    def show() -> None:
        show_metrics(outcome.metrics, f"{settings.name} on the test set")
        output.print(f"Run: {outcome.folder}\nReport: {report}", highlight=False)

    finish(format, result, show)


def serve_region(
    own: "Kit",  # type: ignore[name-defined]  # noqa: F821
    out: Path,
    nats: str | None,
    data: list[Path],
    policy: Path | None,
    plugins: list[Path],
    proxy: str | None,
    health: str | None,
) -> None:
    from hansa.deploy.agent import Agent
    from hansa.deploy.coordinator import serve_region as serve_it
    from hansa.deploy.health import probes
    from hansa.deploy.join import sources
    from hansa.deploy.network.address import Proxy
    from hansa.deploy.policy_enforcer import PolicyEnforcer

    through = Proxy.parse(proxy) if proxy else None
    held = sources(own, data) if data or own.card.sources else ()
    law = PolicyEnforcer.of(own, policy, out) if policy is not None or held else None
    with ExitStack() as stack:

        def ready(agent: Agent) -> None:
            on_stop(agent.stop)
            stack.enter_context(probes(health, agent.waits))

        serve_it(own, out, nats, held, paths(plugins), log.info, ready, law, through, log.warning)
    leave()


def join(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="the silo's startup kit")],
    data: Annotated[list[Path], typer.Option(help="the file or folder with this silo's data; one per source")],
    home: Annotated[Path | None, typer.Option(help="where this silo keeps its own; default KIT/home")] = None,
    policy: Annotated[Path | None, typer.Option(help="what may leave; default KIT/policy.yaml")] = None,
    threads: Annotated[int, typer.Option(min=1, help="cores to train on; 1 gives the same bits as 'hansa run'")] = 1,
    plugins: UsesOption = None,
    proxy: ProxyOption = None,
    health: HealthOption = None,
    log_level: LogLevelOption = LogLevel.info,
    log_format: LogFormatOption = LogFormat.text,
) -> None:
    """The silo's agent: waits for work and answers from data that stays here. Connects only outwards."""
    needed()
    configure(log_level, log_format)
    from hansa.deploy.kit import Kit

    own = Kit(kit)
    if own.card.kind != "silo":
        raise UserError(f"{kit} is the kit of a {own.card.kind}: it has no data of its own; use 'hansa serve'")
    from hansa.deploy.agent import Agent
    from hansa.deploy.health import probes
    from hansa.deploy.join import SiloTrade, sources
    from hansa.deploy.lock_file import lock_folder
    from hansa.deploy.network.address import Proxy
    from hansa.deploy.policy_enforcer import PolicyEnforcer

    through = Proxy.parse(proxy) if proxy else None
    place = home or kit / "home"
    law = PolicyEnforcer.of(own, policy, place)
    if law.flaw:
        log.warning("nothing may leave: %s", law.flaw)
    trade = SiloTrade(own, sources(own, data), paths(plugins or []), law, threads)
    with lock_folder(place, "hansa join"):
        agent = Agent(own, place, trade, log.info, through, log.warning)
        on_stop(agent.stop)
        with probes(health, agent.waits):
            agent.run()
    leave()


def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the --out of 'hansa serve'")],
    format: FormatOption = Format.text,
) -> None:
    """Who is connected, who is awaited and until when, versions, clocks, and what was refused."""
    from time import time

    from rich.markup import escape

    from hansa.deploy.status import COLUMNS, as_dict, marks, read, refusals, running

    nodes, refused, alive = read(run, time()), refusals(run), running(run)

    def show() -> None:
        title = f"{run}: " + ("is being served" if alive else "nobody serves it now; below is what was known last")
        rows = [[escape(cell) for cell in node.row] for node in nodes]  # what others say of themselves is no markup
        output.print(table(COLUMNS, rows, title, figures=False))
        for line in marks(nodes):
            output.print(line, markup=False, highlight=False)
        if refused:
            output.print("Refused:", highlight=False)
        for one in refused[:MOST_REFUSED]:
            output.print(f"· {printable(one.line)}", markup=False, highlight=False)
        if len(refused) > MOST_REFUSED:
            output.print(f"· and {len(refused) - MOST_REFUSED} other reasons: --format json has them", highlight=False)

    finish(format, as_dict(nodes, refused, alive), show)


def paths(files: list[Path]) -> tuple[str, ...]:
    return tuple(str(file.resolve()) for file in files)


def on_stop(stop: Callable[[], None]) -> None:
    """What SIGTERM and Ctrl-C do."""
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, lambda *_: stop())


def leave() -> None:
    """An agent's way out. Training that was interrupted is done again when it is back: nobody waits for it here, and
    Python must not take itself down around it.
    """
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


def end_coordinator(number: int, _: object) -> None:
    """Once: what a second signal would interrupt is the tidying up."""
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, signal.SIG_IGN)
    raise SystemExit(TERMINATED if number == signal.SIGTERM else INTERRUPTED)
