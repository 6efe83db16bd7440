"""Learning-rate schedules: the factor on a learning rate in each round or step."""

from math import cos, pi, sqrt
from typing import Any, Literal

from pydantic import Field, model_validator

from hansa.core.settings import Section, Share


class Schedule(Section):
    """The factor lr(r)/lr₀ on a learning rate in round r.

    Baselines (but chained ones) and personal models count steps.
    """

    kind: Literal["constant", "linear", "cosine", "inverse-sqrt"] = Field(
        default="constant",
        description="constant; linear: 1 − decay·r; cosine: down to `final` at the last round; inverse-sqrt: "
        "√((warmup + 1)/r).",
    )
    decay: Share | None = Field(
        default=None, description="linear: decrease per round (or step); default: reaches zero after the last one."
    )
    final: Share = Field(default=0.0, description="cosine: the factor at the end.")
    warmup: int = Field(
        default=0, ge=0, description="Rounds (or steps) over which the learning rate rises linearly at first."
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value


def schedule_factor(schedule: Schedule, round: int, rounds: int) -> float:
    """lr(r)/lr₀ for round r = 1 … ``rounds``. ``linear`` with decay 1e-3 is the Medical paper's (1 − 1e-3·r)."""
    if round <= schedule.warmup:
        return round / (schedule.warmup + 1)
    if schedule.kind == "linear":
        decay = schedule.decay if schedule.decay is not None else 1 / (rounds + 1)
        return max(0.0, 1 - decay * round)
    if schedule.kind == "cosine":
        done = (round - schedule.warmup) / max(1, rounds - schedule.warmup)
        return schedule.final + (1 - schedule.final) * 0.5 * (1 + cos(pi * min(1.0, done)))
    if schedule.kind == "inverse-sqrt":
        return sqrt((schedule.warmup + 1) / round)  # Vaswani et al. (2017), Equation 3, in rounds
    return 1.0
