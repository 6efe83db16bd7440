"""`hansa audit`: what left the silos, what it gives away, and what holding it back costs. One thin command per verb."""

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from hansa.cli.console import Format, FormatOption, errors, finish, output, table
from hansa.core.errors import RunFailed, UserError, did_you_mean

audit = typer.Typer(
    no_args_is_help=True, help="Read and verify audit logs; attack what a run released, price the defences."
)


@audit.callback()
def _group() -> None:
    """Read and verify audit logs; attack what a run released, price the defences."""


KINDS = ("embedding-inversion", "nearest-token", "gradient-inversion")
LogOrRun = Annotated[Path, typer.Argument(metavar="FILE|RUN", help="an audit log, or a run: all logs below it")]


@audit.command("verify")
def verify_logs(
    path: LogOrRun,
    noted: Annotated[str | None, typer.Option(metavar="NUMBER:HASH", help="of an entry, noted elsewhere")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Follow the hash chain of audit logs; exit code 1 and the first bad entry where one was changed or cut."""
    from hansa.privacy.policy.audit_log import parse_head, verify

    found = [verify(log, parse_head(noted) if noted else None) for log in _logs(path)]

    def show() -> None:
        for one in found:
            output.print(one.text, highlight=False, markup=False)

    told = [{"log": str(one.file), "sound": one.sound, "line": one.line, "said": one.text} for one in found]
    finish(format, {"sound": all(one.sound for one in found), "logs": told}, show)
    if bad := [str(one.file) for one in found if not one.sound]:
        raise RunFailed(f"not sound: {', '.join(bad)}")


@audit.command("show")
def show_logs(
    path: LogOrRun,
    last: Annotated[int | None, typer.Option(min=1, help="only so many of the newest entries")] = None,
    format: FormatOption = Format.text,
) -> None:
    """What a node was asked, what it released, to whom and under which rule of its policy."""
    from hansa.privacy.policy.audit_log import entries

    found = {str(log): list(entries(log))[-last if last else 0 :] for log in _logs(path)}
    if not any(found.values()):
        raise UserError(f"{path}: there is no entry of an audit log in it; 'hansa audit verify' says what is wrong")

    def show() -> None:
        for log, told in found.items():
            columns = ["", "time", "node", "event", "what", "round", "bytes", "to", "rules or reason"]
            output.print(table(columns, [_row(entry) for entry in told], log, figures=False))

    finish(format, {"logs": found}, show)


def _logs(path: Path) -> list[Path]:
    from hansa.privacy.policy.audit_log import AUDIT_LOG, anchor_file

    anchored = (
        {a.with_name(AUDIT_LOG) for a in path.rglob(anchor_file(Path(AUDIT_LOG)).name)} if path.is_dir() else set()
    )
    found = sorted({*path.rglob(AUDIT_LOG), *anchored}) if path.is_dir() else [path]
    if not found or not (found[0].is_file() or anchor_file(found[0]).is_file()):
        raise UserError(f"{path}: there is no audit log here; nodes with a policy keep one, as does every 'hansa join'")
    return found


def _row(entry: dict[str, Any]) -> list[str]:
    rules = entry.get("rules", {})
    why = entry.get("reason") or "; ".join(f"{kind}: {rule}" for kind, rule in rules.items())
    size = f"{entry['bytes']:,}" if "bytes" in entry else ""
    names = ("number", "time", "node", "event", "message", "round")
    return [*(str(entry.get(name, "")) for name in names), size, str(entry.get("to", "")), str(why)]


@audit.command()
def attack(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")],
    kind: Annotated[str, typer.Option(help=" · ".join(KINDS))] = KINDS[0],
    centroids: Annotated[int, typer.Option(min=1, help="attack at most so many, of all sizes")] = 40,
    silo: Annotated[str | None, typer.Option(help="gradient inversion: whose update; default the smallest's")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Try to read text from what a run's silos really released; needs the silos' data, to score what was read."""
    if kind not in KINDS:
        raise UserError(f"--kind {kind} is not known; {did_you_mean(kind, KINDS)}")
    from hansa.privacy.attacks import centroids as leak
    from hansa.privacy.attacks import gradient
    from hansa.report import html
    from hansa.report.progress import Progress
    from hansa.runs.results import save_audit

    say = Progress(errors, "audit").say
    if kind == "gradient-inversion":
        found = gradient.attack_update(run, silo, say)
    else:
        found = leak.attack_knowledge(run, cast(leak.Kind, kind), centroids, say)
    file = save_audit(run, found)
    report = html.write([(run.name, run)], run / "report.html")
    finish(format, found | {"file": str(file), "report": str(report)}, lambda: show(found, report))


def show(found: dict[str, Any], report: Path) -> None:
    from hansa.report.audit import tables

    for one in tables(found):
        output.print(table(one["columns"], one["rows"], one["title"]))
    for line in found["reading"]:
        output.print(f"· {line}", highlight=False)
    output.print(f"Report: {report}", highlight=False)


@audit.command()
def price(
    federation: Annotated[Path, typer.Argument(metavar="FED.yaml", help="the federation file")],
    set: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="override a setting")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="runs of each defence")] = 1,
    out: Annotated[Path | None, typer.Option(help="where the runs go; default runs/NAME-price")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="worker processes; 0: in-process")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Run a federation with each defence of what it exchanges; what each costs, and what it leaves to an attacker."""
    from hansa.config.file import read

    settings = read(federation, set)
    folder = out or Path("runs") / f"{settings.name}-price"
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose another --out")
    from hansa.privacy.attacks.price import price as run_defences
    from hansa.report.progress import Progress

    found = run_defences(settings, seeds, folder, workers, lambda name: Progress(errors, name))
    report = folder / "report.html"
    finish(format, found | {"report": str(report)}, lambda: show(found, report))
