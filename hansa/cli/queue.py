"""The commands of a standing coordinator: `hansa submit`, `hansa runs`, `hansa stop`, `hansa prune`."""

import getpass
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hansa.cli.console import Format, FormatOption, finish, output
from hansa.cli.kit import require_extra
from hansa.cli.options import FederationFile, SetOption
from hansa.core.errors import UserError, printable
from hansa.report.text import table

RunsFolder = Annotated[Path, typer.Argument(metavar="RUNS", help="the folder with the runs and the queue")]


def submit(
    federation: FederationFile,
    queue: Annotated[Path, typer.Option("--queue", metavar="RUNS", help="the folder of `hansa serve --queue`")],
    kit: Annotated[Path, typer.Option("--kit", help="the startup kit of the coordinator")] = Path("kits/coordinator"),
    set: SetOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Put a federation file into the queue of a standing coordinator. It is checked first."""
    require_extra()
    from hansa.config.file import read
    from hansa.deploy.deployable import check_submission
    from hansa.deploy.kit import Kit
    from hansa.deploy.run_queue import ENDED, RunQueue

    settings = read(federation, set)
    check_submission(settings, Kit(kit))
    waiting = RunQueue(queue)
    one = waiting.add(settings, getpass.getuser())

    def show() -> None:
        """Print the number of the submitted run, how many runs are before it, and its directory."""
        ahead = sum(other.state not in ENDED for other in waiting.all() if other.id != one.id)
        output.print(f"run {one.id} is in the queue, behind {ahead}: {waiting.directory(one)}", highlight=False)

    finish(format, asdict(one) | {"run": str(waiting.directory(one))}, show)


def runs(
    folder: RunsFolder,
    retry: Annotated[
        str | None, typer.Option(metavar="ID", help="put a run that failed or was stopped into the queue again")
    ] = None,
    format: FormatOption = Format.text,
) -> None:
    """List the runs that were submitted to a standing coordinator."""
    from hansa.deploy.run_queue import RunQueue

    queue = RunQueue(folder)
    if retry is not None:
        queue.retry(retry)
    found = queue.all()

    def show() -> None:
        """Print a table of the submitted runs with their states, or that there are none."""
        if not found:
            output.print(f"no run was submitted to {folder}", highlight=False, markup=False)
            return
        rows = [[one.id, *map(printable, (one.name, one.state, one.at, one.by, one.reason))] for one in found]
        heads = ["id", "federation", "state", "submitted", "by", "reason"]
        output.print(table(heads, rows, f"Runs submitted to {folder}", figures=False, fold=True))

    finish(format, {"runs": [asdict(one) for one in found]}, show)


def stop(
    folder: RunsFolder,
    id: Annotated[str, typer.Argument(metavar="ID", help="the number that `hansa submit` printed")],
) -> None:
    """End a submitted run after its current round; its model is evaluated and saved.

    A run that waits for its turn, or for silos before the first round, ends without a model.
    """
    from hansa.deploy.run_queue import RunQueue

    one = RunQueue(folder).stop(id)
    after = {
        "stopped": "was taken out of the queue",
        "waiting": "ends: its first round has not begun",
    }.get(one.state, "ends after its current round")
    output.print(f"run {one.id} {after}", highlight=False)


def prune(
    folder: Annotated[
        Path, typer.Argument(metavar="RUNS|KIT", help="the folder with the coordinator's runs, or a silo's kit")
    ],
    days: Annotated[
        float,
        typer.Option(min=0.0, help="delete what has not changed for so many days"),
    ] = 90.0,
    whole: Annotated[
        bool, typer.Option("--whole", help="delete whole runs, with models and logs; default: spools and checkpoints")
    ] = False,
    home: Annotated[Path | None, typer.Option(help="of a silo: its own files; default KIT/home")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only list what would be deleted")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Delete what old runs no longer need; at a silo its files of old runs and its cached token ids.

    A silo's audit log, budget and approvals stay.
    """
    from hansa.deploy import retention

    silo = (folder / "kit.json").is_file()
    if silo and whole:
        raise UserError(
            "--whole is for the coordinator's runs; at a silo all files of old runs are deleted: leave it out"
        )
    old = (
        retention.old_files_of_silo(home or folder / "home", days) if silo else retention.old_parts(folder, days, whole)
    )
    found = list(old) if dry_run else retention.delete(old)
    listed = [{"run": one.run, "folder": str(one.folder), "bytes": one.size} for one in found]

    def show() -> None:
        """Print the deleted folders, or with a dry run those that would be deleted, and their total size."""
        for one in found:
            output.print(f"{one.folder}  {one.size / 1e6:.1f} MB", highlight=False, markup=False)
        what = "would be deleted" if dry_run else "deleted"
        output.print(f"{len(found)} folders, {sum(one.size for one in found) / 1e6:.1f} MB {what}", highlight=False)

    finish(format, {"dry_run": dry_run, "folders": listed}, show)
