"""A second device for machines without an accelerator: built from `annex.cpp`, known to torch as ``annex``."""

import sys
import types
from pathlib import Path
from subprocess import run

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

ROOT = Path(torch.__file__).parent


def build(target: Path) -> None:
    """With the compiler of this machine: fifteen seconds."""
    include = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'include/torch/csrc/api/include'}"]
    libraries = [f"-L{ROOT / 'lib'}", "-ltorch_cpu", "-lc10"]
    source = str(Path(__file__).with_suffix(".cpp"))
    run(
        ["g++", "-O0", "-shared", "-fPIC", "-std=c++20", "-w", *include, source, "-o", str(target), *libraries],
        check=True,
    )


def register(library: Path) -> None:
    """For this process, for good: do it in one of its own."""
    rename_privateuse1_backend("annex")
    torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    module = types.ModuleType("torch.annex")
    vars(module).update(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: None,
    )
    torch._register_device_module("annex", module)  # type: ignore[no-untyped-call]
    sys.modules["torch.annex"] = module
