"""Runs in processes of their own, as anybody would start them: several side by side."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hansa.config.federation import Federation
from hansa.config.file import dump
from hansa.core.errors import RunFailed
from hansa.runs.run import Outcome


def in_a_process(
    federation: Federation, folder: Path, say: Callable[[str], None], workers: int | None = 1, resume: bool = False
) -> Outcome:
    """`hansa run` on a federation file; what it prints while it works goes to ``say``."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.with_suffix(".yaml")
    file.write_text(dump(federation), encoding="utf-8")
    command = [sys.executable, "-m", "hansa", "run", str(file), "--out", str(folder)]
    command += ["--format", "json", *(["--workers", str(workers)] if workers is not None else [])]
    command += ["--resume"] if resume else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stderr:
        say(line.rstrip())
    result = process.stdout.read()
    if process.wait() != 0:
        raise RunFailed(f"the run '{federation.name}' in {folder} failed; its last words are above")
    return Outcome(folder, json.loads(result)["metrics"])
