"""Noise on the centroids that an exchange releases, and what it promises.

    (Σ over members of min(1, C/‖x‖)·x)/n  +  N(0, (z·2C·√L/n)²·I)        C = clip·√width

x: a vector that is averaged, of a sample (pooled) or of each of its tokens; n: over how many members it is averaged;
L: how many vectors of a sample leave (1, or the centroid's positions); z: the noise multiplier. ``clip`` bounds the
root mean square of x, so that one number serves any width; what a layer norm gives is near 1. The mean prediction gets
noise of its own, z·√2/n, since two probability vectors are at most √2 apart, and is made a distribution again.

The unit of privacy is *one training sample, replaced by another of the same length that falls into the same cluster*:
the sum then moves by at most 2C·√L, so this is the Gaussian mechanism with multiplier z, twice in every round that the
silo takes part in. Outside of ε, released as they are: which texts form a cluster (k-means has no bounded sensitivity),
how many members it has, and its length. Model updates are another release with another price (privacy/dp/updates.py).
"""

from math import sqrt
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hansa.core.mechanism import GaussianEvent
from hansa.core.settings import Positive, Section

APART = sqrt(2)  # of two probability vectors, at most


class Noise(Section):
    """Gaussian noise on exchanged centroids: a setting of FedKC, and the mechanism that it names."""

    multiplier: Annotated[Positive, Field(description="Noise multiplier: standard deviation over sensitivity.")]
    clip: Annotated[Positive, Field(description="Bound on the root mean square of a vector before it is averaged.")] = (
        1.0
    )
    delta: Annotated[float, Field(gt=0.0, lt=1.0, description="The δ at which ε is stated.")] = 1e-5
    secret: Annotated[
        bool, Field(description="Draw the noise from the operating system, so that no seed repeats it: for real use.")
    ] = False
    unit: ClassVar[str] = "one training sample, replaced by another of its length in its cluster"
    not_covered: ClassVar[str] = "cluster sizes, lengths and which samples form a cluster"

    @property
    def seeded(self) -> bool:
        """Whether the noise comes from the federation's seed."""
        return not self.secret

    def event(self, rounds: int) -> GaussianEvent:
        """In every round, the centroids and the mean predictions are one release each."""
        return GaussianEvent(self.multiplier, 2 * rounds)

    def blur(self, means: Tensor, counts: Tensor, lengths: Tensor, rng: np.random.Generator) -> Tensor:
        """Add noise to means of bounded vectors (clusters × width, or clusters × positions × width).

        Each is over ``counts`` members (clusters, or clusters × positions), of which each sample has ``lengths``.
        """
        sensitivity = 2 * self.clip * (lengths * means.shape[-1]).sqrt()
        scale = sensitivity.view(-1, *[1] * (counts.ndim - 1)) / counts.clamp(min=1)
        return means + self.multiplier * scale.unsqueeze(-1) * self._drawn(means, rng)

    def blur_predictions(self, means: Tensor, counts: Tensor, rng: np.random.Generator) -> Tensor:
        """Add noise to mean distributions (clusters × classes) over ``counts`` members; distributions again."""
        rough = means + self.multiplier * APART * self._drawn(means, rng) / counts.unsqueeze(-1)
        positive = rough.clamp(min=1e-6)
        return positive / positive.sum(dim=1, keepdim=True)

    def _drawn(self, like: Tensor, rng: np.random.Generator) -> Tensor:
        source = np.random.default_rng() if self.secret else rng
        return torch.from_numpy(source.standard_normal(tuple(like.shape), dtype=np.float32))


def bounded(vectors: Tensor, noise: Noise | None) -> Tensor:
    """Vectors (along the last axis) whose root mean square is above the clip are shrunk to it."""
    if noise is None:
        return vectors
    bound = noise.clip * sqrt(vectors.shape[-1])
    shrink: Tensor = (bound / vectors.norm(dim=-1, keepdim=True).clamp_min(1e-30)).clamp(max=1.0)
    return vectors * shrink
