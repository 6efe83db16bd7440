"""Early stopping and the best model: both follow one metric on the data that is evaluated while training.

The decision is read from the ledger each time, so that a run that is resumed decides as one that was not interrupted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from hansa.config.federation import Federation
from hansa.core.errors import UserError
from hansa.core.state import ServerState
from hansa.runs.callbacks import CurrentRun
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.tasks.base import Task, better

BEST = "best"  # the ledger's fact, and the folder of the model


@dataclass(frozen=True)
class Standing:
    """The best evaluation so far, and how many came after it."""

    round: int
    value: float
    since: int


@dataclass(frozen=True)
class Selection:
    """Follows ``evaluate.metric`` of a run."""

    federation: Federation
    task: Task
    ledger: Ledger
    directory: RunDirectory

    @property
    def metric(self) -> str:
        """The metric that decides."""
        return self.federation.evaluate.metric or self.task.headline

    @property
    def active(self) -> bool:
        """Whether the settings ask for it."""
        settings = self.federation.evaluate
        return settings.patience is not None or settings.keep_best

    def note(self, state: ServerState, run: CurrentRun) -> None:
        """After an evaluation: keep the model if it is the best so far, stop the run if none was better for long."""
        if not self.active or (state.round == 0 and self.federation.rounds):
            return
        settings, now = self.federation.evaluate, self.standing()
        if settings.keep_best and now.round == state.round:
            self.directory.save_best(state)
        if settings.patience is not None and now.since >= settings.patience:
            run.stop(f"{self.metric} has not improved since round {now.round} ({now.value:.4g})")

    def standing(self) -> Standing:
        """Compare all evaluations so far; raises `UserError` if the task has no such metric."""
        values = self._values()
        if not values:
            known = [name for (name,) in self.ledger.select("select distinct metric from metrics order by metric")]
            raise UserError(
                f"evaluate.metric is '{self.metric}', and the run has no scores of that name; it has: "
                f"{', '.join(known) or 'none'}"
            )
        sign = -1 if better(self.task, self.metric) == "low" else 1
        best, least = None, self.federation.evaluate.min_change
        for round, value in values.items():
            if best is None or sign * (value - values[best]) > least:
                best = round
        assert best is not None
        return Standing(best, values[best], sum(round > best for round in values))

    def _values(self) -> Mapping[int, float]:
        """Round → the metric, averaged over groups, on the data of the first evaluation.

        The start counts in a run without rounds alone: a model with a new head may score above zero by chance before it
        has learned anything.
        """
        rows = self.ledger.select(
            "select round, value from metrics where metric=?1 and (split, share) ="
            " (select split, share from metrics order by rowid limit 1) order by round",
            self.metric,
        )
        found: dict[int, list[float]] = {}
        for round, value in rows:
            found.setdefault(round, []).append(value)
        return {round: fmean(values) for round, values in found.items() if round or not self.federation.rounds}

    def take_best(self, state: ServerState) -> bool:
        """Put the best model into the state; return whether its test scores are still to be computed."""
        now = self.standing()
        state.model = self.directory.restore_best()
        noted = {"round": now.round, "metric": self.metric, "value": now.value, "at": state.round}
        new = self.ledger.facts().get(BEST) != noted
        self.ledger.fact(BEST, noted)
        return new
