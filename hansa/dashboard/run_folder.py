"""The runs below a folder, and who may see them.

A run's id is its path below the folder, with ``:`` between the parts. Ids are looked up among the folders that are
there, so that no id can name another place.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from hansa.core.errors import HansaError, UserError
from hansa.dashboard.accounts import Account
from hansa.dashboard.run_view import RunSummary, summary

MAX_DEPTH = 2  # of folders with runs: experiments put several runs into one folder
MAX_RUNS = 1000
SEPARATOR = ":"


class RunFolder:
    """The runs below ``folder``."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; give the folder with the runs, such as 'runs'")
        self.folder = folder

    def visible(self, account: Account) -> list[RunSummary]:
        """The runs that an account may see, the newest first; directories that cannot be read are left out."""
        found = []
        for id, folder in self._all():
            if account.may_see(id):
                try:
                    found.append(summary(folder, id))
                except (HansaError, OSError):
                    continue
        return sorted(found, key=lambda run: -run.changed)

    def find(self, account: Account, id: str) -> Path | None:
        """The directory of a run that the account may see; None if there is none."""
        if not account.may_see(id):
            return None
        return next((folder for name, folder in self._all() if name == id), None)

    def _all(self) -> Iterator[tuple[str, Path]]:
        for folder in islice(_walk(self.folder, MAX_DEPTH), MAX_RUNS):
            yield SEPARATOR.join(folder.relative_to(self.folder).parts), folder


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory whose run has begun."""
    return (folder / "federation.yaml").is_file() and (folder / "ledger.sqlite").is_file()


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    try:
        inside = sorted(one for one in folder.iterdir() if one.is_dir() and not one.is_symlink())
    except OSError:
        return
    for one in inside:
        if is_run(one):
            yield one
        elif depth > 1 and not one.name.startswith("."):
            yield from _walk(one, depth - 1)
