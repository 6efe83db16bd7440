"""SIGKILL, Ctrl-C, full and read-only disks: checkpoints stay valid, and resumed runs end in the same bits."""

import resource
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.config import file as federation_file
from hansa.config.nodes import Holder, Node
from hansa.core.errors import RunFailed, UserError
from hansa.core.settings import Named
from hansa.runs.directory import RunDirectory
from hansa.runs.run import run
from tests.conftest import Build, same, weights
from tests.faults.processes import read_only
from tests.faults.test_pool import wait_for


def start(file: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hansa", "run", str(file), "--out", str(out), "--workers", "2", *more]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def flat(settings: Any) -> Any:
    return settings


def tree(settings: Any) -> Any:
    """The same silos with a region, where every node has data and a model of its own."""
    silos = settings.silos
    west = Node(mixture=True, silos={name: silos[name] for name in ("north", "south")})
    update = {"silos": {"west": west, "east": silos["east"]}, "root": Holder(mixture=True)}
    return settings.model_copy(update=update | {"method": Named(name="worldlm"), "rounds": 12})


@pytest.mark.slow_fault
@pytest.mark.parametrize("shape", [flat, tree])
def test_killed_and_resumed_runs_end_in_the_same_bits(federation: Build, tmp_path: Path, shape: Any) -> None:
    settings = shape(federation(rounds=20, server={"optimizer": "adam", "lr": 0.01}, checkpoint={"every": 3}))
    file = tmp_path / "fed.yaml"
    file.write_text(federation_file.dump(settings))
    whole = run(settings, tmp_path / "whole", workers=0).folder
    for reached in ("start", "checkpoints/round-9"):
        more = ["--resume"] if (tmp_path / "cut").exists() else []
        process = start(file, tmp_path / "cut", *more)
        wait_for(tmp_path / "cut" / reached)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = start(file, tmp_path / "cut", "--resume")
    _, text = process.communicate(timeout=600)
    assert process.returncode == 0, text
    assert "resumed after round" in text
    assert same(weights(whole / "model"), weights(tmp_path / "cut" / "model"))
    for own in (whole / "silos").glob("*/model"):
        assert same(weights(own), weights(tmp_path / "cut" / own.relative_to(whole)))


def test_ctrl_c_stops_cleanly_and_names_the_option_to_resume(federation: Build, tmp_path: Path) -> None:
    file = tmp_path / "fed.yaml"
    file.write_text(federation_file.dump(federation(rounds=100000)))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes ignore it
    process = start(file, tmp_path / "run")
    signal.signal(signal.SIGINT, before)
    wait_for(tmp_path / "run" / "checkpoints" / "round-2")
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "--resume" in text
    assert "Traceback" not in text


def test_a_full_disk_leaves_the_previous_checkpoint(federation: Build, tmp_path: Path) -> None:
    """From round 3 on the operating system limits files to 100 kB."""
    settings = federation(rounds=4)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Full:
        def on_round_end(self, run: Any, record: Any) -> None:
            if record.number == 2:
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))

    try:
        with pytest.raises(RunFailed, match=r"could not be written \(.*\); .* is intact: .* --resume"):
            run(settings, tmp_path / "run", workers=0, callbacks=[Full()])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    directory = RunDirectory(tmp_path / "run")
    assert directory.checkpoints() == [1, 2]
    newest = directory.newest({})
    assert newest is not None
    assert newest.round == 2
    assert not list((tmp_path / "run" / "checkpoints").glob(".draft*")), "no draft is left"
    resumed = run(settings, tmp_path / "run", resume=True, workers=0).folder
    assert same(weights(resumed / "model"), weights(run(settings, tmp_path / "whole", workers=0).folder / "model"))


def test_a_read_only_disk_leaves_the_previous_checkpoint(federation: Build, tmp_path: Path) -> None:
    """Before the checkpoint of round 3, the folder of checkpoints becomes read-only."""
    settings, kept = federation(rounds=4), tmp_path / "run" / "checkpoints"
    with ExitStack() as stack:

        class ReadOnly:
            def on_round_end(self, run: Any, record: Any) -> None:
                if record.number == 2:
                    stack.enter_context(read_only(kept))

        with pytest.raises(RunFailed, match=r"could not be written \(.*\); .* is intact: .* --resume"):
            run(settings, tmp_path / "run", workers=0, callbacks=[ReadOnly()])
        newest = RunDirectory(tmp_path / "run").newest({})
        assert newest is not None
        assert newest.round == 2, "the checkpoint can be read"
    resumed = run(settings, tmp_path / "run", resume=True, workers=0).folder
    assert same(weights(resumed / "model"), weights(run(settings, tmp_path / "whole", workers=0).folder / "model"))


def test_a_run_directory_is_never_overwritten(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = federation(rounds=1)
    run(settings, tmp_path / "run", workers=0)
    with pytest.raises(UserError, match="is not empty"):
        run(settings, tmp_path / "run", workers=0)
    with pytest.raises(UserError, match="differs from the one"):
        run(federation(rounds=1, seed=7), tmp_path / "run", resume=True, workers=0)
    with pytest.raises(UserError, match="holds no run"):
        run(settings, tmp_path / "elsewhere", resume=True, workers=0)
    names = [run(settings, workers=0).folder for _ in range(2)]
    assert [str(n) for n in names] == ["runs/small", "runs/small-2"]


def test_resuming_a_finished_run_changes_nothing(federation: Build, tmp_path: Path) -> None:
    settings = federation(rounds=2)
    before = weights(run(settings, tmp_path / "run", workers=0).folder / "model")
    after = weights(run(settings, tmp_path / "run", resume=True, workers=0).folder / "model")
    assert same(before, after)
    assert torch.isfinite(next(iter(after.values()))).all()
