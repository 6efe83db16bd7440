"""What a simulation plays: slow silos and lying silos."""

from typing import Annotated, Literal

from pydantic import Field

from hansa.core.settings import Positive, Section, Share

Seconds = Annotated[float, Field(ge=0.0)]


class Poison(Section):
    """A silo that lies about its update."""

    kind: Literal["sign-flip", "scale"] = Field(description="sign-flip: send the negative update; scale: the true one.")
    factor: Positive = Field(default=1.0, description="Factor on the update.")

    @property
    def times(self) -> float:
        """What the update is multiplied by."""
        return -self.factor if self.kind == "sign-flip" else self.factor


class Simulation(Section):
    """Slow and lying silos, played by a simulation; time is virtual, nobody sleeps."""

    poison: dict[str, Poison] = Field(default={}, description="Silos that lie, by name, at any level of the tree.")
    delay: dict[str, Seconds] = Field(
        default={},
        description="Virtual seconds of a node's work in one round, by name; of a region: of its whole reply.",
    )
    default_delay: Seconds = Field(default=1.0, description="Virtual seconds of silos not named in `delay`.")
    jitter: Share = Field(
        default=0.0, description="How far a delay may differ from round to round, as a fraction of it."
    )
    arrivals: list[list[str]] = Field(
        default=[],
        description="With an asynchronous method: for every round, the silos whose updates arrived, in that order, as "
        "`hansa run --arrivals RUN` reads them from the ledger of a run. The virtual clock decides if it is empty.",
    )
    region_arrivals: dict[str, list[list[str]]] = Field(
        default={},
        description="The same for asynchronous regions: by name, for every round of the region's own.",
    )
