"""A silo's training in one round, in one process or in several."""

from collections.abc import Callable

from hansa.client.processes import in_shares, plain_settings, processes_of
from hansa.client.resident import ResidentSilo
from hansa.client.sharding import PartsLearner, PartsOptimizer, shapes_of
from hansa.client.training import OptimizerState, Trained, train
from hansa.config.sections import Training
from hansa.core.learner import Work
from hansa.core.seeds import torch_seeded


def train_silo(
    resident: ResidentSilo,
    work: Work,
    training: Training,
    number: int,
    rate: float | Callable[[int], float],
    kept: OptimizerState | None,
) -> Trained:
    """Train the resident model on the batches of round ``number``; see `train`.

    Raises `ProcessLost` if one of several processes ends; all are stopped then, so that another attempt starts anew.
    """
    runtime, objective = resident.runtime, resident.method.objective
    size = processes_of(training) if getattr(objective, "task_loss_only", False) else 1
    with torch_seeded(runtime.federation.seed, work.round, resident.name, "dropout"):
        if size == 1:
            batches = resident.batches(number, training)
            return train(work, runtime.task, objective, training, batches, rate, kept=kept)
        training = in_shares(training, size)
        given = {"training": plain_settings(training), "round": work.round, "number": number, "kept": shapes_of(kept)}
        with runtime.together("train", resident.name, **given) as group:
            batches, learner = resident.batches(number, training), work.learner
            sharded = PartsOptimizer(learner, training) if isinstance(learner, PartsLearner) else None
            done = train(
                work, runtime.task, objective, training, batches, rate, kept=kept, group=group, sharded=sharded
            )
            if isinstance(learner, PartsLearner):
                learner.collect()
            return done
