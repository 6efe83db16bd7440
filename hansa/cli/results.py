"""`hansa results`, `hansa push`: the tables of a run as files, and its model where others find it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hansa.cli.console import Format, FormatOption, finish, output, show_metrics
from hansa.cli.options import RunFolder
from hansa.core.errors import UserError


def results(
    run: RunFolder,
    csv: Annotated[Path | None, typer.Option(metavar="DIR", help="write every table as DIR/TABLE.csv")] = None,
    parquet: Annotated[Path | None, typer.Option(metavar="DIR", help="write every table as DIR/TABLE.parquet")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Show the results of a run; write all its tables (scores, rounds, traffic, data, events) as CSV or Parquet."""
    from hansa.cli.run import show_personal
    from hansa.runs.result import Result

    found = Result.read(run)
    written = [
        file for folder, kind in ((csv, "csv"), (parquet, "parquet")) if folder for file in write(found, folder, kind)
    ]

    def show() -> None:
        """Print the scores of the shared and the personal models, and the paths of the files written."""
        show_metrics(found.metrics, f"{run} on the test set")
        if len(found.by_silo) > 1:
            show_metrics(found.by_silo, f"{run} on the test set of each silo")
        if found.personal:
            show_personal(found)
        for file in written:
            output.print(str(file), highlight=False, markup=False)

    result = {
        "metrics": found.metrics,
        "silos": found.by_silo,
        "personal": found.personal,
        "files": list(map(str, written)),
    }
    finish(format, result, show)


def write(found: Any, folder: Path, kind: str) -> list[Path]:
    """Write every table of a result into a folder; raises `UserError` if the folder is a file."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give the name of a folder for the tables")
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, table in found.tables.items():
        file = folder / f"{name}.{kind}"
        if kind == "csv":
            table.to_csv(file, index=False)
        else:
            table.to_parquet(file, index=False)
        files.append(file)
    return files


def push(
    run: RunFolder,
    destination: Annotated[
        str, typer.Argument(metavar="DEST", help="a new folder, hub:ORG/NAME, or mlflow:NAME (model registry)")
    ],
    silo: Annotated[str | None, typer.Option(help="the model of this silo")] = None,
    merged: Annotated[bool, typer.Option("--merged", help="merge adapters into the base")] = False,
    public: Annotated[bool, typer.Option("--public", help="hub: a new repository is readable by everybody")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Publish the model of a run with its card: in a folder, on a Hugging Face hub, or in MLflow's model registry."""
    from hansa.runs.push import push as publish

    place = publish(run, destination, silo, merged, public)
    finish(format, {"place": place}, lambda: output.print(f"Model: {place}", highlight=False, markup=False))
