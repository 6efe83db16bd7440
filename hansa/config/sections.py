"""The sections of a federation file that describe training, aggregation, privacy and evaluation."""

from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from hansa.core.schedules import Schedule
from hansa.core.settings import Count, Named, Positive, Section, Share, refuse_secret

MIN_MASKED_COHORT = 3  # with two silos, each could compute the other's update from the sum
MAX_MASKED_SHARE = 0.4  # of one silo's weight in a masked sum: below 1/2, three silos or more make up the sum
MAX_LOSS_TEMPERATURE = 50.0  # of a softmax over losses: beyond it a single silo would count


class DistributedNoise(Section):
    """Differential privacy of the sum: every silo adds a share of the noise before its update is masked."""

    multiplier: Positive = Field(default=1.0, description="Noise in the sum over the clipping norm: σ, its deviation.")
    clip: Positive = Field(default=1.0, description="Clipping norm C of an update.")
    delta: float = Field(default=1e-5, gt=0.0, lt=1.0, description="The δ at which ε is stated.")
    seeded: bool = Field(
        default=False, description="Draw the noise from the seed, so that a simulation repeats; not for real use."
    )


class SecureAggregation(Section):
    """Secure aggregation: the server learns only the sum of the silos' updates."""

    threshold: float = Field(
        default=0.6, gt=0.0, lt=1.0, description="Fraction of the other silos needed to reconstruct a silo's secret."
    )
    bound: Positive = Field(
        default=1.0, description="Each value of an update is clipped to ±bound before it is masked."
    )
    max_share: float = Field(
        default=MAX_MASKED_SHARE,
        gt=0.0,
        le=MAX_MASKED_SHARE,
        description="Largest weight of one silo in a sum; what it has beyond that goes to the others in proportion.",
    )
    min_cohort: int = Field(
        default=MIN_MASKED_COHORT, ge=MIN_MASKED_COHORT, description="Smallest number of silos in a sum."
    )
    noise: DistributedNoise | None = Field(
        default=None, description="Differential privacy of the sum: noise in shares; `true`: with defaults."
    )
    metrics: bool = Field(
        default=False, description="Training losses, counts and scores also leave under masks: only sums are known."
    )

    @field_validator("noise", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return {} if value is True else None if value is False else value


class Privacy(Section):
    """Differential privacy of a silo's updates: clip, then add noise. The protected unit is the silo, or a patient."""

    unit: Literal["silo", "patient", "document"] = Field(
        default="silo",
        description="What ε protects: all data of the silo (one clipped and noisy update per round), or all data of a "
        "patient or document (a clipped sum of gradients for each, and noise in every step).",
    )
    field: str | None = Field(
        default=None, description="unit patient, document: the field of a row that names the patient or document."
    )
    sampling: Share = Field(
        default=0.1,
        gt=0.0,
        description="unit patient, document: probability with which each one takes part in a step, drawn in secret.",
    )
    steps: Count = Field(
        default=10, description="unit patient, document: local steps in a round, instead of `train.samples`."
    )
    noise_multiplier: Positive = Field(
        default=0.5, description="Standard deviation of the noise over the clipping norm, σ."
    )
    clip: Positive | Literal["median"] = Field(
        default=1.0,
        description="Clipping norm C of an update; `median`: the norm of the silo's last update (not covered by ε).",
    )
    noise_shared_by: Count = Field(
        default=1, description="Number n of updates whose mean carries the noise: each adds noise of deviation σ·C/n."
    )
    delta: float = Field(default=1e-5, gt=0.0, lt=1.0, description="The δ at which ε is stated.")
    shrink: bool = Field(
        default=False,
        description="After the noise, scale the update by 1/(1 + d·(σ/n)²), the factor of least mean square error.",
    )
    seeded: bool = Field(
        default=False,
        description="Draw the noise from the seed, so that a simulation repeats; refused between organisations.",
    )

    @model_validator(mode="before")
    @classmethod
    def _noise_is_secret(cls, value: Any) -> Any:
        return refuse_secret(value)

    @model_validator(mode="after")
    def _fits_the_unit(self) -> "Privacy":
        if self.unit == "silo":
            # settings that travel name every field: what counts is a value that is not the default
            known = type(self).model_fields
            given = [name for name in ("field", "sampling", "steps") if getattr(self, name) != known[name].default]
            if given:
                raise ValueError(
                    f"'{given[0]}' belongs to 'unit: patient', and the unit is the silo: give both, or none"
                )
            return self
        if not self.field:
            raise ValueError(f"'unit: {self.unit}' needs 'field', the field of a row that names the {self.unit}")
        if self.clip == "median":
            raise ValueError(f"'unit: {self.unit}' needs a number as 'clip', the bound of each {self.unit}'s gradient")
        if self.noise_shared_by > 1 or self.shrink:
            raise ValueError(f"'noise_shared_by' and 'shrink' belong to 'unit: silo', and the unit is the {self.unit}")
        return self


class AdaptiveSampling(Section):
    """The number of samples per round follows the silo's validation loss (client/adaptive_sampling.py)."""

    every: Count = Field(default=5, description="Rounds between two evaluations on the validation data.")
    tolerance: float = Field(default=0.005, ge=0.0, description="Changes of the loss up to this size count as none.")
    least: Share = Field(default=0.25, description="Smallest factor on the number of samples.")
    most: float = Field(default=4.0, ge=1.0, description="Largest factor on the number of samples.")


class Samples(Section):
    """How many samples a silo trains on in one round: ``max(floor, fraction·N)``, or whole ``epochs``."""

    floor: Count | None = Field(default=None, description="Smallest number of samples in a round.")
    fraction: Share = Field(default=0.0, description="Fraction of the silo's N training samples.")
    epochs: Count | None = Field(
        default=None, description="Passes over the silo's training samples, instead of floor and fraction."
    )
    replace: bool = Field(
        default=True,
        description="Draw samples with replacement (the Medical paper's rule); false: continue an endless series of "
        "passes, so that every sample comes once per pass.",
    )
    times: Positive = Field(default=1.0, description="Factor on the number of samples that the rule gives.")
    adapt: AdaptiveSampling | None = Field(
        default=None, description="Adapt the number to the validation loss; `true`: with defaults."
    )

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
        """How many samples a silo with ``size`` training samples uses in a round."""
        amount = self.epochs * size if self.epochs is not None else max(self.floor or 1, int(self.fraction * size))
        return amount if self.times == 1.0 else max(1, round(amount * self.times))

    def scaled(self, factor: float, **changes: Any) -> "Samples":
        """The same rule for ``factor`` times as many samples."""
        return self.model_copy(update={"times": self.times * factor} | changes)


class Training(Section):
    """Local training of a silo in one round."""

    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        default="sgd", description="Local optimizer. Default with a pre-trained model: adamw."
    )
    lr: Positive = Field(
        default=0.1,
        description="Learning rate. Default with a pre-trained model: 5e-5; decoders 2e-5, adapters 2e-4, a head 1e-3.",
    )
    momentum: Share = Field(default=0.0, description="SGD: momentum.")
    betas: tuple[Share, Share] = Field(default=(0.9, 0.999), description="Adam: decay of the first and second moment.")
    eps: Positive = Field(default=1e-8, description="Adam: added to the denominator.")
    weight_decay: float = Field(default=0.0, ge=0.0, description="Weight decay, applied to matrices only.")
    clip: Positive | None = Field(default=None, description="Clipping norm of the gradient of a batch.")
    batch: Count = Field(default=16, description="Samples in a batch.")
    micro_batch: Count | None = Field(
        default=None, description="Gradient accumulation: samples computed at a time. Default: the whole batch."
    )
    by_length: bool = Field(
        default=True,
        description="Put samples of similar length into a batch, which needs less padding; of pooled silos this also "
        "groups languages. false: batches in the order of the draw.",
    )
    packing: bool = Field(
        default=False,
        description="causal-lm, instruct: put several short texts of a batch into one row, each by itself; the step is "
        "the same, without padding.",
    )
    precision: Literal["float32", "bf16"] = Field(
        default="float32",
        description="bf16: compute in bfloat16 (autocast); the values that are trained and their gradients stay "
        "float32.",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Compute activations again instead of keeping them: less memory, more time."
    )
    processes: Count = Field(
        default=1,
        description="Processes of a silo's machine that compute each gradient together; on accelerators, one for each.",
    )
    shard: bool = Field(
        default=False,
        description="Let each of several processes hold a part of the model (FSDP2), for one that does not fit a "
        "single device.",
    )
    overlap: bool = Field(
        default=False,
        description="Go on training while an update travels: what arrives counts one round later (docs/uploads.md).",
    )
    compile: bool = Field(default=False, description="Compile the blocks of the model (torch.compile).")
    samples: Samples = Field(default=Samples(epochs=1), description="How many samples a silo trains on in a round.")
    steps: Count | None = Field(
        default=None,
        description="Local steps of a silo over the whole run, spread evenly over the rounds, instead of `samples`.",
    )
    max_batches: Count | None = Field(default=None, description="Upper bound on the batches of a round.")
    keep_optimizer: bool = Field(
        default=False, description="Keep the optimizer's state from round to round; default: start anew."
    )
    schedule: Schedule = Field(default=Schedule(), description="How the learning rate changes over the rounds.")

    def per_round(self, size: int) -> int:
        """How many of ``size`` samples a silo trains on in a round."""
        amount = self.samples.amount(size)
        return amount if self.max_batches is None else min(amount, self.max_batches * self.batch)


class Personal(Section):
    """Personalisation: a model of its own for every silo, after the shared one (client/personalisation.py)."""

    start: int | None = Field(
        default=None, ge=0, description="Round whose shared model it starts from; default: the last."
    )
    rounds: Count = Field(default=20, description="Rounds of local training, each on as much data as a federated one.")
    train: Training | None = Field(default=None, description="Its optimizer; default: `baseline`. Not its data.")
    mix: Literal["sweep", "adaptive", "none"] = Field(
        default="sweep",
        description="Interpolation α·own + (1 − α)·shared: α swept on validation data, adaptive (APFL), or none.",
    )
    fallback: bool = Field(
        default=True, description="sweep: α = 0 unless the best α is ahead by more than a standard error."
    )
    draws: Count = Field(default=1, description="How often each sample is masked anew where models are compared.")
    alpha: Share = Field(default=0.5, description="adaptive: the first α.")
    alpha_lr: Positive = Field(default=0.1, description="adaptive: learning rate of α.")
    nearby: int = Field(default=0, ge=0, description="Start from a mixture with this many similar silos, and compare.")


class Server(Section):
    """The server optimizer, which moves the shared model by the aggregated pseudo-gradient."""

    optimizer: Literal["sgd", "momentum", "nesterov", "adam", "adagrad", "yogi"] = Field(
        default="sgd", description="Server optimizer."
    )
    lr: Positive = Field(default=1.0, description="Server learning rate.")
    momentum: Share = Field(default=0.9, description="momentum, nesterov: μ.")
    betas: tuple[Share, Share] = Field(
        default=(0.9, 0.99), description="adam, yogi: decay of the first and second moment."
    )
    eps: Positive = Field(default=1e-8, description="adam, adagrad, yogi: τ, the degree of adaptivity.")
    bias_correction: bool = Field(
        default=True, description="adam, adagrad, yogi: correct the moments' bias towards zero."
    )
    schedule: Schedule = Field(default=Schedule(), description="How the server learning rate changes over the rounds.")


class Weights(Section):
    """The weight of each silo's update in the mean."""

    by: Literal["samples", "uniform", "loss"] = Field(default="samples", description="What the weights follow from.")
    temperature: float = Field(
        default=1.0,
        description="samples: exponent t of the weight N^t (1: FedAvg, 0: uniform); loss: β of softmax(−β·loss), "
        "negative favours silos with a high loss. Larger is sharper (unlike the T of N^(1/T)).",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"by": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _sign(self) -> "Weights":
        if self.by == "samples" and self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}: below 0, large silos would count least")
        if self.by == "loss" and abs(self.temperature) > MAX_LOSS_TEMPERATURE:
            raise ValueError(
                f"temperature is {self.temperature}: beyond {MAX_LOSS_TEMPERATURE:g} a single silo would count"
            )
        return self


class Aggregation(Section):
    """How updates are combined. Settings of the rule stand beside it: ``{rule: trimmed-mean, trim: 0.1}``."""

    model_config = ConfigDict(extra="allow")

    rule: str = Field(default="mean", description="mean, median, trimmed-mean, krum, norm-bound, or a plug-in's.")
    weights: Weights | None = Field(default=None, description="The weights of the silos; default: the method's.")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"rule": value} if isinstance(value, str) else value

    @property
    def named(self) -> Named:
        """The rule with its settings."""
        return Named(name=self.rule, **(self.model_extra or {}))


class Upload(Section):
    """Compression of updates: a chain of compressors. `[top-k, int8]` and 'top-k+int8' are the same."""

    steps: tuple[Named, ...] = Field(default=(), description="Compressors, in order; none: updates leave as they are.")
    feedback: bool = Field(
        default=True, description="Error feedback: what a compressor loses is added to the silo's next update."
    )

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


class Download(Section):
    """Compression of the model on its way to the silos: of how far it has moved since they were sent it last."""

    steps: tuple[Named, ...] = Field(
        default=(), description="Compressors of values or numbers, in order; none: the whole model in float32."
    )

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        return value if isinstance(value, Download) else {"steps": Upload.model_validate(value).steps}


class Evaluation(Section):
    """Evaluation while the run goes on, and at its end."""

    every: Count = Field(default=5, description="Rounds between two evaluations.")
    target: float | None = Field(
        default=None, description="The report states when the mean of the headline metric reached it."
    )
    share: Share = Field(
        default=1.0,
        description="Fraction of the validation data used while running; the final figures use all test data.",
    )
    metric: str | None = Field(
        default=None,
        description="Metric that `patience` and `keep_best` go by, averaged over languages; default: the main one.",
    )
    patience: Count | None = Field(
        default=None, description="Stop after this many evaluations without improvement of the metric."
    )
    min_change: float = Field(default=0.0, ge=0.0, description="Least improvement that counts.")
    keep_best: bool = Field(
        default=False, description="The final model is the best one of all evaluations, instead of the last one."
    )
    batch: Count = Field(default=64, description="Samples in a batch.")
    decode: int = Field(
        default=0,
        ge=0,
        description="Generate texts at every n-th evaluation (translation); 0: at the end only. It takes long.",
    )


class Checkpointing(Section):
    """Checkpoints of the run."""

    every: Count = Field(default=10, description="Rounds between two checkpoints.")
    keep: Count = Field(default=2, description="How many checkpoints are kept.")


class ReleaseLog(Section):
    """Copies of what leaves a silo, kept in its own folder for an audit (`hansa audit attack`)."""

    knowledge: bool = Field(default=False, description="Keep what is shared in an exchange, such as FedKC's centroids.")
    updates: bool = Field(default=False, description="Keep model updates.")
