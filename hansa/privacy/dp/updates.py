"""Differential privacy of what a silo sends: DP-FedAvg at the leaves.

McMahan et al. (2018), Learning Differentially Private Recurrent Language Models, Algorithm 1; with the clip of
Iacob et al. (2024), Worldwide Federated Training of Language Models, Section 4.2.

    g ← g·min(1, C/‖g‖) + N(0, (σ·C/n)²·I)

g: received minus own values of all tensors that leave; C: the bound, 1.0 in the first round, then the median norm of
the previous round's updates; n (``among``): 1 puts σ·C on the update itself, to the letter; DP-FedAvg thinks of the
noise σ·C/n on a mean of n updates, and WorldLM's figures come out only with noise of that size.

Ours, off by default (``shrink``): the blurred update is multiplied by 1/(1 + d·(σ/n)²), d its number of values. Of
d·(σ·C/n)² + ‖g‖² on average at most C² is signal, so this is the factor of least mean square error (Wiener's; James and
Stein, 1961) for an update as long as the bound. It depends on nothing that is private, comes after the noise and costs
no ε; without it whoever averages a few large private updates, a region above all, hears little but noise.

The unit of privacy is a silo: ε bounds what one round's updates tell about whether the silo's data were used at all. It
follows from the noise multiplier σ/n alone. Outside of ε: the training loss, sample counts and scores, which are
released as they are; and the bound, when it follows the norms.

Deviations: a silo sends one update a round and tells nobody its norm, so its bound is its own last norm; a median over
silos would have to release the norms. The noise comes from the seed, so that a simulation repeats, unless ``secret``.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hansa.config.federation import Federation
from hansa.config.nodes import repeats
from hansa.config.sections import Privacy
from hansa.config.tree import protected
from hansa.core.seeds import derive
from hansa.privacy.dp.accounting import epsilon

FIRST = 1.0  # the bound before there is a norm to go by
NORM = "privacy.norm"  # what a silo remembers: the norm of its last update
UNIT = "all data of the silo"


def protect(update: Tensor, settings: Privacy, memory: Mapping[str, Tensor], *purpose: str | int) -> None:
    """Clip and blur an update in place. ``memory``: with its last update's norm; ``purpose`` begins with the seed."""
    bound = settings.clip if settings.clip != "median" else float(memory.get(NORM, torch.tensor(FIRST)))
    update.mul_(torch.clamp(bound / update.norm().clamp_min(1e-30), max=1.0))
    seed, *rest = purpose
    drawn = secrets.randbits(63) if settings.secret else derive(int(seed), *rest, "noise")
    noise = torch.randn(update.shape, generator=torch.Generator().manual_seed(drawn))
    multiplier = settings.sigma / settings.among
    update.add_(noise, alpha=multiplier * bound)
    if settings.shrink:
        update.div_(1 + update.numel() * multiplier**2)


@dataclass(frozen=True)
class Spent:
    """What a silo's updates have cost it."""

    epsilon: float
    delta: float
    multiplier: float  # σ/n: the noise as a multiple of the bound
    updates: int
    unit: str = UNIT

    @property
    def line(self) -> str:
        return (
            f"ε = {self.epsilon:,.3g} at δ = {self.delta:g} after {self.updates} updates with noise "
            f"{self.multiplier:.3g}·C; protected unit: {self.unit}"
        )


def spent(federation: Federation, rounds: int) -> dict[str, Spent]:
    """The cost to each protected silo after so many rounds at the root, had it taken part in all of them."""
    times = repeats(federation.silos)
    found = {}
    for name, settings in protected(federation).items():
        multiplier, updates = settings.sigma / settings.among, rounds * times[name]
        found[name] = Spent(epsilon(multiplier, updates, settings.delta), settings.delta, multiplier, updates)
    return found
