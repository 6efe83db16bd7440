"""Who made a run: the commit, the date and the source files of each of its sessions, written when it runs.

A session is noted beside the run directory when it begins, with the digests of all source files as the process has
loaded them. When the run has ended, the stamp goes into the run directory as ``stamp.json``; a directory with a stamp
is finished. A run that was interrupted under one version of the code and ended under another has both commits, and of a
file that differs between them the digest of an earlier session, so that its result counts as stale.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hansa.experiments.reproduce import sources

NAME = "stamp.json"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Stamp:
    """The origin of a finished run."""

    commit: str  # of every session, without repetition
    date: str  # of the last session
    files: dict[str, str]  # source file that the run imported → digest
    diverged: str = ""  # why the run could not go on, if its values became infinite


def begin(run: Path, fresh: bool = False) -> None:
    """Note that a session of a run begins; ``fresh``: in another process, which loads the files as they are now."""
    begun = (run / "federation.yaml").is_file()
    sessions = _sessions(run) if begun else []
    if begun and not sessions:  # nobody noted under which code it began
        sessions = [{"commit": UNKNOWN, "date": "", "files": {}}]
    now = {
        "commit": sources.head() if fresh else sources.commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "files": sources.snapshot() if fresh else sources.loaded(),
    }
    run.parent.mkdir(parents=True, exist_ok=True)
    _pending(run).write_text(json.dumps([*sessions, now]), encoding="utf-8")


def end(run: Path, imported: Iterable[str], diverged: str = "") -> Stamp:
    """Write the stamp of a run that has ended into its directory; ``imported``: the source files that it imported."""
    sessions = _sessions(run)
    digests = {file: [session["files"].get(file, "") for session in sessions] for file in sorted(imported)}
    stamp = Stamp(
        ", ".join(dict.fromkeys(session["commit"] for session in sessions)),
        sessions[-1]["date"],
        {file: next((one for one in some if one != some[-1]), some[-1]) for file, some in digests.items()},
        diverged,
    )
    (run / NAME).write_text(json.dumps(asdict(stamp)), encoding="utf-8")
    _pending(run).unlink()
    return stamp


def read(run: Path) -> Stamp | None:
    """The stamp of a run directory; None if the run has not ended."""
    file = run / NAME
    return Stamp(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def _pending(run: Path) -> Path:
    return run.parent / f"{run.name}.{NAME}"


def _sessions(run: Path) -> list[dict[str, Any]]:
    file = _pending(run)
    return list(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else []
