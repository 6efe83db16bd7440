"""Nodes of a federation file: silos, regions and the data that each holds."""

from collections.abc import Iterator
from typing import Any

from pydantic import Field, field_validator, model_validator

from hansa.config.sections import (
    Privacy,
    Server,
)
from hansa.core.participation import Participation
from hansa.core.settings import Count, Named, Section
from hansa.data.source import Source
from hansa.models.settings import Model

ROOT = "root"  # the name of the root of the tree, where it holds data of its own
NO_DATA = "a node needs data of its own ('train: FILE'), silos below it ('silos:'), or both"


class Holder(Section):
    """The data of a node: files of its own or, of a region, the ``mixture`` of its descendants' data."""

    sources: tuple[Source, ...] = Field(
        default=(), description="Files of its own; a single one may stand without `sources`."
    )
    mixture: bool = Field(
        default=False, description="Of an inner node: train on the data of all silos below it (simulation only)."
    )

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        """`en: data/en.jsonl`, `en: {train: …}` and `en: {sources: […]}` all describe a node with data."""
        if isinstance(value, str):
            return {"mixture": True} if value == "mixture" else {"sources": [{"train": value}]}
        if not isinstance(value, dict) or "sources" in value or ("silos" in value and "train" not in value):
            return value
        own = {key: v for key, v in value.items() if key not in cls.model_fields}
        if own and "train" not in own and own.keys() <= Source.model_fields.keys():
            raise ValueError(f"{NO_DATA}; it only says {', '.join(map(repr, own))}")
        rest = {key: v for key, v in value.items() if key in cls.model_fields}
        return rest | {"sources": [own]} if own else value

    @property
    def holds(self) -> bool:
        """Whether the node has data."""
        return bool(self.sources) or self.mixture


class Node(Holder):
    """A silo (it has data), a region (it has nodes below it), or both: a region with data of its own.

    Settings that are not given are the federation's.
    """

    silos: dict[str, "Node"] = Field(default={}, description="Nodes below this one; then it is a region.")
    rounds: Count = Field(default=1, description="Of a region: rounds among its own nodes for each round above.")
    method: Named | None = Field(default=None, description="A method of its own, for its own local training.")
    server: Server | None = Field(
        default=None, description="Of a region on a tree of models: its own server optimizer."
    )
    participation: Participation | None = Field(default=None, description="Of a region: which of its nodes take part.")
    privacy: Privacy | None = Field(default=None, description="Of a silo: differential privacy of its updates.")
    policy: str | None = Field(
        default=None, description="Of a silo: file with its policy on what may leave (docs/policies.md)."
    )
    rank: Count | None = Field(
        default=None, description="Of a silo, with `model.lora.aggregate: stack`: rank of its own adapters."
    )
    model: Model | None = Field(
        default=None,
        description="On a tree of models: where its own model starts; the architecture is the federation's.",
    )

    @field_validator("method", mode="before")
    @classmethod
    def _name_only(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _some_kind(self) -> "Node":
        if not self.sources and not self.silos:
            raise ValueError(NO_DATA)
        if self.sources and self.mixture:
            raise ValueError("a node holds files of its own or the 'mixture' of its silos, not both: leave one out")
        if self.privacy is not None and self.silos:
            raise ValueError("'privacy' protects a silo's own data: put it on the silos below instead")
        count = self.participation.count if self.participation else None
        if count is not None and count > len(self.silos):
            raise ValueError(f"participation.count is {count}, but this node has {len(self.silos)} silos")
        return self


def walk(silos: dict[str, Node]) -> Iterator[tuple[str, Node]]:
    """Every node of the tree, parents before children."""
    for name, node in silos.items():
        yield name, node
        yield from walk(node.silos)


def repeats(silos: dict[str, Node], times: int = 1) -> dict[str, int]:
    """How many rounds each node has in one round of the root: inner federations may have several of their own."""
    found: dict[str, int] = {}
    for name, node in silos.items():
        found[name] = times * node.rounds if node.silos else times
        found |= repeats(node.silos, found[name])
    return found


def leaves(silos: dict[str, Node]) -> dict[str, Node]:
    """Every node with files of its own, parents before children."""
    return {name: node for name, node in walk(silos) if node.sources}


def pooled(silos: dict[str, Node]) -> tuple[Source, ...]:
    """Every source below, tagged so that scores stay apart by language (or by silo)."""
    return tuple(
        source.model_copy(update={"domain": source.group(name)})
        for name, node in leaves(silos).items()
        for source in node.sources
    )
