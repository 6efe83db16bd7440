"""TensorBoard: scores, losses and traffic of a run as event files."""

from pathlib import Path
from typing import Any

from hansa.callbacks.values import round_values, score_values, settings_values
from hansa.core.errors import UserError
from hansa.runs.callbacks import CALLBACKS, CurrentRun, Evaluation, RoundRecord


@CALLBACKS.register("tensorboard")
class TensorBoard:
    """Writes event files to ``folder``, by default ``tensorboard/`` in the run directory.

    Raises `UserError` if TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path | None = None, required: bool = False) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("TensorBoard is not installed: pip install 'hansa[tensorboard]'") from None
        self._open, self._folder, self.required = SummaryWriter, folder, required
        self._writer: Any = None

    def on_run_start(self, run: CurrentRun) -> None:
        """Open the event file; of a resumed run, what came after its checkpoint is hidden."""
        folder = str(self._folder or run.folder / "tensorboard")
        self._writer = self._open(folder, purge_step=run.resumed_after + 1 if run.resumed_after else None)
        settings = "\n".join(f"    {name}: {value}" for name, value in settings_values(run.federation).items())
        self._writer.add_text("settings", settings, 0)

    def on_round_end(self, run: CurrentRun, record: RoundRecord) -> None:
        """Write the values of a round."""
        self._write(round_values(record), record.number)

    def on_evaluate(self, run: CurrentRun, scores: Evaluation) -> None:
        """Write scores."""
        self._write(score_values(scores), scores.round)

    def on_run_end(self, run: CurrentRun, result: object) -> None:
        """Close the file."""
        self._close()

    def on_failure(self, run: CurrentRun, error: BaseException) -> None:
        """Close the file."""
        self._close()

    def _write(self, values: dict[str, float], round: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round, new_style=True, double_precision=True)
        self._writer.flush()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
