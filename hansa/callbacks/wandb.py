"""Weights & Biases: settings, scores, losses and traffic of a run; offline unless the user asks for more."""

import os
from typing import Any

from hansa.callbacks.values import round_values, score_values, settings_values
from hansa.core.errors import UserError
from hansa.runs.callbacks import CALLBACKS, CurrentRun, Evaluation, RoundRecord


@CALLBACKS.register("wandb")
class WandB:
    """Logs to Weights & Biases.

    ``mode``: ``offline`` (the default: files in the run directory, which ``wandb sync`` uploads) or ``online``; the
    environment variable WANDB_MODE sets it, too. ``project``: by default the name of the federation. Raises `UserError`
    if the library is not installed.
    """

    def __init__(self, mode: str | None = None, project: str | None = None, required: bool = False) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError("Weights & Biases is not installed: pip install 'hansa[wandb]'") from None
        self._library: Any = wandb
        self.mode, self.project, self.required = mode or os.environ.get("WANDB_MODE", "offline"), project, required
        self._run: Any = None

    def on_run_start(self, run: CurrentRun) -> None:
        """Open a run with the settings."""
        settings = self._library.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
        self._run = self._library.init(
            project=self.project or run.name,
            name=run.folder.name,
            dir=str(run.folder),
            mode=self.mode,
            config=settings_values(run.federation),
            settings=settings,
        )
        self._run.define_metric("*", step_metric="round")

    def on_round_end(self, run: CurrentRun, record: RoundRecord) -> None:
        """Log the values of a round, with the scores of its evaluation."""
        self._log(record.number, round_values(record))

    def on_evaluate(self, run: CurrentRun, scores: Evaluation) -> None:
        """Log scores."""
        self._log(scores.round, score_values(scores))

    def on_run_end(self, run: CurrentRun, result: object) -> None:
        """Close the run."""
        self._run.finish()

    def on_failure(self, run: CurrentRun, error: BaseException) -> None:
        """Close the run as failed."""
        if self._run is not None:
            self._run.finish(exit_code=1)

    def _log(self, round: int, values: dict[str, float]) -> None:
        self._run.log(values | {"round": round})
