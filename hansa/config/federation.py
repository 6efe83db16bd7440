"""What a federation file may say: its sections, their defaults, and what contradicts what."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hansa.config.clients import into_clients
from hansa.config.nodes import ROOT, Holder, Node, leaves, walk
from hansa.config.sections import (
    Aggregation,
    Checkpointing,
    Evaluation,
    Personal,
    ReleaseLogSettings,
    Samples,
    Secure,
    Server,
    Training,
    Upload,
)
from hansa.core.errors import did_you_mean
from hansa.core.participation import Participation
from hansa.core.settings import Count as Count
from hansa.core.settings import Named as Named
from hansa.core.settings import Positive as Positive
from hansa.core.settings import Section as Section
from hansa.core.settings import Share as Share
from hansa.core.simulation import Poison as Poison
from hansa.core.simulation import Simulation as Simulation
from hansa.data.settings import Data
from hansa.data.source import Files as Files
from hansa.data.source import Source as Source
from hansa.models.settings import Model, Tokenizer


class Federation(Section):
    name: str = "run"
    seed: int = 0
    kind: Literal["federated", "central", "dominant", "per-silo", "chained", "base"] = "federated"
    order: tuple[str, ...] = ()  # chained: whose data come first, second, …; default as below 'silos'
    plugins: tuple[str, ...] = ()  # Python files that add tasks or methods of your own
    task: Named = Named(name="mlm")
    model: Model = Model(preset="tiny")
    tokenizer: Tokenizer = Tokenizer()
    data: Data = Data()
    silos: dict[str, Node]
    root: Holder | None = None  # on a tree: what the root itself trains on
    method: Named = Named(name="fedavg")
    rounds: Annotated[int, Field(ge=0)] = 10
    participation: Participation = Participation()
    simulate: Simulation = Simulation()
    train: Training = Training()
    baseline: Training = Training(optimizer="adamw", lr=3e-5, eps=1e-6, weight_decay=0.01, keep_optimizer=True)
    server: Server | None = None  # default: what the method brings
    aggregate: Aggregation | None = None
    secure_aggregation: Secure | None = None
    upload: Upload = Upload()
    personal: Personal | None = None
    evaluate: Evaluation = Evaluation()
    checkpoint: Checkpointing = Checkpointing()
    record: ReleaseLogSettings = ReleaseLogSettings()

    @property
    def without_rounds(self) -> bool:
        """A baseline that trains on and on, and is looked at from time to time: its schedule goes by steps."""
        return self.kind in ("central", "dominant", "per-silo")

    @field_validator("secure_aggregation", mode="before")
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
        unknown = set(self.order) - set(leaves(self.silos))
        if unknown:
            raise ValueError(f"order names '{min(unknown)}'; {did_you_mean(min(unknown), leaves(self.silos))}")
        count = self.participation.count
        if count is not None and count > len(self.silos):
            raise ValueError(
                f"participation.count is {count}, but there are {len(self.silos)} silos: "
                f"at most {len(self.silos)} can take part"
            )
        return self
