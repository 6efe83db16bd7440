"""Early stopping: end a run when a metric on the validation data no longer improves."""

from statistics import fmean

from hansa.core.errors import UserError
from hansa.runs.callbacks import CurrentRun, Evaluation
from hansa.tasks.base import TASKS, better


class EarlyStopping:
    """Stops a run after ``patience`` evaluations without improvement.

    ``metric``: by default the task's main one, averaged over languages; whether low or high is better the task says.
    ``min_change``: the least improvement that counts. It looks at evaluations while training, not at the final test.
    Raises `UserError` (which ends the run) if the task has no such metric.
    """

    required = True

    def __init__(self, patience: int = 3, metric: str = "", min_change: float = 0.0) -> None:
        if patience < 1:
            raise UserError(f"EarlyStopping: patience is {patience}; give at least 1")
        self.patience, self.metric, self.min_change = patience, metric, min_change
        self.best: float | None = None
        self.best_round = 0
        self._without = 0

    def on_run_start(self, run: CurrentRun) -> None:
        """Begin anew."""
        self.best, self.best_round, self._without = None, 0, 0

    def on_evaluate(self, run: CurrentRun, scores: Evaluation) -> None:
        """Compare the scores with the best so far."""
        if scores.own or (scores.split == "test" and scores.share == 1.0 and scores.round == run.federation.rounds):
            return
        metric = self.metric or scores.headline
        values = [found[metric] for found in scores.metrics.values() if metric in found]
        if not values:
            known = sorted({name for found in scores.metrics.values() for name in found})
            raise UserError(f"EarlyStopping: the task has no metric '{metric}'; it has: {', '.join(known) or 'none'}")
        value = fmean(values)
        sign = -1 if better(TASKS.build(run.federation.task), metric) == "low" else 1
        if self.best is None or sign * (value - self.best) > self.min_change:
            self.best, self.best_round, self._without = value, scores.round, 0
            return
        self._without += 1
        if self._without >= self.patience:
            run.stop(f"{metric} has not improved since round {self.best_round} ({self.best:.4g})")
