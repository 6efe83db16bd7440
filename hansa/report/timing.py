"""The report's time section: the seconds of a run by phase."""

from collections.abc import Mapping
from typing import Any

from hansa.report.traffic import size
from hansa.runs.results import RunResults

PHASES = ("exchange", "steps", "overhead", "server step", "evaluation", "checkpoints")


def phase_row(run: RunResults) -> dict[str, Any] | None:
    """The seconds of a run by the phases `PHASES`; None if it had no rounds."""
    phases = run.phases
    if not phases.rounds:
        return None
    overhead = max(0.0, phases.work - phases.steps)
    seconds = (phases.exchange, phases.steps, overhead, phases.aggregation, phases.evaluation, phases.checkpoints)
    cells = [f"{value:.1f} s" for value in seconds]
    return {"name": run.name, "rounds": phases.rounds, "total": f"{phases.total:.1f} s", "cells": cells}


def memory_line(noted: Mapping[str, Any] | None) -> str:
    """A sentence on the most memory that the processes of a run took; empty if it was not noted."""
    if not noted:
        return ""
    workers = noted.get("workers") or []
    text = f"at most {size(noted['server'])} in the process of the server"
    if workers:
        text += f", and {size(max(workers))} in the largest of {len(workers)} worker{'s' * (len(workers) != 1)}"
    return f"{text} (resident memory, with libraries)."
