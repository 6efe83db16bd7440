"""The command line: one thin command per verb. Results go to standard output, progress to standard error."""

import errno
import os
import sqlite3
import sys
from typing import Annotated, NoReturn

import typer

from hansa.cli.approve import approve
from hansa.cli.audit import audit
from hansa.cli.check import check, new, schema
from hansa.cli.console import (
    INTERRUPTED,
    errors,
    output,
)
from hansa.cli.dashboard import dashboard, silo_page
from hansa.cli.data import data
from hansa.cli.deploy import TERMINATED, join, serve, status
from hansa.cli.doctor import doctor
from hansa.cli.experiments import demo, reproduce
from hansa.cli.kit import kit
from hansa.cli.models import evaluate, export, predict
from hansa.cli.plan import plan
from hansa.cli.queue import prune, runs, stop, submit
from hansa.cli.results import push, results
from hansa.cli.run import compare, report, run
from hansa.cli.survey import survey
from hansa.cli.withdrawal import leave, retrain
from hansa.core.errors import HansaError, RunFailed, UserError
from hansa.files import disk_problem

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train one language model across organisations and borders, while the text stays home.",
)


def _version(asked: bool) -> None:
    if asked:
        from hansa import __version__

        output.print(f"hansa {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Train one language model across organisations and borders, while the text stays home."""


for _command in (
    *(
        demo,
        new,
        schema,
        check,
        survey,
        plan,
        run,
        compare,
        reproduce,
        evaluate,
        predict,
        results,
        report,
        export,
        push,
        retrain,
    ),
    *(serve, join, submit, runs, stop, prune, approve, status, leave, silo_page, doctor),
):
    app.command()(_command)
for _name, _group in {"data": data, "audit": audit, "kit": kit, "dashboard": dashboard}.items():
    app.add_typer(_group, name=_name)

# Errors of the operating system that mean an unusable path or disk.
UNUSABLE = (
    *(errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG),
)


def end_on_full_disk(problem: str) -> NoReturn:
    """End with one sentence and the exit code of a failed run: with room on the disk, it continues."""
    hint = {"run": " with --resume", "serve": ", which continues the run"}.get("".join(sys.argv[1:2]), "")
    errors.print("[bold red]failed:[/] ", end="")
    said = f"the disk takes no more ({problem}); what was written before is intact: make room, then repeat the command"
    errors.print(said + hint, markup=False, highlight=False)
    sys.exit(RunFailed.exit_code)


def main() -> None:
    """Errors help: one sentence, no traceback for a user's mistake, exit code 2 for input, 1 for a failed run."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except HansaError as error:
        errors.print(f"[bold red]{'error' if isinstance(error, UserError) else 'failed'}:[/] ", end="")
        errors.print(str(error), markup=False, highlight=False)
        sys.exit(error.exit_code)
    except sqlite3.Error as error:
        if not (problem := disk_problem(error)):
            raise
        end_on_full_disk(problem)
    except OSError as error:
        if problem := disk_problem(error):
            end_on_full_disk(problem)
        if error.errno not in UNUSABLE or error.filename is None:
            raise
        errors.print("[bold red]error:[/] ", end="")
        said = f"{error.filename}: {error.strerror}; make it usable, or give another place"
        errors.print(said, markup=False, highlight=False)
        sys.exit(UserError.exit_code)
    except SystemExit as stop:
        if stop.code not in (INTERRUPTED, TERMINATED):
            raise
        hint = {
            "run": "; a run that had begun its rounds continues with 'hansa run … --resume'",
            "serve": "; started again with the same --out, it continues",
        }.get("".join(sys.argv[1:2]), "")
        errors.print(f"stopped{hint}", highlight=False)
        sys.exit(TERMINATED if stop.code == TERMINATED else 1)
