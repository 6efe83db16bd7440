"""One cell in a process of its own, so that the source files that it imported are those of this run alone.

    python -m hansa.experiments.reproduce.cell_run REQUEST.json

The parent writes the request (settings, folder of the run, name of the cell) and reads the cell's file.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from time import process_time

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.core.errors import RunFailed
from hansa.experiments.reproduce import Say, stamp
from hansa.experiments.reproduce.cells import Cell, Cells, settings_digest
from hansa.experiments.reproduce.sources import imported
from hansa.runs.run import run


def finished(cells: Cells, arm: str, seed: int, settings: str, again: bool = False) -> Cell | None:
    """The cell of settings, given by digest, if there is one; with ``again``, only if no source file has changed."""
    cell = cells.find(arm, seed, settings)
    return None if cell is not None and again and cells.changed(cell) else cell


def run_cell(
    cells: Cells,
    arm: str,
    seed: int,
    federation: Federation,
    folder: Path,
    say: Say,
    again: bool = False,
    here: bool = False,
) -> Cell:
    """Run a federation in a process of its own, or resume it, and return its cell; a finished cell is not repeated.

    The run directory is removed at the end. ``again``: repeat cells whose source files have changed; ``here``: run in
    this process, which may have imported more than the run needs. Raises `RunFailed` if the run fails; what it wrote
    stays in ``folder``, where the next call resumes it.
    """
    digest = settings_digest(federation)
    found = finished(cells, arm, seed, digest, again)
    if found is not None:
        say(f"{arm}, seed {seed}: finished before")
        return found
    home = folder / f"{cells.file(arm, seed).stem}-{digest}"
    request = home.with_suffix(".json")
    request.parent.mkdir(parents=True, exist_ok=True)
    asked = {
        "cells": str(cells.folder.resolve()),
        "experiment": cells.experiment,
        "scale": cells.scale,
        "arm": arm,
        "seed": seed,
        "digest": digest,
        "run": str(home.resolve()),
        "federation": federation.model_dump(mode="json"),
    }
    request.write_text(json.dumps(asked), encoding="utf-8")
    say(f"{arm}, seed {seed}: {'resumed' if (home / 'federation.yaml').is_file() else 'started'}")
    if here:
        main(request)
    else:
        done = subprocess.run([sys.executable, "-m", __name__, str(request)], capture_output=True, text=True)
        if done.returncode != 0:
            raise RunFailed(f"the run '{arm}', seed {seed}, in {home} failed:\n{done.stderr[-2000:]}")
    cell = cells.find(arm, seed, digest)
    if cell is None:
        raise RunFailed(f"the run '{arm}', seed {seed}, in {home} has left no result")
    shutil.rmtree(home, ignore_errors=True)
    request.unlink()
    say(f"{arm}, seed {seed}: done")
    return cell


def main(request: Path) -> None:
    """Run what a request asks for and write its cell."""
    asked = json.loads(request.read_text(encoding="utf-8"))
    home = Path(asked["run"])
    made = stamp.read(home)
    if made is None:
        stamp.begin(home)
        run(parse(asked["federation"]), home, resume=(home / "federation.yaml").is_file(), workers=0)
        made = stamp.end(home, imported())
    cells = Cells(Path(asked["cells"]), asked["experiment"], asked["scale"])
    took = round(process_time())  # the machine may be shared: wall time says little
    cells.from_run(asked["arm"], asked["seed"], asked["digest"], home, made, processor_seconds=took)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
