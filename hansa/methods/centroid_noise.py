"""Noise on the centroids that an exchange releases, and what it promises.

    (Σ over members of min(1, C/‖x‖)·x)/n  +  N(0, (z·2C·√L/n)²·I)        C = clip·√width

x: a vector that is averaged, of a sample (pooled) or of each of its tokens; n: over how many members it is averaged;
L: how many vectors of a sample leave (1, or the centroid's positions); z: the noise multiplier. ``clip`` bounds the
root mean square of x, so that one number serves any width; what a layer norm gives is near 1. The mean prediction gets
noise of its own, z·√2/n, since two probability vectors are at most √2 apart, and is made a distribution again.

The unit of privacy is *one training sample, replaced by another of the same length that falls into the same cluster*:
the sum then moves by at most 2C·√L, so this is the Gaussian mechanism with multiplier z, twice in every round that the
silo takes part in. Outside of ε, released as they are: which texts form a cluster (k-means has no bounded sensitivity),
how many members it has, and its length. Model updates are another release with another price (update.py).
"""

from dataclasses import dataclass
from math import sqrt
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hansa.config.federation import Federation
from hansa.core.settings import Positive, Section
from hansa.privacy.dp.accounting import epsilon

UNIT = "one training sample, replaced by another of its length in its cluster"
APART = sqrt(2)  # of two probability vectors, at most


class Noise(Section):
    """A setting of methods that exchange centroids."""

    multiplier: Positive
    clip: Positive = 1.0
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    secret: bool = False  # from the system, which no seed repeats: for real use


def bounded(vectors: Tensor, noise: Noise | None) -> Tensor:
    """Vectors (along the last axis) whose root mean square is above the clip are shrunk to it."""
    if noise is None:
        return vectors
    bound = noise.clip * sqrt(vectors.shape[-1])
    shrink: Tensor = (bound / vectors.norm(dim=-1, keepdim=True).clamp_min(1e-30)).clamp(max=1.0)
    return vectors * shrink


def blurred(means: Tensor, counts: Tensor, lengths: Tensor, noise: Noise, rng: np.random.Generator) -> Tensor:
    """Means of bounded vectors (clusters × width, or clusters × positions × width), each over ``counts`` members
    (clusters, or clusters × positions), of which each sample has ``lengths`` (clusters)."""
    apart = 2 * noise.clip * (lengths * means.shape[-1]).sqrt()
    scale = apart.view(-1, *[1] * (counts.ndim - 1)) / counts.clamp(min=1)
    return means + noise.multiplier * scale.unsqueeze(-1) * _drawn(means, noise, rng)


def blurred_predictions(means: Tensor, counts: Tensor, noise: Noise, rng: np.random.Generator) -> Tensor:
    """Mean distributions (clusters × classes) over ``counts`` members, blurred, and distributions again."""
    rough = means + noise.multiplier * APART * _drawn(means, noise, rng) / counts.unsqueeze(-1)
    positive = rough.clamp(min=1e-6)
    return positive / positive.sum(dim=1, keepdim=True)


def _drawn(like: Tensor, noise: Noise, rng: np.random.Generator) -> Tensor:
    source = np.random.default_rng() if noise.secret else rng
    return torch.from_numpy(source.standard_normal(tuple(like.shape), dtype=np.float32))


@dataclass(frozen=True)
class Spent:
    """What a silo's offers have cost it."""

    epsilon: float
    delta: float
    rounds: int
    unit: str = UNIT

    @property
    def line(self) -> str:
        return (
            f"ε = {self.epsilon:,.3g} at δ = {self.delta:g} for the centroids of {self.rounds} rounds; protected unit: "
            f"{self.unit}; cluster sizes, lengths and who falls into which cluster are outside of ε"
        )


def spent(federation: Federation, rounds: int) -> Spent | None:
    """The cost of so many rounds to a silo that took part in all of them; None where offers are not blurred."""
    settings = federation.method.settings.get("noise")
    if not settings or federation.kind != "federated":
        return None
    noise = Noise.model_validate(settings)
    return Spent(epsilon(noise.multiplier, 2 * rounds, noise.delta), noise.delta, rounds)
