"""Silos whose model lies on an accelerator: the same results, and nothing from main memory is mixed in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.core import device
from hansa.core.errors import UserError
from tests.device import annex


def test_a_machine_without_an_accelerator_computes_on_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HANSA_DEVICE", raising=False)
    if not torch.accelerator.is_available():
        assert device.choose() == device.CPU
        assert device.workers() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("named", ["cuda:7", "fpga", ""])
def test_a_device_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, named: Any) -> None:
    monkeypatch.setenv("HANSA_DEVICE", named)
    with pytest.raises(UserError, match="does not have: set it to auto, cpu or"):
        device.choose()


@pytest.mark.slow_fault
@pytest.mark.skipif(shutil.which("g++") is None, reason="the other device is compiled")
def test_every_kind_of_run_is_the_same_on_another_device(tmp_path: Path) -> None:
    library = tmp_path / "annex.so"
    annex.build(library)
    command = [sys.executable, "-m", "tests.device.both", str(library), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
