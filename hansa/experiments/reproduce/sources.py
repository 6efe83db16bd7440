"""The source files that a run imported: their digests, and which of them have changed since.

A result is stale if a file changed that its run imported. Files of the command line, the reports and the experiments do
not count: what an experiment asks of a run is in the run's settings, which have a digest of their own.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]  # the folder hansa/
NOT_PART = ("cli", "experiments", "report", "preview", "callbacks", "templates")
SHORT = 12  # hexadecimal digits of a digest
FOLDER = "sources"  # below the folder of cells: one file for each set of source files


def imported() -> dict[str, str]:
    """The source files of Hansa that this process has imported so far, and the digest of each.

    Paths are relative to the folder that holds the package.
    """
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or name.partition(".")[0] != PACKAGE.name or Path(file).suffix != ".py":
            continue
        path = Path(file).resolve()
        if path.is_relative_to(PACKAGE) and path.relative_to(PACKAGE).parts[0] not in NOT_PART:
            found[path.relative_to(PACKAGE.parent).as_posix()] = digest_of(path)
    return dict(sorted(found.items()))


def digest_of(file: Path) -> str:
    """The beginning of a file's SHA-256; empty if there is no such file."""
    return sha256(file.read_bytes()).hexdigest()[:SHORT] if file.is_file() else ""


def keep(files: Mapping[str, str], folder: Path) -> str:
    """Write a set of source files below a folder of cells, once; return the name under which it is kept."""
    text = json.dumps(files, indent=0) + "\n"
    name = sha256(text.encode()).hexdigest()[:SHORT]
    file = folder / FOLDER / f"{name}.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return name


def changed(name: str, folder: Path, root: Path | None = None) -> list[str]:
    """The files of a kept set that differ today, or are gone; ``root``: the folder that holds the package."""
    kept: dict[str, str] = json.loads((folder / FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return [file for file, digest in kept.items() if digest_of((root or PACKAGE.parent) / file) != digest]


@cache
def commit() -> str:
    """The commit of the source files, with ``+`` if files of the package have changed since; else ``unknown``."""
    git = ["git", "-C", str(PACKAGE.parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True)
        dirty = subprocess.run([*git, "status", "--porcelain", "--", PACKAGE.name], capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")
