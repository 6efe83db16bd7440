"""The log of a run in its directory: JSON lines in ``log.jsonl``, which rotate. The dashboard shows the newest."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hansa.core.errors import HansaError, printable
from hansa.deploy.log_callbacks import LogCallbacks
from hansa.deploy.log_files import RotatingLog
from hansa.runs.callbacks import CurrentRun, Evaluation, RoundRecord

RUN_LOG = "log.jsonl"


class RunLog:
    """A callback that writes messages, rounds, scores and failures into the run's directory, and to ``also``."""

    def __init__(self, folder: Path, also: Iterable[logging.Handler] = ()) -> None:
        log = logging.Logger("hansa.serve", logging.INFO)  # by itself: its lines go to no other handler
        for handler in (RotatingLog(folder / RUN_LOG), *also):
            log.addHandler(handler)
        self._log, self._lines = log, LogCallbacks(log)

    def on_message(self, run: CurrentRun, text: str) -> None:
        """Log a message of the run."""
        self._lines.on_message(run, text)

    def on_round_end(self, run: CurrentRun, record: RoundRecord) -> None:
        """Log the end of a round."""
        self._lines.on_round_end(run, record)

    def on_evaluate(self, run: CurrentRun, scores: Evaluation) -> None:
        """Log the scores of an evaluation of the shared model."""
        self._lines.on_evaluate(run, scores)

    def on_failure(self, run: CurrentRun, error: BaseException) -> None:
        """Log why the run ended; of an error that is not ours its type alone."""
        why = printable(str(error)) if isinstance(error, HansaError) else type(error).__name__
        self._log.error("the run ended: %s", why)

    def on_run_end(self, run: CurrentRun, result: Any) -> None:
        """Log that the run is done."""
        self._log.info("the run is done")
