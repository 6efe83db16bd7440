"""Callbacks for runs: early stopping, and trackers (TensorBoard, MLflow, Weights & Biases).

A callback is an object with any of the methods of `CallbackMethods`; `hansa.run(fed, callbacks=[…])` takes them, and
``hansa run --track NAME`` the trackers by name. An installed package adds its own by the entry point group
``hansa.callbacks``: a module that registers a class with ``CALLBACKS.register("name")``.
"""

from collections.abc import Iterable
from typing import Any

from hansa.callbacks.early_stopping import EarlyStopping
from hansa.callbacks.mlflow import MLflow
from hansa.callbacks.tensorboard import TensorBoard
from hansa.callbacks.wandb import WandB
from hansa.config.plugins import load_entry_points
from hansa.runs.callbacks import CALLBACKS, CallbackMethods, CurrentRun, Evaluation, RoundRecord

__all__ = [
    "CALLBACKS",
    "CallbackMethods",
    "CurrentRun",
    "EarlyStopping",
    "Evaluation",
    "MLflow",
    "RoundRecord",
    "TensorBoard",
    "WandB",
    "trackers",
]


def trackers(names: Iterable[str]) -> list[Any]:
    """The callbacks of these names; raises `UserError` for one that is not known or not installed."""
    load_entry_points()
    return [CALLBACKS.build(name) for name in names]
