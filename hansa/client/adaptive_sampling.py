"""Adaptive sampling: the number of samples per round follows the silo's validation loss.

Off by default (`train.samples.adapt`). The Medical paper names it as open: results are sensitive to the amount of data
per silo and round. Here each silo evaluates the shared model on its own validation data, every few rounds:

    the loss rose by more than the tolerance     over-fitting: half as many samples
    the loss fell by more than the tolerance     still learning: a quarter more
    in between                                   as before

always between `least` and `most` times the rule's amount. These losses stay in the silo; the number of samples it used
goes with its update.
"""

from dataclasses import dataclass
from math import inf, isfinite

from hansa.client.personalisation import overall
from hansa.client.resident import ResidentSilo
from hansa.client.state import StoredStates
from hansa.config.sections import AdaptiveSampling, Training

SAMPLING = "sampling"  # slot of the state


@dataclass(frozen=True)
class SampleFactor:
    """What a silo remembers: the factor on the number of samples, and its last validation loss with its round."""

    factor: float
    loss: float
    round: float


def next_factor(factor: float, before: float, now: float, settings: AdaptiveSampling) -> float:
    """The factor on the rule's amount of samples, after a look at the validation loss."""
    if now > before + settings.tolerance:
        factor *= 0.5
    elif now < before - settings.tolerance:
        factor *= 1.25
    return min(settings.most, max(settings.least, factor))


def adapted(resident: ResidentSilo, round: int, states: StoredStates) -> tuple[Training, SampleFactor | None]:
    """Return the training of a round, and what to remember where the number of samples adapts."""
    training = resident.runtime.federation.train
    settings = training.samples.adapt
    if settings is None:
        return training, None
    kept = states.get(SAMPLING, SampleFactor) or SampleFactor(1.0, inf, -inf)
    if round - kept.round >= settings.every:  # a silo that is not in every cohort evaluates when its turn comes
        now = overall(resident.runtime.task, resident.score("valid", 1.0))["loss"]
        known = isfinite(kept.loss)
        kept = SampleFactor(next_factor(kept.factor, kept.loss, now, settings) if known else kept.factor, now, round)
    return training.model_copy(update={"samples": training.samples.scaled(kept.factor)}), kept
