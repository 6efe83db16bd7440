"""Differential privacy of a silo's updates: DP-FedAvg, with clipping and noise at the silo.

McMahan et al. (2018), Learning Differentially Private Recurrent Language Models, Algorithm 1; with the clipping norm of
Iacob et al. (2024), Worldwide Federated Training of Language Models, Section 4.2.

    g ← g·min(1, C/‖g‖) + N(0, (σ·C/n)²·I)

g: received minus own values of all tensors that leave; C: the clipping norm, a fixed number, or (``clip: median``) 1.0
in the first round, then the norm of the silo's previous update; n (``noise_shared_by``): 1 adds noise of σ·C to the
update itself, as the formula is written; DP-FedAvg has noise of σ·C/n on a mean of n updates, and only with noise of
that size are WorldLM's figures reproduced.

Ours, off by default (``shrink``): the noisy update is multiplied by 1/(1 + d·(σ/n)²), d its number of values. Of
d·(σ·C/n)² + ‖g‖² on average at most C² is signal, so this is the factor of least mean square error (Wiener's; James and
Stein, 1961) for an update as long as the clipping norm. It depends on nothing private, comes after the noise and costs
no ε; without it an average of a few large private updates is mostly noise.

The unit of privacy is a silo: ε bounds what one round's update reveals about whether the silo's data were used at all.
It follows from the noise multiplier σ/n alone. Not covered by ε: the training loss, sample counts and scores, which are
released without noise; and the clipping norm, when it follows the norms of the updates (``clip: median``).

The update is rounded to a grid and the noise is a discrete Gaussian (`hansa.core.grid`), from the operating system;
with ``seeded`` it comes from the federation's seed, so that a simulation repeats.

Deviations: a silo sends one update a round and does not release its norm, so with ``clip: median`` its clipping norm is
its own last norm; a median over silos would have to release the norms. An update that is not finite counts as zero:
whether training diverged tells about the data.
"""

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from torch import Tensor

from hansa.config.sections import Privacy
from hansa.core.grid import Grid, grid_error, norm_of
from hansa.core.mechanism import GaussianEvent
from hansa.core.noise import SecretSource, SeededSource, Source

FIRST_NORM = 1.0  # with `clip: median`, the clipping norm of a silo's first update


@dataclass(frozen=True)
class UpdateNorm:
    """State that a silo keeps between rounds: the norm of its last update, before clipping."""

    norm: float


def noise_source(seeded: bool, seed: int, *purpose: str | int) -> Source:
    """Where a mechanism's noise comes from: the operating system, or the seed and a purpose."""
    return SeededSource(seed, *purpose, "noise") if seeded else SecretSource()


@dataclass(frozen=True)
class UpdateMechanism:
    """Clips updates, adds noise, and states its price. Implements `hansa.core.mechanism.Mechanism`."""

    settings: Privacy
    unit: ClassVar[str] = "all data of the silo"

    @property
    def not_covered(self) -> str:
        """What leaves beside the update."""
        beside = "training loss, sample counts and scores"
        return f"{beside}, and the clipping norm (clip: median)" if self.settings.clip == "median" else beside

    @property
    def delta(self) -> float:
        """The δ at which ε is stated."""
        return self.settings.delta

    @property
    def seeded(self) -> bool:
        """Whether the noise comes from the federation's seed."""
        return self.settings.seeded

    @property
    def multiplier(self) -> float:
        """Standard deviation of the noise over the clipping norm: σ/n."""
        return self.settings.noise_multiplier / self.settings.noise_shared_by

    def event(self, rounds: int) -> GaussianEvent:
        """One release in each round."""
        return GaussianEvent(self.multiplier, rounds, error=grid_error(self.multiplier))

    def apply(self, update: Tensor, last: UpdateNorm | None, *purpose: str | int) -> UpdateNorm:
        """Clip an update and add noise to it, in place; return the state that the silo keeps.

        ``last``: the state of the silo's previous round; ``purpose``: the seed, then the round and the silo, from which
        ``seeded`` noise is derived. Other noise depends on nothing.
        """
        seed, *rest = purpose
        grid = Grid(self.clipping_norm(last), update.numel(), self.multiplier)
        integers = grid.clipped(update)
        grid.add_noise(integers, noise_source(self.seeded, int(seed), *rest))
        seen = UpdateNorm(norm_of(update))
        shrunk = 1 + update.numel() * self.multiplier**2 if self.settings.shrink else 1.0
        grid.write(integers, update, 1 / shrunk)
        return seen

    def clipping_norm(self, last: UpdateNorm | None) -> float:
        """The clipping norm of this round; ``last``: the state of the silo's previous round."""
        if self.settings.clip != "median":
            return self.settings.clip
        return FIRST_NORM if last is None or not 0 < last.norm < inf else last.norm
