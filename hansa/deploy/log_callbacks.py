"""A coordinator's progress as log entries, for log collectors."""

import logging

from hansa.runs.callbacks import CurrentRun, Evaluation, RoundRecord

log = logging.getLogger("hansa.serve")


class LogCallbacks:
    """Logs rounds and scores; the run's ledger has everything else. ``to``: another logger than the process's."""

    def __init__(self, to: logging.Logger = log) -> None:
        self._log = to

    def on_message(self, run: CurrentRun, text: str) -> None:
        """Log a message of the run."""
        self._log.info(text)

    def on_round_end(self, run: CurrentRun, record: RoundRecord) -> None:
        """Log the end of a round."""
        answered = len(record.participants) - len(record.failures)
        done = {"round": record.number, "loss": record.loss, "answered": answered}
        self._log.info("round %d is done", record.number, extra={**done, "failures": dict(record.failures)})

    def on_evaluate(self, run: CurrentRun, scores: Evaluation) -> None:
        """Log the scores of an evaluation of the shared model."""
        if scores.own:
            return
        metric = scores.headline
        found = {group: values[metric] for group, values in scores.metrics.items() if metric in values}
        self._log.info(
            "round %d was evaluated", scores.round, extra={"round": scores.round, "metric": metric, "scores": found}
        )
