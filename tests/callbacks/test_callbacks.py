"""Callbacks: in which order they are called, what happens when one fails, early stopping, and callbacks by name."""

from pathlib import Path
from typing import Any

import pytest

import hansa
from hansa.callbacks import CALLBACKS, EarlyStopping, trackers
from hansa.runs.callbacks import EVENTS
from tests.api.conftest import Make


class Recorder:
    """Has every method and notes the calls, except for `on_silo`, which comes from another thread."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name not in EVENTS:
            raise AttributeError(name)
        return lambda run, *arguments: self.calls.append(name)


def test_callbacks_are_called_in_order(make: Make, tmp_path: Path) -> None:
    recorder = Recorder()
    hansa.run(make(), out=tmp_path / "run", workers=0, callbacks=[recorder], progress=False)
    calls = [call for call in recorder.calls if call not in ("on_message", "on_silo")]
    one = ["on_round_start", "on_evaluate", "on_round_end"]
    last = ["on_round_start", "on_evaluate", "on_evaluate", "on_checkpoint", "on_round_end"]
    assert calls == ["on_run_start", "on_evaluate", *one, *last, "on_run_end"]


def test_a_callback_that_raises_is_dropped_or_stops_the_run_as_it_declares(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing:
        calls = 0

        def __init__(self, required: bool) -> None:
            self.required = required

        def on_round_end(self, run: Any, record: Any) -> None:
            self.calls += 1
            raise ValueError("no paper in the printer")

    watcher, failing = Recorder(), Failing(required=False)
    result = hansa.run(make(), out=tmp_path / "run", workers=0, callbacks=[failing, watcher])
    assert result.metrics
    assert failing.calls == 1, "it is not called again"
    said = " ".join(capsys.readouterr().err.split())
    assert "Failing failed in on_round_end: ValueError: no paper in the printer (test_callbacks.py:" in said
    assert "the run goes on without it" in said

    fed = make(checkpoint={"every": 1})
    with pytest.raises(hansa.RunFailed, match=r"Failing failed in on_round_end: .* it is required, so the run stops"):
        hansa.run(
            make(checkpoint={"every": 1}), out=tmp_path / "stopped", workers=0, callbacks=[Failing(True), watcher]
        )
    assert watcher.calls[-1] == "on_failure"
    resumed = hansa.run(fed, out=tmp_path / "stopped", resume=True, workers=0, progress=False)
    assert resumed.metrics == result.metrics, "nothing was lost"


def test_a_required_callback_that_fails_in_another_thread_stops_the_run(make: Make, tmp_path: Path) -> None:
    class Failing:
        required = True

        def on_silo(self, run: Any, silo: str, state: str) -> None:
            raise ValueError("no")

    with pytest.raises(hansa.RunFailed, match="Failing failed in on_silo: ValueError: no"):
        hansa.run(make(), out=tmp_path / "run", workers=1, callbacks=[Failing()], progress=False)


def test_an_object_without_any_method_of_a_callback_is_refused(make: Make, tmp_path: Path) -> None:
    class Typo:
        def on_round_ended(self, run: Any, record: Any) -> None: ...

    with pytest.raises(hansa.UserError, match="Typo has none of the methods of a callback: on_message, on_run_start"):
        hansa.run(make(), out=tmp_path / "run", callbacks=[Typo()])
    assert not (tmp_path / "run").exists()


def test_early_stopping_stops_when_nothing_improves_and_not_before(make: Make, tmp_path: Path) -> None:
    still = make(rounds=20, train={"lr": 1e-12, "batch": 8})  # nothing is learned
    stopping = EarlyStopping(patience=2, metric="loss", min_change=1e-6)
    result = hansa.run(still, out=tmp_path / "still", workers=0, callbacks=[stopping], progress=False)
    assert result.rounds["round"].max() == 2
    assert set(result.scores.query("split == 'test'")["round"]) == {2}, "evaluated as after the last round"
    assert (tmp_path / "still" / "model").is_dir()
    learning = make(rounds=4, train={"optimizer": "adamw", "lr": 0.003, "batch": 8})
    whole = hansa.run(learning, out=tmp_path / "learning", workers=0, callbacks=[stopping], progress=False)
    assert whole.rounds["round"].max() == 4, "the same callback lets a run that learns go on"


def test_early_stopping_names_a_metric_that_is_not_there(make: Make, tmp_path: Path) -> None:
    with pytest.raises(hansa.RunFailed, match="the task has no metric 'blue'; it has: accuracy"):
        hansa.run(make(), out=tmp_path / "run", workers=0, callbacks=[EarlyStopping(metric="blue")], progress=False)
    with pytest.raises(hansa.UserError, match="patience is 0; give at least 1"):
        EarlyStopping(patience=0)


def test_trackers_are_found_by_name() -> None:
    assert sorted(CALLBACKS.entries) == ["mlflow", "tensorboard", "wandb"]
    with pytest.raises(hansa.UserError, match="--track mlfow is not known; did you mean 'mlflow'"):
        trackers(["mlfow"])
