"""A federation file as a whole: its sections, their defaults, and which settings contradict each other."""

import re
from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from hansa.config.clients import into_clients
from hansa.config.model_defaults import unset_defaults
from hansa.config.nodes import ROOT, Holder, Node, leaves, walk
from hansa.config.sections import (
    Aggregation,
    Checkpointing,
    Download,
    Evaluation,
    Personal,
    ReleaseLog,
    Samples,
    SecureAggregation,
    Server,
    Training,
    Upload,
)
from hansa.config.survey import Survey
from hansa.core.errors import did_you_mean
from hansa.core.participation import Participation
from hansa.core.settings import Named, Section
from hansa.core.simulation import Simulation
from hansa.data.settings import Data
from hansa.models.settings import Model, Tokenizer


class Federation(Section):
    """A whole federation file."""

    name: str = Field(default="run", description="Name of the federation; also the run directory's.")
    licence: str | None = Field(
        default=None, description="Licence of the trained model for its card, such as `apache-2.0`."
    )
    seed: int = Field(default=0, description="Seed of everything random but privacy noise, unless that is `seeded`.")
    kind: Literal["federated", "central", "dominant", "per-silo", "chained", "base", "survey"] = Field(
        default="federated",
        description="federated, or a baseline: see docs/design.md. `survey` is what `hansa survey` asks silos for.",
    )
    order: tuple[str, ...] = Field(default=(), description="chained: order of the silos; default: as under `silos`.")
    plugins: tuple[str, ...] = Field(
        default=(), description="Python files that register methods, tasks, compressors or readers."
    )
    task: Named = Field(default=Named(name="mlm"), description="What is learned: a task and its settings.")
    model: Model = Field(default=Model(preset="tiny"), description="The model.")
    tokenizer: Tokenizer = Field(default=Tokenizer(), description="The tokenizer.")
    data: Data = Field(default=Data(), description="How rows become samples.")
    silos: dict[str, Node] = Field(description="The silos and regions, by name.")
    root: Holder | None = Field(default=None, description="On a tree of models: data that the root itself trains on.")
    method: Named = Field(default=Named(name="fedavg"), description="The federated learning method and its settings.")
    rounds: int = Field(default=10, ge=0, description="Number of rounds.")
    participation: Participation = Field(default=Participation(), description="Which silos take part in a round.")
    simulate: Simulation = Field(default=Simulation(), description="Slow and lying silos; simulation only.")
    train: Training = Field(default=Training(), description="Local training.")
    baseline: Training = Field(
        default=Training(optimizer="adamw", lr=3e-5, eps=1e-6, weight_decay=0.01, keep_optimizer=True),
        description="Training of baselines and, unless they have their own, of personal models.",
    )
    server: Server | None = Field(default=None, description="The server optimizer; default: the method's.")
    aggregate: Aggregation | None = Field(
        default=None, description="How updates are combined; default: as the method does."
    )
    secure_aggregation: SecureAggregation | None = Field(
        default=None, description="The server learns only the sum of the updates; `true`: with defaults."
    )
    upload: Upload = Field(default=Upload(), description="Compression of updates.")
    download: Download = Field(
        default=Download(), description="Compression of the model on its way to the silos, as differences."
    )
    personal: Personal | None = Field(
        default=None, description="A model of its own for every silo, after the last round."
    )
    evaluate: Evaluation = Field(default=Evaluation(), description="Evaluation.")
    checkpoint: Checkpointing = Field(default=Checkpointing(), description="Checkpoints.")
    survey: Survey | None = Field(
        default=None, description="Statistics before training (`hansa survey`); `true`: with defaults."
    )
    release_log: ReleaseLog = Field(
        default=ReleaseLog(), description="Copies of what leaves a silo, for an audit; simulation only."
    )

    @property
    def without_rounds(self) -> bool:
        """A baseline that trains on and on, and is looked at from time to time: its schedule goes by steps."""
        return self.kind in ("central", "dominant", "per-silo")

    @property
    def surveyed(self) -> Survey:
        """The settings of a survey; the defaults where the file has none."""
        return self.survey or Survey()

    def as_survey(self) -> "Federation":
        """The settings under which silos are surveyed: an approval of a run does not cover them, nor the reverse."""
        return self.model_copy(update={"kind": "survey", "survey": self.surveyed})

    @field_validator("secure_aggregation", "survey", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return {} if value is True else None if value is False else value

    @field_validator("task", "method", mode="before")
    @classmethod
    def _name_only(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="wrap")
    @classmethod
    def _spread_steps(cls, value: Any, handler: Callable[[Any], "Federation"]) -> "Federation":
        """`train.steps` in samples per round, which is what everybody goes by."""
        built = handler(value)
        steps, rounds = built.train.steps, max(1, built.rounds)
        if steps is None:
            return built
        if "samples" in built.train.model_fields_set:
            raise ValueError("choose one rule: 'train.steps' or 'train.samples'")
        if steps % rounds:
            raise ValueError(f"train.steps is {steps}, which {rounds} rounds cannot share evenly: give a multiple")
        samples = Samples(floor=steps // rounds * built.train.batch, replace=False)
        return built.model_copy(update={"train": built.train.model_copy(update={"samples": samples, "steps": None})})

    @model_validator(mode="wrap")
    @classmethod
    def _by_model(cls, value: Any, handler: Callable[[Any], "Federation"]) -> "Federation":
        """What the file leaves open and a pre-trained model needs otherwise than one with random weights."""
        built = handler(value)
        changes = unset_defaults(built, built.model, built.task.name)
        return built.model_copy(update=changes) if changes else built

    @model_validator(mode="wrap")
    @classmethod
    def _residual_rank(cls, value: Any, handler: Callable[[Any], "Federation"]) -> "Federation":
        """The rank of a residual that all rounds can need, unless the file names one."""
        built = handler(value)
        lora = built.model.lora
        if lora.aggregate not in ("exact", "stack") or lora.residual_rank is not None:
            return built
        silos = len(leaves(built.silos)) - (
            lora.aggregate == "exact"
        )  # deviations from a mean: one follows from others
        lora = lora.model_copy(update={"residual_rank": max(1, silos * lora.rank * built.rounds)})
        return built.model_copy(update={"model": built.model.model_copy(update={"lora": lora})})

    @model_validator(mode="before")
    @classmethod
    def _clients(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("silos"), dict):
            return value | {"silos": into_clients(value["silos"], value.get("seed", 0))}
        return value

    @model_validator(mode="after")
    def _sensible(self) -> "Federation":
        if not self.silos:
            raise ValueError("'silos' is empty: a federation needs at least one silo")
        names = [ROOT] * (self.root is not None) + [name for name, _ in walk(self.silos)]
        for name in names:
            if not re.fullmatch(r"\w[\w .+-]{0,63}", name) or ".." in name:
                raise ValueError(
                    f"silo name {name!r} is not usable as a folder name: use letters, digits, '-', '_' and '.'"
                )
        twice = {n for n in names if names.count(n) > 1}
        if twice:
            raise ValueError(f"silo name '{min(twice)}' is used twice: every node of the tree needs its own name")
        if not re.fullmatch(r"\w[\w.+-]{0,63}", self.name) or ".." in self.name:
            raise ValueError(f"name {self.name!r} is not usable as a folder name")
        if self.data.valid + self.data.test >= 1.0:
            raise ValueError(
                f"data.valid {self.data.valid} + data.test {self.data.test} leave nothing to train on: "
                "together they must stay below 1"
            )
        if self.personal is not None and (self.personal.start or 0) > self.rounds:
            raise ValueError(f"personal.start is {self.personal.start}, but there are only {self.rounds} rounds")
        strangers = set(self.simulate.delay) - set(names)
        if strangers:
            raise ValueError(
                f"simulate.delay names '{min(strangers)}', which is not a node of the federation; "
                f"{did_you_mean(min(strangers), names)}"
            )
        strangers = set(self.simulate.poison) - set(leaves(self.silos))
        if strangers:
            raise ValueError(
                f"simulate.poison names '{min(strangers)}', which is not a silo; "
                f"{did_you_mean(min(strangers), leaves(self.silos))}"
            )
        strangers = {name for round in self.simulate.arrivals for name in round} - set(self.silos)
        if strangers:
            raise ValueError(
                f"simulate.arrivals names '{min(strangers)}', which is not a silo; "
                f"{did_you_mean(min(strangers), self.silos)}"
            )
        regions = {name: node for name, node in walk(self.silos) if node.silos}
        for name, rounds in self.simulate.region_arrivals.items():
            if name not in regions:
                raise ValueError(
                    f"simulate.region_arrivals names '{name}', which is not a region; {did_you_mean(name, regions)}"
                )
            strangers = {child for round in rounds for child in round} - set(regions[name].silos)
            if strangers:
                raise ValueError(
                    f"simulate.region_arrivals.{name} names '{min(strangers)}', which is not below '{name}'; "
                    f"{did_you_mean(min(strangers), regions[name].silos)}"
                )
        unknown = set(self.order) - set(leaves(self.silos))
        if unknown:
            raise ValueError(f"order names '{min(unknown)}'; {did_you_mean(min(unknown), leaves(self.silos))}")
        share = self.participation.max_share
        if share is not None and share * len(self.silos) < 1:
            raise ValueError(
                f"participation.max_share is {share:g}: {len(self.silos)} silos of at most that share do not add up to "
                f"1; set it to {1 / len(self.silos):.3g} or more"
            )
        count = self.participation.count
        if count is not None and count > len(self.silos):
            raise ValueError(
                f"participation.count is {count}, but there are {len(self.silos)} silos: "
                f"at most {len(self.silos)} can take part"
            )
        return self
