"""A coordinator's progress as log entries, for log collectors."""

import logging
from collections.abc import Mapping

from hansa.core.round import Record
from hansa.runs.callbacks import NoCallbacks

log = logging.getLogger("hansa.serve")


class LogCallbacks(NoCallbacks):
    """Logs rounds and scores; the run's ledger has everything else."""

    def say(self, text: str) -> None:
        """Log a message of the run."""
        log.info(text)

    def round(self, record: Record, seconds: Mapping[str, float]) -> None:
        """Log the end of a round."""
        done = {"round": record.round, "loss": record.loss, "answered": len(record.updates)}
        log.info("round %d is done", record.round, extra={**done, "failures": record.failures})

    def scores(self, round: int, metrics: Mapping[str, Mapping[str, float]], headline: str) -> None:
        """Log the scores of an evaluation."""
        found = {group: values[headline] for group, values in metrics.items() if headline in values}
        log.info("round %d was evaluated", round, extra={"round": round, "metric": headline, "scores": found})

    def stop(self) -> None:
        """Do nothing: there is no display to close."""
