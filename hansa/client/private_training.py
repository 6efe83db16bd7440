"""Local training with differential privacy of single patients or documents (`hansa.privacy.dp.units`)."""

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from hansa.client.training import Optimizer, OptimizerState, Trained, clip_gradient
from hansa.client.unit_gradients import UnitGradients, per_sample
from hansa.data.arrays import Indices
from hansa.data.examples import Examples
from hansa.privacy.dp.units import UnitMechanism


def train_private(
    units: UnitGradients,
    mechanism: UnitMechanism,
    scale: float | Callable[[int], float],
    purpose: Sequence[str | int],
    kept: OptimizerState | None = None,
) -> Trained:
    """Take the steps of a round; return what a silo reports about it: no loss, and expected numbers only.

    ``purpose``: the seed, the round and the silo, from which ``seeded`` noise is derived. ``scale`` and ``kept`` are
    those of `hansa.client.training.train`.
    """
    work, settings, done, began = units.work, units.settings, Trained(), perf_counter()
    learner = work.learner
    optimizer = Optimizer(learner, settings)
    if kept is not None:
        optimizer.restore(kept)
    learner.model.train()
    names, members = by_unit(units.held)
    source, rate = mechanism.source(*purpose), mechanism.settings.sampling
    units.together = per_sample(learner.model)
    try:
        for step in range(mechanism.settings.steps):
            total, number = mechanism.sum(learner.flat.numel()), int(source.words(1)[0])
            drawn = [(int(names[one]), members[one]) for one in mechanism.draw(len(names), source)]
            for gradient in units.of(drawn, number):
                total.add(gradient)
            total.release(learner.grad, rate * len(names), source)
            units.objective.gradient(work)
            if settings.clip is not None:
                clip_gradient(learner.grad, settings.clip)
            work.lr = settings.lr * (scale if isinstance(scale, float) else scale(step))
            optimizer.rate(work.lr)
            optimizer.step()
            done.steps = work.steps = step + 1
    finally:
        if units.together is not None:
            units.together.close()
    done.seen = mechanism.expected(len(units.held))  # how many were drawn stays secret
    done.seconds = perf_counter() - began
    done.objective = units.objective.finish(work)
    done.optimizer = optimizer.state() if settings.keep_optimizer else None
    return done


def by_unit(held: Examples) -> tuple[Indices, list[Indices]]:
    """The names of the samples' units, and the samples of each."""
    names, inverse = np.unique(held.units, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    return names, np.split(order, np.cumsum(np.bincount(inverse, minlength=len(names)))[:-1])
