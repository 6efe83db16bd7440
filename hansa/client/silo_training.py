"""A silo's training in one round, in one process or in several."""

from collections.abc import Callable

from hansa.client.processes import Crew, ProcessLost, in_shares, processes_of
from hansa.client.resident import ResidentSilo
from hansa.client.runtime import Runtime
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
        crew = crew_of(runtime, size)
        try:
            crew.command(resident.name, work.round, number, training)
            batches = resident.batches(number, training)
            return train(work, runtime.task, objective, training, batches, rate, kept=kept, group=crew.group)
        except Exception as error:
            ended = crew.stop()  # also where this process failed: the others wait in the middle of a step
            if ended and isinstance(error, RuntimeError | OSError):  # what gloo and pipes raise
                raise ProcessLost(f"{ended}; all of them are started anew") from None
            raise


def crew_of(runtime: Runtime, size: int) -> Crew:
    """The running processes of a runtime, started if they are not there."""
    crew = runtime.crew
    if crew is None or len(crew.members) + 1 != size or any(member.poll() is not None for member in crew.members):
        if crew is not None:
            crew.stop()
        crew = runtime.crew = Crew(runtime.federation, runtime.folder, runtime.device, size)
    return crew
