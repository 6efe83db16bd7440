"""Values on an integer grid, on which the noise of a privacy mechanism is drawn.

A vector that was clipped to norm C is divided by the size of a cell γ and rounded to the nearest integers; noise is a
discrete Gaussian of scale z·Δ/γ; the result is multiplied by γ again. Rounding moves a vector of d values by at most
γ·√d/2, so that two vectors that were at most C apart are at most Δ = C + γ·√d apart afterwards: that bound is the
sensitivity, and the noise is made for it. A cell is so small (γ ≤ C·2⁻²⁴/√d) that Δ exceeds C by less than 10⁻⁷, and a
power of two, so that nothing is lost on the way back.

The price is that of the Gaussian mechanism with multiplier z. A discrete Gaussian of scale s differs from a rounded
continuous one (a function of the Gaussian mechanism's output) by at most 1/(22·s²) in total variation: their
probabilities differ by a factor between 1 − 1/(24·s²) and 1 + 1.1·x²/(24·s⁴). With s ≥ z·2²⁴·√d and d values this is at
most 2⁻⁵²/z² for a whole vector, whatever its size (`grid_error`).
"""

from dataclasses import dataclass
from math import floor, log2, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hansa.core.noise import MAX_SIGMA, SAMPLING_ERROR, Source, discrete_gaussian

FINENESS = 2.0**24  # cells in C/√d, at least
MAX_SIZE = 2.0**40  # values of a vector, at most
CHUNK = 1 << 16  # values at a time, so that they stay in the processor's cache
NOISE_CHUNK = 1 << 20  # drawn at a time, to need little memory beside the vector


def grid_error(multiplier: float) -> float:
    """How far noise on a grid is from Gaussian noise in total variation, for a whole vector; see `GaussianEvent`."""
    return 2.0**-52 / multiplier**2 + MAX_SIZE * SAMPLING_ERROR if multiplier > 0 else 1.0


@dataclass(frozen=True)
class Grid:
    """The grid of vectors of ``size`` values whose norm, or whose distance from a neighbour, is at most ``norm``."""

    norm: float
    size: int
    multiplier: float  # of the noise: its standard deviation over the sensitivity

    @property
    def cell(self) -> float:
        """The size γ of a cell, a power of two."""
        finest = self.norm / (FINENESS * sqrt(max(1, self.size)))
        return float(2.0 ** floor(log2(max(finest, 2 * self.multiplier * self.norm / MAX_SIGMA))))

    @property
    def sensitivity(self) -> float:
        """Δ: the largest distance of two neighbours after rounding."""
        return self.norm + self.cell * sqrt(self.size)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise."""
        return self.multiplier * self.sensitivity

    def clipped(self, values: Tensor) -> NDArray[np.int64]:
        """The values on the grid, scaled down to the norm if they are longer; zeros if some are not finite."""
        length = norm_of(values)
        if not np.isfinite(length):
            return np.zeros(self.size, np.int64)
        factor = min(1.0, self.norm / max(length, 1e-300)) * (1 - 2.0**-40)  # for the rounding errors of this division
        return self.rounded(values, factor)

    def rounded(self, values: Tensor, factor: float = 1.0) -> NDArray[np.int64]:
        """The integers nearest to ``factor`` times the values over the size of a cell."""
        flat = values.detach().numpy().reshape(-1)
        found, scale = np.empty(flat.size, np.int64), factor / self.cell
        for start in range(0, flat.size, CHUNK):
            part = slice(start, start + CHUNK)
            scaled = flat[part].astype(np.float64)
            scaled *= scale
            found[part] = np.rint(scaled, out=scaled)
        return found

    def add_noise(self, integers: NDArray[np.int64], source: Source) -> None:
        """Add discrete Gaussian noise to integers on the grid, in place."""
        for start in range(0, integers.size, NOISE_CHUNK):
            part = integers[start : start + NOISE_CHUNK]
            part += discrete_gaussian(self.deviation / self.cell, part.size, source)

    def write(self, integers: NDArray[np.int64], values: Tensor, factor: float = 1.0) -> None:
        """Write ``factor`` times the values that the integers stand for into a tensor."""
        flat = values.view(-1)
        for start in range(0, integers.size, CHUNK):
            part = slice(start, start + CHUNK)
            flat[part] = torch.from_numpy(integers[part] * (self.cell * factor))


def norm_of(values: Tensor) -> float:
    """The Euclidean norm in double precision."""
    return float(torch.linalg.vector_norm(values.detach(), dtype=torch.float64))
