"""What a run only plays: silos that are slow, silos that lie."""

from typing import Annotated, Literal

from pydantic import Field

from hansa.core.settings import Positive, Section, Share


class Poison(Section):
    """A silo that lies: its update is turned round (``sign-flip``), or not, and multiplied by ``factor``."""

    kind: Literal["sign-flip", "scale"]
    factor: Positive = 1.0

    @property
    def times(self) -> float:
        return -self.factor if self.kind == "sign-flip" else self.factor


class Simulation(Section):
    """What is only played: slow silos, by virtual seconds of work in one round (nobody sleeps), and lying ones."""

    poison: dict[str, Poison] = {}  # by silo, at any level
    delay: dict[str, Annotated[float, Field(ge=0.0)]] = {}  # by node, at any level; of a region: of its whole answer
    usual: Annotated[float, Field(ge=0.0)] = 1.0  # of silos not named in delay
    jitter: Share = 0.0  # how far a delay may differ, as a share of it; from the seed
