"""The Slurm scripts run without Slurm: their bodies, with a stand-in for `scontrol`."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from hansa.config.file import dump
from tests.conftest import Build
from tests.deploy.conftest import make_kits
from tests.deploy.test_packaging import PACKAGING

SCRIPTS = sorted((PACKAGING / "slurm").glob("*.sbatch"))
SECONDS = 600.0  # a busy machine is slow, not wrong


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Variables of a job, and a folder with `hansa` and `scontrol` first on the path."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "hansa").write_text(f'#!/bin/bash\nexec {sys.executable} -m hansa "$@"\n')
    (programs / "scontrol").write_text(f'#!/bin/bash\necho "$@" >> {folder}/scontrol.log\n')
    for file in programs.iterdir():
        file.chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    root = str(Path(__file__).parent.parent.parent)
    return os.environ | {"PATH": path, "PYTHONPATH": root, "SLURM_JOB_ID": "17", "SLURM_CPUS_PER_TASK": "1"} | more


def wait_for(what: Any) -> None:
    begun = monotonic()
    while not what():
        assert monotonic() - begun < SECONDS
        sleep(0.1)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_scripts_are_valid_and_ask_to_be_warned_and_requeued(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "-s", "bash", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    options = [line.split(maxsplit=1)[1] for line in script.read_text().splitlines() if line.startswith("#SBATCH ")]
    assert {"--requeue", "--open-mode=append", "--signal=B:USR1@120"} <= set(options)


@pytest.mark.slow_fault
def test_the_agents_script_holds_a_lock_and_stops(federation: Build, tmp_path: Path) -> None:
    settings = federation(sizes={"north": 30})
    kit = make_kits(settings, tmp_path / "kits") / "north"
    script = PACKAGING / "slurm" / "hansa-silo.sbatch"
    missing = subprocess.run(
        ["bash", script], env=environment(tmp_path), capture_output=True, text=True, timeout=SECONDS
    )
    assert missing.returncode != 0
    assert "set HANSA_KIT" in missing.stderr
    job = environment(tmp_path, HANSA_KIT=str(kit), HANSA_DATA=settings.silos["north"].sources[0].train)
    with (tmp_path / "job.log").open("wb") as log:
        running = subprocess.Popen(["bash", script], env=job, stdout=log, stderr=log)
        try:
            wait_for(lambda: b'"time"' in (tmp_path / "job.log").read_bytes())  # the agent's first line
            second = subprocess.run(["bash", script], env=job, capture_output=True, text=True, timeout=SECONDS)
            assert second.returncode == 2
            assert "another job runs the agent" in second.stderr
            running.send_signal(signal.SIGUSR1)
            assert running.wait(SECONDS) == 0
        finally:
            running.kill()
    assert (tmp_path / "scontrol.log").read_text() == "requeue 17\n"


@pytest.mark.slow_fault
def test_the_simulations_script_is_interrupted_and_resumes(federation: Build, tmp_path: Path) -> None:
    file, run = tmp_path / "federation.yaml", tmp_path / "run"
    file.write_text(dump(federation(sizes={"north": 40, "south": 40}, model="mini", rounds=200)))
    command = ["bash", str(PACKAGING / "slurm" / "hansa-simulation.sbatch"), str(file), str(run)]
    running = subprocess.Popen(command, env=environment(tmp_path), stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: any(run.glob("checkpoints/round-*")))
        running.send_signal(signal.SIGUSR1)
        assert running.wait(SECONDS) == 0
    finally:
        running.kill()
    assert (tmp_path / "scontrol.log").read_text() == "requeue 17\n"
    before = max(int(folder.name.removeprefix("round-")) for folder in run.glob("checkpoints/round-*"))
    assert 0 < before < 200
    written = (run / "federation.yaml").read_text()
    (run / "federation.yaml").write_text(written.replace("rounds: 200", f"rounds: {before + 1}"))
    file.write_text(file.read_text().replace("rounds: 200", f"rounds: {before + 1}"))
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert (run / "model").is_dir(), "the run is complete"
