"""Overlap of training and transfer (`train.overlap`): a silo goes on training while its update travels.

Shen et al. (2019), Faster Distributed Deep Net Training: Computation and Communication Decoupled SGD, Algorithm 1;
Douillard et al. (2025), Streaming DiLoCo with Overlapping Communication, Section 2.3.

    round r   θᵢ ← LocalSteps(θᵢ)                       from the silo's own model, before the model of round r counts
              θᵢ ← θᵢ + (θ − aᵢ);  aᵢ ← θ               for the tensors of θ, the model that came with round r
              send aᵢ − θᵢ;        aᵢ ← θᵢ              for the tensors that leave

θᵢ: the silo's model; aᵢ: its anchor, from which the next update is measured. An update has each local step once. What
other silos learned in round r − 1 reaches θᵢ at the end of the steps of round r: always there, however fast the link
is, so the result does not depend on time. In the first round θᵢ = aᵢ = θ.
The steps of round r + 1 need nothing that has yet to arrive. An agent therefore takes them in a thread (`StepsAhead`)
while the update of round r travels up and the model of round r + 1 travels down; a simulation takes them when it is
asked for. Both give the same bits. The agent writes the state after round r to its disk while these steps run, and
stores and sends the reply after that: whoever has seen a byte of the reply can rely on the state. If the state cannot
be written, the steps ahead do not count.
Deviations from Streaming DiLoCo: what arrives is added to the local steps instead of averaged with them (α), and the
delay is a whole round.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from hansa.client.resident import ResidentSilo
from hansa.client.silo_training import train_silo
from hansa.client.training import OptimizerState, Trained
from hansa.config.sections import Training
from hansa.core.learner import Work
from hansa.core.tensors import NOTHING, Tensors

OVERLAP = "overlap"  # slot of the state
log = logging.getLogger("hansa.silo")


@dataclass(frozen=True)
class OverlapState:
    """The silo's own model, from which its next steps start, and the anchor of its next update."""

    model: Tensors
    anchor: Tensors


def merge(model: Tensors, before: OverlapState | None, received: Tensors) -> Tensors:
    """Add what arrived to the silo's own ``model``, in place; return the anchor that the update is measured from."""
    if before is None:
        return received.copy()
    anchor = before.anchor.copy()
    for name, value in received.named().items():
        if name in anchor.layout.spans:
            model[name].add_((value - anchor[name]).to(model.flat.device))
    anchor.write(received.only([name for name in received.layout.names if name in anchor.layout.spans]))
    return anchor


def kept_state(model: Tensors, anchor: Tensors, sent: Iterable[str]) -> OverlapState:
    """What the silo keeps after an update of the tensors ``sent`` has left: their anchor is where they are now."""
    here = model.only(anchor.layout.names).to(torch.device("cpu")).copy()
    anchor.write(here.only([*sent]))
    return OverlapState(here, anchor)


class StepsAhead:
    """The steps of a silo's next round, taken in a thread while its update travels."""

    def __init__(self, round: int, steps: Callable[[], Trained], model: Callable[[], Tensors]) -> None:
        self.round = round
        self._steps, self._model = steps, model
        self._found: tuple[Trained, Tensors] | None = None
        self._confirmed = False
        self._threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run, name="hansa-steps-ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # which is each thread's own; other numbers round differently
        try:
            done = self._steps()
            self._found = done, self._model().copy()
        except Exception as error:  # the steps are taken again when the round comes, and fail there
            log.warning("steps ahead of round %d failed (%s)", self.round, type(error).__name__)

    def wait(self) -> None:
        """Wait until the steps are taken, so that the resident model is free."""
        self._thread.join()

    def confirm(self, round: int) -> None:
        """The state after ``round`` is on the disk: the steps count if they are those of the round after it."""
        self._confirmed = self._confirmed or round == self.round - 1

    def take(self, round: int) -> tuple[Trained, Tensors] | None:
        """The steps of a round and the model they led to; None if they are not there, or not confirmed.

        Without the state that they start from, the disk has an older one, and the steps are taken again from there.
        """
        self.wait()
        found, self._found = self._found if round == self.round and self._confirmed else None, None
        return found


def steps_ahead(
    resident: ResidentSilo,
    training: Training,
    round: int,
    rate: float | Callable[[int], float],
    optimizer: OptimizerState | None,
) -> StepsAhead:
    """Begin the steps of ``round`` from the resident model as it is; ``optimizer``: its state after the last round."""
    learner = resident.runtime.learner
    work = Work(learner, NOTHING, round)
    return StepsAhead(
        round, lambda: train_silo(resident, work, training, round, rate, optimizer), lambda: learner.state
    )
