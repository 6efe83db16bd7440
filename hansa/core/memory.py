"""The most resident memory that a process has taken."""

import resource
import sys
from pathlib import Path


def peak_memory(process: int | None = None) -> int:
    """Bytes of this process, or of another one by its id; 0 if that is not known."""
    if process is None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # no such process, or not Linux
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
