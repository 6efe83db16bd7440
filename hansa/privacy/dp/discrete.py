"""Noise on an integer grid: rounding with a bounded norm, and the discrete Gaussian.

Kairouz, Liu and Steinke (2021), The Distributed Discrete Gaussian Mechanism, Algorithm 1 and Proposition 22. A vector
is divided by the size of a grid cell, each value is rounded up or down at random so that its expectation stays, and the
rounding is repeated until the norm is within a bound that does not depend on the data (*conditional* rounding). That
bound is the sensitivity of the mechanism; the discrete Gaussian of scale σ is then (Δ²/(2σ²))-concentrated DP (Canonne,
Kamath and Steinke, 2020, Theorem 14).

The sampler and its random bits are in `hansa.core.noise`.
"""

from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from hansa.core.noise import SAMPLING_ERROR, SecretSource, SeededSource, Source, discrete_gaussian, uniform

__all__ = [
    "SAMPLING_ERROR",
    "SecretSource",
    "SeededSource",
    "Source",
    "conditional_rounding",
    "discrete_gaussian",
    "randomised_rounding",
    "rounded_norm",
]

BIAS = exp(-0.5)  # β: at most this fraction of roundings exceeds the bound and is repeated


def rounded_norm(norm: float, size: int, bias: float = BIAS) -> float:
    """The bound on the norm after rounding, in grid cells, of ``size`` values with norm ``norm`` (Proposition 22).

    A rounding at random exceeds the smaller bound with probability ``bias`` at most; the larger is never exceeded.
    """
    never = norm + sqrt(size)
    rarely = sqrt(norm**2 + size / 4 + sqrt(2 * log(1 / bias)) * (norm + sqrt(size) / 2))
    return min(never, rarely)


def randomised_rounding(values: NDArray[np.floating], source: Source) -> NDArray[np.int64]:
    """Round each value to one of its two neighbouring integers at random, so that the expectation is the value."""
    below = np.floor(values)
    up = uniform(values.size, source).reshape(values.shape) < values - below
    rounded: NDArray[np.int64] = below.astype(np.int64) + up
    return rounded


def conditional_rounding(values: NDArray[np.floating], bound: float, source: Source) -> NDArray[np.int64]:
    """Round at random as `randomised_rounding`, again and again until the norm is at most ``bound``.

    ``bound``: as of `rounded_norm` for a norm that ``values`` do not exceed; each trial then succeeds with probability
    1 − β at least. Raises ValueError if even the nearest integers towards zero exceed the bound, which then never
    holds.
    """
    if _norm(np.trunc(values)) > bound:
        raise ValueError(f"the values exceed the norm {bound:.6g} however they are rounded: clip them first")
    while True:
        rounded = randomised_rounding(values, source)
        if _norm(rounded) <= bound:
            return rounded


def _norm(values: NDArray[np.floating] | NDArray[np.int64]) -> float:
    return sqrt(float(np.square(values, dtype=np.float64).sum()))
