"""`hansa audit`: what left the silos, what it gives away, and what holding it back costs. One thin command per verb."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hansa.console import Format, FormatOption, finish, output, table
from hansa.errors import RunFailed, UserError

audit = typer.Typer(
    no_args_is_help=True, help="Read and verify audit logs; attack what a run released, price the defences."
)


@audit.callback()
def _group() -> None:
    """Read and verify audit logs; attack what a run released, price the defences."""


LogOrRun = Annotated[Path, typer.Argument(metavar="FILE|RUN", help="an audit log, or a run: all logs below it")]


@audit.command("verify")
def verify_logs(
    path: LogOrRun,
    noted: Annotated[str | None, typer.Option(metavar="NUMBER:HASH", help="of an entry, noted elsewhere")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Follow the hash chain of audit logs; exit code 1 and the first bad entry where one was changed or cut."""
    from hansa.privacy.audit import parse_head, verify

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
    from hansa.privacy.audit import entries

    found = {str(log): list(entries(log))[-last if last else 0 :] for log in _logs(path)}

    def show() -> None:
        for log, told in found.items():
            columns = ["", "time", "node", "event", "what", "round", "bytes", "to", "rules or reason"]
            output.print(table(columns, [_row(entry) for entry in told], log, figures=False))

    finish(format, {"logs": found}, show)


def _logs(path: Path) -> list[Path]:
    from hansa.privacy.audit import NAME, anchor_of

    anchored = {a.with_name(NAME) for a in path.rglob(anchor_of(Path(NAME)).name)} if path.is_dir() else set()
    found = sorted({*path.rglob(NAME), *anchored}) if path.is_dir() else [path]
    if not found or not (found[0].is_file() or anchor_of(found[0]).is_file()):
        raise UserError(f"{path}: there is no audit log here; nodes with a policy keep one, as does every 'hansa join'")
    return found


def _row(entry: dict[str, Any]) -> list[str]:
    rules = entry.get("rules", {})
    why = entry.get("reason") or "; ".join(f"{kind}: {rule}" for kind, rule in rules.items())
    size = f"{entry['bytes']:,}" if "bytes" in entry else ""
    names = ("number", "time", "node", "event", "message", "round")
    return [*(str(entry.get(name, "")) for name in names), size, str(entry.get("to", "")), str(why)]
