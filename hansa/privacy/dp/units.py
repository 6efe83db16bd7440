"""Differential privacy of single patients or documents: DP-SGD with a patient as the unit, inside a silo's training.

Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1, with all samples of a patient as one unit:

    g ← (Σ over drawn patients p of clip(Σ over samples i of p of ∇ℓᵢ, C) + N(0, (σ·C)²·I)) / (q·N)

Every patient of the silo takes part in a step with probability q (``sampling``), independently and in secret; C: the
clipping norm; N: the number of the silo's patients. The gradients of a patient's samples are summed *before* clipping,
so that a patient with many notes moves the sum by C as well. Each clipped gradient is rounded to a grid before it is
added, so that the sum is exact and one patient more or less moves it by at most the stated sensitivity; the noise is a
discrete Gaussian (`hansa.core.grid`). What follows (the optimizer, further terms of the method, more steps, the update
of the round) is a function of the noisy gradients and costs nothing.

ε is that of q-Poisson-sampled Gaussian noise in every step, for adding or removing all samples of a patient. q, σ and
the number of steps stand in the federation file, so that the price is known before anything is read. Sampling counts
because the silo draws it from secret randomness and does not tell who was drawn; a cohort of silos that a coordinator
chooses would amplify nothing.

Not covered by ε: the numbers of samples and patients (N is in the formula), scores, how long the silo computed, and
what leaves before training (words, labels). The training loss does not leave.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hansa.config.sections import Privacy
from hansa.core.device import CPU
from hansa.core.grid import Grid, grid_error
from hansa.core.mechanism import GaussianEvent
from hansa.core.noise import Source, uniform
from hansa.privacy.dp.updates import noise_source


@dataclass(frozen=True)
class UnitMechanism:
    """Draws patients, bounds their gradients, adds noise, and states its price. Implements `Mechanism`."""

    settings: Privacy

    @property
    def field(self) -> str:
        """The field of a row that names its patient or document."""
        return self.settings.field or ""

    @property
    def unit(self) -> str:
        """What is protected, in words."""
        return f"all data of a {self.settings.unit} (field '{self.field}')"

    @property
    def not_covered(self) -> str:
        """What leaves beside the update."""
        return f"numbers of samples and {self.settings.unit}s, computing time and scores"

    @property
    def delta(self) -> float:
        """The δ at which ε is stated."""
        return self.settings.delta

    @property
    def seeded(self) -> bool:
        """Whether noise and sampling come from the federation's seed."""
        return self.settings.seeded

    @property
    def multiplier(self) -> float:
        """Standard deviation of the noise over the clipping norm: σ."""
        return self.settings.noise_multiplier

    def event(self, rounds: int) -> GaussianEvent:
        """One release with Poisson sampling in each step."""
        count = rounds * self.settings.steps
        return GaussianEvent(self.multiplier, count, self.settings.sampling, grid_error(self.multiplier))

    def expected(self, samples: int) -> int:
        """How many of a silo's samples are used in a round, on average."""
        return round(self.settings.sampling * self.settings.steps * samples)

    def source(self, *purpose: str | int) -> Source:
        """Where a round's sampling and noise come from; ``purpose``: the seed, then what it is for."""
        seed, *rest = purpose
        return noise_source(self.seeded, int(seed), *rest)

    def draw(self, units: int, source: Source) -> NDArray[np.int64]:
        """The numbers of the units that take part in a step: each with probability q, independently."""
        return np.flatnonzero(uniform(units, source) < self.settings.sampling)

    def sum(self, size: int) -> "BoundedSum":
        """An empty sum of gradients with ``size`` values."""
        assert self.settings.clip != "median"
        grid = Grid(self.settings.clip, size, self.multiplier)
        return BoundedSum(grid, np.zeros(size, np.int64))


@dataclass(frozen=True)
class BoundedSum:
    """A sum to which each unit adds a vector of bounded norm."""

    grid: Grid
    integers: NDArray[np.int64]

    def add(self, gradient: Tensor) -> None:
        """Add the gradient of one unit, clipped."""
        np.add(self.integers, self.grid.clipped(gradient.to(CPU)), out=self.integers)

    def release(self, gradient: Tensor, expected: float, source: Source) -> None:
        """Add noise, divide by the expected number of units, and write the result into ``gradient``."""
        self.grid.add_noise(self.integers, source)
        self.grid.write(self.integers, gradient, 1 / expected)
