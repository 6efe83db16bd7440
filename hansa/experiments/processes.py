"""Runs in separate processes, started with the command line, so that several can run at the same time."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hansa.config.federation import Federation
from hansa.config.file import dump
from hansa.core.errors import RunFailed
from hansa.runs.result import Result


def run_in_process(
    federation: Federation, folder: Path, say: Callable[[str], None], workers: int | None = 1, resume: bool = False
) -> Result:
    """Run `hansa run` on a federation file; ``say`` gets the lines that it prints to standard error.

    Raises `RunFailed` if the run fails.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.with_suffix(".yaml")
    file.write_text(dump(federation), encoding="utf-8")
    command = [sys.executable, "-m", "hansa", "run", str(file), "--out", str(folder)]
    command += ["--format", "json", *(["--workers", str(workers)] if workers is not None else [])]
    command += ["--resume"] if resume else []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stderr:
            say(line.rstrip())
        result = process.stdout.read()
    if process.returncode != 0:
        raise RunFailed(f"the run '{federation.name}' in {folder} failed; the lines above show why")
    return Result(folder, json.loads(result)["metrics"])
