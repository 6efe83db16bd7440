"""The command line: one thin command per verb. Results go to standard output, progress to standard error."""

import errno
import os
import sys

import typer

from hansa.cli.approve import approve
from hansa.cli.audit import audit
from hansa.cli.check import check, new, schema
from hansa.cli.console import (
    INTERRUPTED,
    errors,
)
from hansa.cli.data import data
from hansa.cli.deploy import TERMINATED, join, serve, status
from hansa.cli.experiments import demo, reproduce
from hansa.cli.kit import kit
from hansa.cli.models import evaluate, predict
from hansa.cli.run import compare, report, run
from hansa.core.errors import HansaError, UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train one language model across organisations and borders, while the text stays home.",
)
for _command in (
    demo,
    new,
    schema,
    check,
    run,
    compare,
    reproduce,
    evaluate,
    predict,
    report,
    serve,
    join,
    approve,
    status,
):
    app.command()(_command)
for _name, _group in {"data": data, "audit": audit, "kit": kit}.items():
    app.add_typer(_group, name=_name)

# Errors of the operating system that mean an unusable path or disk.
UNUSABLE = (
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG),
)


def main() -> None:
    """Errors help: one sentence, no traceback for a user's mistake, exit code 2 for input, 1 for a failed run."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except HansaError as error:
        errors.print(f"[bold red]{'error' if isinstance(error, UserError) else 'failed'}:[/] ", end="")
        errors.print(str(error), markup=False, highlight=False)
        sys.exit(error.exit_code)
    except OSError as error:
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
