"""TODO docstring."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hansa.core.schedules import Schedule
from hansa.core.settings import Count as Count
from hansa.core.settings import Named as Named
from hansa.core.settings import Positive as Positive
from hansa.core.settings import Section as Section
from hansa.core.settings import Share as Share
from hansa.core.simulation import Poison as Poison
from hansa.core.simulation import Simulation as Simulation
from hansa.data.source import Files as Files
from hansa.data.source import Source as Source


class Secure(Section):
    """Secure aggregation: the server learns the silos' sum and nothing else; see veil.py."""

    threshold: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.6  # of the others: so many restore a silo's secrets
    bound: Positive = 1.0  # of each value of an update; what is beyond it is cut


class Privacy(Section):
    """Differential privacy of a silo's updates; see privacy/update.py."""

    sigma: Positive = 0.5
    clip: Positive | Literal["median"] = "median"  # the bound C on an update's norm, or the norms seen so far
    among: Count = 1  # the noise has the standard deviation σ·C/among: 1 to the letter, n where a mean of n carries it
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    shrink: bool = False  # send the blurred update as long as its signal can be, instead of as long as the noise is
    secret: bool = False  # noise from the system, which no seed repeats: for real use


class AdaptiveSampling(Section):
    """The amount of samples follows the silo's validation loss; see stability.py."""

    every: Count = 5  # rounds between looks
    tolerance: Annotated[float, Field(ge=0.0)] = 0.005
    least: Share = 0.25
    most: Annotated[float, Field(ge=1.0)] = 4.0


class Samples(Section):
    """How much a silo trains on in one round: ``max(floor, fraction·N)`` samples, or whole passes (``epochs``).

    ``replace``: draw them with replacement (the Medical paper's rule); otherwise take the next ones of an endless
    series of passes, so that every sample comes once per pass. ``times``: of all that, so many times as much.
    """

    floor: Count | None = None
    fraction: Share = 0.0
    epochs: Count | None = None
    replace: bool = True
    times: Positive = 1.0
    adapt: AdaptiveSampling | None = None

    @field_validator("adapt", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return {} if value is True else None if value is False else value

    @model_validator(mode="after")
    def _one_rule(self) -> "Samples":
        if (self.epochs is not None) == (self.floor is not None or self.fraction > 0):
            raise ValueError("choose one rule: 'epochs', or 'floor' and 'fraction' for max(floor, fraction·N)")
        return self

    def amount(self, size: int) -> int:
        amount = self.epochs * size if self.epochs is not None else max(self.floor or 1, int(self.fraction * size))
        return amount if self.times == 1.0 else max(1, round(amount * self.times))

    def scaled(self, factor: float, **changes: Any) -> "Samples":
        """The same rule for ``factor`` times as many samples."""
        return self.model_copy(update={"times": self.times * factor} | changes)


class Training(Section):
    """The silo's work in one round. The optimiser is made anew each round unless ``keep_optimizer``."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Positive = 0.1
    momentum: Share = 0.0
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    clip: Positive | None = None  # bound on the norm of a batch's gradient
    batch: Count = 16
    micro_batch: Count | None = None  # of a batch, samples that go through the model together; default all: memory
    samples: Samples = Samples(epochs=1)
    steps: Count | None = None  # instead of ``samples``: local steps of a silo, spread evenly over the rounds
    max_batches: Count | None = None
    keep_optimizer: bool = False
    schedule: Schedule = Schedule()

    def per_round(self, size: int) -> int:
        """How many of ``size`` samples a silo trains on in a round."""
        amount = self.samples.amount(size)
        return amount if self.max_batches is None else min(amount, self.max_batches * self.batch)


class Personal(Section):
    """A model of its own for every silo, after the shared one; see personal.py."""

    start: Annotated[int, Field(ge=0)] | None = None  # the round whose shared model it starts from; default the last
    rounds: Count = 20  # of local work, each on as much data as a federated round
    train: Training | None = None  # its optimiser; default the baseline's. The amount of data is the federation's.
    mix: Literal["sweep", "adaptive", "none"] = "sweep"
    draws: Count = 1  # how often every sample is asked, each time with other masks, where models are compared
    alpha: Share = 0.5  # adaptive: where α starts
    alpha_lr: Positive = 0.1
    nearby: Annotated[int, Field(ge=0)] = 0  # start from a mixture with so many similar silos, and compare


class Server(Section):
    optimizer: Literal["sgd", "momentum", "adam", "adagrad", "yogi"] = "sgd"
    lr: Positive = 1.0
    momentum: Share = 0.9
    betas: tuple[Share, Share] = (0.9, 0.99)
    eps: Positive = 1e-8  # τ, the degree of adaptivity
    bias_correction: bool = True
    schedule: Schedule = Schedule()


STEEPEST = 50.0  # temperature of a softmax over losses


class Weights(Section):
    by: Literal["samples", "uniform", "loss"] = "samples"
    temperature: float = 1.0  # samples: N^temperature; loss: softmax(−temperature·loss), negative favours bad fits

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"by": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _sign(self) -> "Weights":
        if self.by == "samples" and self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}: below 0, large silos would count least")
        if self.by == "loss" and abs(self.temperature) > STEEPEST:
            raise ValueError(f"temperature is {self.temperature}: beyond {STEEPEST:g} a single silo would count")
        return self


class Aggregation(Section):
    rule: Literal["mean", "median", "trimmed-mean", "krum", "norm-bound"] = "mean"
    weights: Weights = Weights()
    trim: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.2  # trimmed-mean: share cut from each end
    bad: Annotated[int, Field(ge=0)] = 1  # krum: how many silos may lie
    bound: Positive = 1.0  # norm-bound: the largest norm an update keeps

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"rule": value} if isinstance(value, str) else value


class Upload(Section):
    """What of an update leaves a silo, in which code; see upload.py. `[top-k, int8]` and 'top-k+int8' say the same."""

    steps: tuple[Named, ...] = ()  # none: everything leaves, as it is
    feedback: bool = True  # what a code loses is added to the silo's next update

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        short = not isinstance(value, dict) or "name" in value
        return {"steps": value} if short and not isinstance(value, Upload) else value

    @field_validator("steps", mode="before")
    @classmethod
    def _names_only(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [name for name in value.split("+") if name != "whole"]
        if not isinstance(value, list | tuple):
            return [value] if isinstance(value, dict) else value
        return [{"name": step} if isinstance(step, str) else step for step in value]


class Evaluation(Section):
    every: Count = 5
    target: float | None = None  # the report says when the mean of the headline metric got there
    share: Share = 0.1  # of the test data, while running; the final figures use all of it
    batch: Count = 64
    decode: Annotated[int, Field(ge=0)] = 0  # translate at every n-th look (0: at the end alone); it takes long


class Checkpointing(Section):
    every: Count = 10
    keep: Count = 2


class ReleaseLogSettings(Section):
    """What silos keep a copy of when it leaves them, for an audit; see record.py."""

    offers: bool = False
    updates: bool = False
