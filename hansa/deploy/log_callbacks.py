"""A coordinator's progress as log entries, for machines that collect them."""

import logging
from collections.abc import Mapping

from hansa.core.round import Record
from hansa.runs.callbacks import NoCallbacks

log = logging.getLogger("hansa.serve")


class LogCallbacks(NoCallbacks):
    """Implements `watch.Watcher`; what it does not tell is in the ledger."""

    def say(self, text: str) -> None:
        log.info(text)

    def round(self, record: Record, seconds: Mapping[str, float]) -> None:
        told = {"round": record.round, "loss": record.loss, "answered": len(record.updates), "lost": record.failures}
        log.info("round %d is done", record.round, extra=told)

    def scores(self, round: int, metrics: Mapping[str, Mapping[str, float]], headline: str) -> None:
        found = {group: values[headline] for group, values in metrics.items() if headline in values}
        log.info("round %d was evaluated", round, extra={"round": round, "metric": headline, "scores": found})

    def stop(self) -> None:
        """There is no display to take down."""
