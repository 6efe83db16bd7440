"""Differential privacy of the sum: every silo adds a share of the noise before its update is masked.

Kairouz, Liu and Steinke (2021), The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation, Algorithms 1 (silo) and 2 (server) and Theorem 1.

    x ← (x/γ)·min(1, C/‖x‖)                     clip, in grid steps of size γ = C/S
    x ← H·D·x                                   rotate (rotation.py)
    r ← rounding of x at random, repeated until ‖r‖² ≤ Δ² = S² + d/4 + √(2·ln(1/β))·(S + √d/2)
    z ← r + N_Z(0, s²)   (mod 2³²),  s = σ·S/√k  what the silo masks; N_Z: the discrete Gaussian
    mean ← (γ/n)·(H·D)⁻¹·Σ z                    what the server computes

C: the clipping norm; σ: the noise multiplier; d: the number of values; n: the silos in the sum; k: the fewest silos
whose sum can be unmasked in this round. A silo reveals its shares for more than ``threshold`` silos alone, so it
computes k = threshold + 1 by itself: the noise of any sum that can be opened has variance n·s² ≥ (σ·S)², also after
drop-outs. Local noise of the same ε would be √k times as large at every silo.

Price. A sum of n discrete Gaussians is not a discrete Gaussian; Theorem 1 bounds the difference by τ. The release of a
sum is ½ε²-concentrated differentially private, with

    ε = min{ √(Δ²/(n·s²) + τ·d/2),  Δ/(√n·s) + τ·√d },   τ = 10·Σ_{j=1}^{n−1} exp(−2π²·s²·j/(j+1))

ε is stated for k silos in the sum (more have more noise), τ for the whole cohort and its smallest share, and both for
updates of at most 2³⁰ values; a larger update is refused. Neighbours differ in one silo: its update is in the sum, or
zeros in its place; its noise is there in both. If c of the silos in the sum give their noise to the server, the noise
of the others remains: σ shrinks by √((k − c)/k) (`DistributedMechanism.event`).

Wrap-around. A sum beyond ±2³¹ comes out wrong; that harms the model, never privacy. Sums of n values are at most
n·(S + 1) without noise, and after the rotation sub-Gaussian with variance (n·S)²/B; noise is sub-Gaussian with variance
n·s² (Canonne, Kamath and Steinke, 2020). The union bound over d values is stated (`wrap_probability`), and S is the
largest power of two up to 2²⁰ for which it is at most 10⁻¹².

Deviations: S follows from the wrap-around bound instead of from a number of bits; β = 10⁻⁹, since on so fine a grid a
rounding hardly changes the norm. The sampler's own error of 2⁻⁹⁵ a draw is 2⁻⁶⁵ for a whole update and not counted.
"""

from dataclasses import dataclass
from functools import cached_property
from math import exp, pi, sqrt
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from hansa.config.federation import Federation
from hansa.config.sections import MIN_MASKED_COHORT, DistributedNoise
from hansa.core.errors import ConfigError
from hansa.core.mechanism import ZCdpEvent
from hansa.core.messages import NodeId
from hansa.core.noise import SecretSource, SeededSource, Source, discrete_gaussian
from hansa.core.participation import cohort_size
from hansa.privacy.dp.discrete import rounded_norm
from hansa.privacy.dp.rotation import Rotation, Values, block_size
from hansa.privacy.secure_aggregation.limits import required_threshold

MAX_VALUES = 2**30  # d: of an update
MAX_WRAP = 1e-12  # probability that any value of a round's sum wraps around, at most
FINEST, COARSEST = 20, 8  # log₂ of the grid steps S in the clipping norm
LIMIT = 2**31  # a sum lies within ±LIMIT, or it wraps around
BIAS = 1e-9  # β
MIN_SHARE = 2.0  # s: below it τ·d is not negligible
TRIALS = 20  # roundings before something is wrong: each succeeds with probability 1 − β
CHUNK = 1 << 17  # values at a time, which stay in the processor's cache

Words = NDArray[np.uint32]


@dataclass(frozen=True)
class DistributedMechanism:
    """Clips, rotates, rounds and adds a share of the noise; states the price of the sum.

    Implements `hansa.core.mechanism.Mechanism`. ``cohort``: the silos asked in a round; ``smallest``: how many of them
    must be in the sum, k.
    """

    settings: DistributedNoise
    cohort: int
    smallest: int
    unit: ClassVar[str] = "all data of the silo, towards a server that sees only sums"
    not_covered: ClassVar[str] = "training losses, sample counts and scores"

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
        """Standard deviation of the noise in the smallest sum over the clipping norm, σ."""
        return self.settings.multiplier

    # ── the grid ──────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def steps(self) -> int:
        """S: grid steps in the clipping norm. The federation file alone determines it, for silos and server alike."""
        for bits in range(FINEST, COARSEST - 1, -1):
            if self._wrap(2.0**bits, MAX_VALUES) <= MAX_WRAP and self._least_share(2.0**bits) >= MIN_SHARE:
                return int(2**bits)
        small = self._least_share(2.0**FINEST) < MIN_SHARE
        raise ConfigError(
            f"secure_aggregation.noise.multiplier is {self.multiplier:g} for a cohort of {self.cohort} silos: so "
            f"{'little' if small else 'much'} noise does not fit a grid of 32-bit numbers; "
            f"{'raise' if small else 'lower'} it"
        )

    def share(self, smallest: int) -> float:
        """s: the standard deviation of a silo's share of the noise in grid steps, for sums of at least ``smallest``."""
        return self.multiplier * self.steps / sqrt(smallest)

    def wrap_probability(self, size: int = MAX_VALUES) -> float:
        """A bound on the probability that a value of a round's sum wraps around, for updates of ``size`` values."""
        return self._wrap(float(self.steps), size)

    def _wrap(self, steps: float, size: int) -> float:
        """The smaller of two union bounds: over the noise alone, and over noise and rotation."""
        cohort = self.cohort
        noise = (self.multiplier * steps) ** 2 * cohort / MIN_MASKED_COHORT
        surely, rounding = LIMIT - cohort * (steps + 1), LIMIT - cohort
        bounds = [1.0]
        for room, variance in ((surely, noise), (rounding, noise + (cohort * steps) ** 2 / block_size(size))):
            if room > 0:
                bounds.append(2 * size * exp(-(room**2) / (2 * variance)))
        return min(bounds)

    def _least_share(self, steps: float) -> float:
        return self.multiplier * steps / sqrt(self.cohort)

    # ── at the silo and at the server ─────────────────────────────────────────────────────────────────────────────

    def encode(self, update: Values, smallest: int, rotation: Rotation, source: Source) -> Words:
        """Return a silo's part of the sum modulo 2³²: the update on the grid, clipped and rotated, and its noise.

        ``smallest``: the fewest silos whose sum can be unmasked in this round. Raises ValueError for an update that is
        too large for the stated price.
        """
        if len(update) > MAX_VALUES:
            raise ValueError(f"the update has {len(update):,} values; ε is stated for at most {MAX_VALUES:,}")
        if self.wrap_probability(len(update)) > MAX_WRAP:
            raise ValueError(
                f"the update has {len(update):,} values, too few to spread a sum of {self.cohort} silos over"
            )
        rounded = self.rounded(update, rotation, source)
        share, words = self.share(smallest), rounded.view(np.uint32)
        for begin in range(0, len(words), CHUNK):
            part = words[begin : begin + CHUNK]
            part += discrete_gaussian(share, len(part), source).astype(np.uint32)  # modulo 2³²
        return words

    def rounded(self, update: Values, rotation: Rotation, source: Source) -> NDArray[np.int32]:
        """Return an update clipped, rotated and rounded to the grid. Its norm is at most `sensitivity`."""
        norm = float(torch.linalg.vector_norm(torch.from_numpy(update), dtype=torch.float64))
        factor = self.steps / max(norm, self.settings.clip)
        values = rotation.forward(update * np.float32(factor))
        bound, rounded = self.sensitivity(len(update)) ** 2, np.empty(len(update), np.int32)
        for _ in range(TRIALS):
            square = 0.0
            for begin in range(0, len(values), CHUNK):
                part = values[begin : begin + CHUNK]
                up = np.frombuffer(source.bytes(4 * len(part)), "<u4") >> np.uint32(8)
                whole = np.floor(part + up * np.float32(2.0**-24))
                rounded[begin : begin + CHUNK] = whole
                wide = whole.astype(np.float64)
                square += float(wide @ wide)  # exact: integers below 2⁵³
            if square <= bound:
                return rounded
        raise AssertionError("the norm of a clipped update exceeds its bound however it is rounded")

    def decode(self, total: Words, answered: int, rotation: Rotation) -> Values:
        """Return the mean of the updates of the silos that ``answered``, with the noise of their sum."""
        scale = np.float32(self.settings.clip / self.steps / answered)
        return rotation.inverse(np.multiply(total.view(np.int32), scale, dtype=np.float32))

    def source(self, seed: int, *purpose: str | int) -> Source:
        """Where a silo's random bits come from: the operating system, or in a repeatable simulation the seed."""
        return SeededSource(seed, *purpose, "distributed noise") if self.seeded else SecretSource()

    # ── the price ─────────────────────────────────────────────────────────────────────────────────────────────────

    def sensitivity(self, size: int = MAX_VALUES) -> float:
        """Δ: the norm of one silo's rounded update in grid steps, at most."""
        return rounded_norm(float(self.steps), size, BIAS)

    def event(self, rounds: int, colluding: int = 0) -> ZCdpEvent:
        """One release of a sum in each round.

        ``colluding``: silos in the smallest sum that give their noise to the server. Raises ValueError if no silo's
        noise is left.
        """
        if not 0 <= colluding < self.smallest:
            raise ValueError(f"{colluding} of {self.smallest} silos collude; the noise of at least one must remain")
        deviation = self.multiplier * self.steps * sqrt(1 - colluding / self.smallest)
        ratio, tau = self.sensitivity() / deviation, self._tau()
        epsilon = min(sqrt(ratio**2 + tau * MAX_VALUES / 2), ratio + tau * sqrt(MAX_VALUES))
        return ZCdpEvent(epsilon**2 / 2, rounds)

    def _tau(self) -> float:
        """τ: how far a sum of so many discrete Gaussians is from a discrete Gaussian."""
        variance = self._least_share(float(self.steps)) ** 2
        return 10 * sum(exp(-2 * pi**2 * variance * j / (j + 1)) for j in range(1, self.cohort))


@dataclass(frozen=True)
class SiloNoise:
    """A silo's share of the noise: the mechanism, with what a round's rotation and random bits follow from."""

    mechanism: DistributedMechanism
    seed: int
    silo: NodeId

    def encode(self, update: Values, round: int, smallest: int) -> Words:
        """See `DistributedMechanism.encode`; the random bits are fresh for every call, unless they are seeded."""
        rotation = Rotation(len(update), self.seed, round)
        return self.mechanism.encode(update, smallest, rotation, self.mechanism.source(self.seed, round, self.silo))


def smallest_sum(cohort: int, threshold: float) -> int:
    """How many of ``cohort`` silos must be in a sum that can be unmasked; ``threshold``: of `SecureAggregation`."""
    return required_threshold(threshold, cohort - 1) + 1


def distributed_mechanism(federation: Federation) -> DistributedMechanism | None:
    """The mechanism that a federation file asks for; None if it asks for none."""
    settings = federation.secure_aggregation
    if settings is None or settings.noise is None or federation.kind != "federated" or not federation.rounds:
        return None
    cohort = cohort_size(federation.participation, len(federation.silos))
    return DistributedMechanism(settings.noise, cohort, smallest_sum(cohort, settings.threshold))
