"""Limits of a silo on the sums that its masked update enters, whatever settings the coordinator sends.

Secure aggregation hides an update in a sum. Settings can empty the sum: weights that give one silo everything, a
threshold that lets a few silos stand for all, a list of two silos that answered. A silo therefore judges every step
(sharing secrets, masking, revealing shares) by `MaskingLimits`, which come from the settings that its administrator
approved, or from its policy, and never from a request.

What collusion does. The limits count silos, not honest silos. A coordinator and k silos that work with it subtract
their own updates and learn the sum of the other n − k. With `min_cohort` m, a silo is hidden among others only if fewer
than m − 1 of a smallest cohort collude; with m = 3, two silos that collude with the coordinator learn the third one's
update. 2t − (n − 1) colluding silos can also unmask another directly, where t is the threshold (see protocol.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from hansa.config.sections import MAX_MASKED_SHARE, MIN_MASKED_COHORT, SecureAggregation
from hansa.core.messages import NodeId
from hansa.privacy.secure_aggregation.protocol import Refused

ROUNDING = 1e-9  # of shares that are compared with a limit


@dataclass(frozen=True)
class MaskingLimits:
    """What a silo accepts of a sum that its update is a part of.

    ``min_cohort``: silos on the roster, among those masked with, and among those that answered. ``threshold``: fraction
    of the other silos needed to reconstruct a secret. ``max_share``: the largest weight of one silo on the roster;
    ``max_share_answered``: the same among the silos that remain after others dropped out. ``min_rest``: the weight of
    all but the ``min_cohort`` − 1 heaviest silos, so that a sum of three silos is not one of two.
    """

    min_cohort: int = MIN_MASKED_COHORT
    threshold: float = 0.6
    max_share: float = MAX_MASKED_SHARE
    max_share_answered: float = 0.7
    min_rest: float = 0.05

    @staticmethod
    def of(settings: SecureAggregation) -> "MaskingLimits":
        """The limits that a federation file states; never looser than the defaults on cohort and share."""
        return MaskingLimits(
            max(MIN_MASKED_COHORT, settings.min_cohort), settings.threshold, min(MAX_MASKED_SHARE, settings.max_share)
        )

    def within(self, other: "MaskingLimits") -> "MaskingLimits":
        """The stricter of two limits, each in turn."""
        return MaskingLimits(
            max(self.min_cohort, other.min_cohort),
            max(self.threshold, other.threshold),
            min(self.max_share, other.max_share),
            min(self.max_share_answered, other.max_share_answered),
            max(self.min_rest, other.min_rest),
        )

    def check_roster(self, weights: Mapping[NodeId, float], threshold: int) -> None:
        """Before secrets are shared: raise `Refused` unless the roster, its weights and the threshold are allowed."""
        self._check_count(len(weights), "are on the roster")
        needed = required_threshold(self.threshold, len(weights) - 1)
        if threshold < needed:
            raise Refused(
                f"the threshold is {threshold} of {len(weights) - 1} other silos, and this silo requires {needed} "
                f"({self.threshold:g} of them)"
            )
        self._check_shares(weights, self.max_share, "on the roster")

    def check_sum(self, weights: Mapping[NodeId, float], stage: str) -> None:
        """Raise `Refused` unless the silos that remain may be summed; ``stage``: what they have done, in words."""
        self._check_count(len(weights), stage)
        self._check_shares(weights, self.max_share_answered, f"of those that {stage}")

    def _check_count(self, count: int, stage: str) -> None:
        if count < self.min_cohort:
            raise Refused(f"{count} silos {stage}, and this silo requires at least {self.min_cohort}")

    def _check_shares(self, weights: Mapping[NodeId, float], most: float, where: str) -> None:
        total = sum(weights.values())
        shares = sorted((weight / total for weight in weights.values()), reverse=True)
        if shares[0] > most + ROUNDING:
            raise Refused(
                f"one silo would have {shares[0]:.0%} of the weight {where}, and this silo allows {most:.0%}: the sum "
                "would show that silo's update"
            )
        rest = sum(shares[self.min_cohort - 1 :])
        if rest < self.min_rest - ROUNDING:
            raise Refused(
                f"all but {self.min_cohort - 1} silos would have {rest:.1%} of the weight {where}, and this silo "
                f"requires {self.min_rest:.0%}: the sum would show too few silos"
            )


def required_threshold(fraction: float, others: int) -> int:
    """How many of so many other silos must be needed to reconstruct a secret."""
    return max(2, ceil(fraction * others - ROUNDING))


def capped(weights: Mapping[NodeId, float], cap: float) -> dict[NodeId, float]:
    """Weights that sum to one, none above ``cap``: what is cut off goes to the others in proportion.

    With too few silos for the cap, all weigh the same.
    """
    total = sum(weights.values())
    found = {name: weight / total for name, weight in weights.items()}
    if cap * len(found) <= 1.0:
        return dict.fromkeys(found, 1.0 / len(found))
    while max(found.values()) > cap + ROUNDING:
        fixed = {name for name, share in found.items() if share >= cap - ROUNDING}
        rest = sum(weights[name] for name in found if name not in fixed)
        free, left = 1.0 - cap * len(fixed), len(found) - len(fixed)
        found = {
            name: cap if name in fixed else free * (weights[name] / rest if rest > 0.0 else 1.0 / left)
            for name in found
        }
    return found
