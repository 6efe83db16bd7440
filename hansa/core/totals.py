"""Sums over the silos of a round, where each silo's own figures are under masks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RoundTotals:
    """Losses, counts and seconds summed over the updates of a round."""

    loss: float
    seen: int
    steps: int
    seconds: float
