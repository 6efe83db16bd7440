"""Differential privacy of FedKC's centroids: the Gaussian mechanism on cluster means, and its price.

An addition to Wang et al. (2022), who share centroids without noise.

    (Σ over members of min(1, C/‖x‖)·x)/n  +  N(0, (z·2C·√L/n)²·I)        C = clip·√width

x: a vector that is averaged, of a sample (pooled) or of each of its tokens; n: the number of vectors in the mean;
L: the number of vectors of a sample that enter it (1, or the centroid's positions); z: the noise multiplier. ``clip``
bounds the root mean square of x, so that one number serves any width; the output of a layer norm is near 1. The noise
is a discrete Gaussian on a grid (`hansa.core.grid`), from the operating system unless ``seeded``. The mean
prediction gets separate noise, z·√2/n, since two probability vectors are at most √2 apart, and is then normalised.

The unit of privacy is *one training sample, replaced by another of the same length that falls into the same cluster*:
the sum then moves by at most 2C·√L, so this is the Gaussian mechanism with multiplier z, twice in every round that the
silo takes part in. ε does not cover which texts form a cluster (k-means has no bounded sensitivity), the number of
members of a cluster, and its length. Model updates are another release with its own price (privacy/dp/updates.py).
"""

from math import sqrt
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from hansa.core.grid import Grid, grid_error
from hansa.core.mechanism import GaussianEvent
from hansa.core.noise import SecretSource, SeededSource
from hansa.core.settings import Positive, Section, refuse_secret

MAX_DISTANCE = sqrt(2)  # L2 distance of two probability vectors, at most


class Noise(Section):
    """Gaussian noise on exchanged centroids: a setting of FedKC, and the mechanism that it names."""

    multiplier: Positive = Field(description="Noise multiplier z: standard deviation over sensitivity.")
    clip: Positive = Field(default=1.0, description="Bound on the root mean square of a vector before it is averaged.")
    delta: float = Field(default=1e-5, gt=0.0, lt=1.0, description="The δ at which ε is stated.")
    seeded: bool = Field(
        default=False,
        description="Draw the noise from the seed, so that a simulation repeats; refused between organisations.",
    )
    unit: ClassVar[str] = "one training sample, replaced by another of its length in its cluster"
    not_covered: ClassVar[str] = "cluster sizes, lengths and which samples form a cluster"

    @model_validator(mode="before")
    @classmethod
    def _noise_is_secret(cls, value: Any) -> Any:
        return refuse_secret(value)

    def event(self, rounds: int) -> GaussianEvent:
        """Two releases per round: the centroids and the mean predictions."""
        return GaussianEvent(self.multiplier, 2 * rounds, error=grid_error(self.multiplier))

    def blur(self, means: Tensor, counts: Tensor, lengths: Tensor, rng: np.random.Generator) -> Tensor:
        """Add noise to means of clipped vectors (clusters × width, or clusters × positions × width).

        ``counts``: the number of vectors in each mean (clusters, or clusters × positions); ``lengths``: for each
        cluster, the number of vectors that one sample adds.
        """
        sensitivity = 2 * self.clip * (lengths * means.shape[-1]).sqrt()
        scale = sensitivity.view(-1, *[1] * (counts.ndim - 1)) / counts.clamp(min=1)
        return self._noisy(means, scale.unsqueeze(-1), rng)

    def blur_predictions(self, means: Tensor, counts: Tensor, rng: np.random.Generator) -> Tensor:
        """Add noise to mean distributions (clusters × classes) over ``counts`` members, and normalise them again."""
        noisy = self._noisy(means, MAX_DISTANCE / counts.unsqueeze(-1), rng)
        positive = noisy.clamp(min=1e-6)
        return positive / positive.sum(dim=1, keepdim=True)

    def _noisy(self, means: Tensor, scale: Tensor, rng: np.random.Generator) -> Tensor:
        """Add noise to means that move by at most ``scale`` (of each cluster or position) between neighbours."""
        source = SeededSource(int(rng.integers(2**63)), "centroids") if self.seeded else SecretSource()
        # in units of its scale a mean moves by at most 1, whatever its number of members
        grid = Grid(1.0, means.numel(), self.multiplier)
        integers = grid.rounded(means / scale)
        grid.add_noise(integers, source)
        noisy = torch.empty_like(means)
        grid.write(integers, noisy)
        return noisy * scale


def bounded(vectors: Tensor, noise: Noise | None) -> Tensor:
    """The vectors along the last axis, scaled down to a root mean square of at most ``noise.clip``."""
    if noise is None:
        return vectors
    bound = noise.clip * sqrt(vectors.shape[-1])
    shrink: Tensor = (bound / vectors.norm(dim=-1, keepdim=True).clamp_min(1e-30)).clamp(max=1.0)
    return vectors * shrink
