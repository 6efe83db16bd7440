"""MLflow: settings, scores, losses and traffic of a run on a tracking server or in local files."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from time import time
from typing import Any

from hansa.callbacks.values import round_values, score_values, settings_values
from hansa.core.errors import UserError
from hansa.runs.callbacks import CALLBACKS, CurrentRun, Evaluation, RoundRecord

NOT_ALLOWED = re.compile(r"[^\w\-. :/]")  # in names of MLflow
RETRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
MAX_TEXT = 500


@CALLBACKS.register("mlflow")
class MLflow:
    """Logs to the tracking server or store ``uri``, by default that of MLflow's own settings.

    ``experiment``: by default the name of the federation. Raises `UserError` if MLflow is not installed, and if the
    server cannot be reached; unless ``required``, the run then goes on without it.
    """

    def __init__(self, uri: str | None = None, experiment: str | None = None, required: bool = False) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
        except ImportError:
            raise UserError("MLflow is not installed: pip install 'hansa[mlflow]'") from None
        self._client_class, self._metric, self._param = MlflowClient, Metric, Param
        self.uri, self.experiment, self.required = uri, experiment, required
        self._client: Any = None
        self.run_id = ""

    def on_run_start(self, run: CurrentRun) -> None:
        """Open a run on the server with the settings; a resumed run begins a new one, tagged with the round."""
        with self._reached():
            self._client = self._client_class(tracking_uri=self.uri)
            name = self.experiment or run.name
            known = self._client.get_experiment_by_name(name)
            experiment = known.experiment_id if known is not None else self._client.create_experiment(name)
            tags = {"hansa.run": run.folder.name, "hansa.resumed_after": str(run.resumed_after)}
            self.run_id = self._client.create_run(experiment, tags=tags, run_name=run.folder.name).info.run_id
            settings = settings_values(run.federation).items()
            given = [self._param(_name(key), value[:MAX_TEXT]) for key, value in settings]
            self._client.log_batch(self.run_id, params=given[:100])
            for i in range(100, len(given), 100):
                self._client.log_batch(self.run_id, params=given[i : i + 100])

    def on_round_end(self, run: CurrentRun, record: RoundRecord) -> None:
        """Log the values of a round."""
        self._log(round_values(record), record.number)

    def on_evaluate(self, run: CurrentRun, scores: Evaluation) -> None:
        """Log scores."""
        self._log(score_values(scores), scores.round)

    def on_run_end(self, run: CurrentRun, result: object) -> None:
        """Mark the run as finished."""
        self._end("FINISHED")

    def on_failure(self, run: CurrentRun, error: BaseException) -> None:
        """Mark the run as failed."""
        self._end("FAILED")

    def _log(self, values: dict[str, float], round: int) -> None:
        now = int(1000 * time())
        entries = [self._metric(_name(name), value, now, round) for name, value in values.items()]
        with self._reached():
            for i in range(0, len(entries), 1000):
                self._client.log_batch(self.run_id, metrics=entries[i : i + 1000])

    def _end(self, status: str) -> None:
        if self.run_id:
            with self._reached():
                self._client.set_terminated(self.run_id, status)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Give up on a server after seconds, not minutes, and say so in one sentence."""
        from mlflow.exceptions import MlflowException

        unset = [name for name in RETRIES if name not in os.environ]
        os.environ.update({name: RETRIES[name] for name in unset})
        try:
            yield
        except (MlflowException, OSError) as error:
            where = self.uri or os.environ.get("MLFLOW_TRACKING_URI", "its default store")
            raise UserError(f"MLflow at {where} did not take the values ({str(error)[:200]})") from None
        finally:
            for name in unset:
                os.environ.pop(name, None)


def _name(text: str) -> str:
    return NOT_ALLOWED.sub("_", text)
