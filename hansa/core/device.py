"""Where a process computes: on the machine's accelerator if there is one, else on the CPU."""

import os

import torch

from hansa.core.errors import UserError

CHOICE = "HANSA_DEVICE"
CPU = torch.device("cpu")


def choose(number: int = 0) -> torch.device:
    """The device of this machine's process ``number``: processes take turns where there are several."""
    named = os.environ.get(CHOICE, "auto")
    if named == "cpu" or (named == "auto" and not torch.accelerator.is_available()):
        return CPU
    try:
        device = torch.accelerator.current_accelerator() if named == "auto" else torch.device(named)
    except RuntimeError:
        device = None
    if device is None or not (device.type == "cpu" or torch.accelerator.is_available()):
        raise UserError(f"{CHOICE} is '{named}', which this machine does not have: set it to auto, cpu or, say, cuda:1")
    return device if device.index is not None else torch.device(device.type, number % torch.accelerator.device_count())


def workers() -> int:
    """How many processes a machine has use for: one for each accelerator, or for each core."""
    return cores() if choose().type == "cpu" else torch.accelerator.device_count()


def cores() -> int:
    """Those that this process may use: a container, or `taskset`, may give it fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
