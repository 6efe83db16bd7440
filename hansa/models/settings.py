"""TODO docstring."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hansa.core.settings import Count as Count
from hansa.core.settings import Named as Named
from hansa.core.settings import Positive as Positive
from hansa.core.settings import Section as Section
from hansa.core.settings import Share as Share
from hansa.core.simulation import Poison as Poison
from hansa.core.simulation import Simulation as Simulation
from hansa.data.source import Files as Files
from hansa.data.source import Source as Source


class Model(Section):
    preset: Literal["mini", "tiny", "small", "base"] | None = None
    path: str | None = None  # a Hugging Face folder, or a hub id (then, and only then, it is downloaded)
    fresh: bool = False  # of the folder take the shape and the tokeniser, not the weights
    dropout: Share = 0.0
    added: tuple[Annotated[int, Field(ge=0)], ...] = ()  # places of layers to add to each stack; see models/grow.py
    adapt: Literal["full", "frozen-embeddings", "frozen", "lora"] = "full"  # what of it is trained: models/adapt.py
    rank: Count = 8  # lora: of the additions
    alpha: Count = 16  # lora: their scale is alpha/rank

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"preset": value} if value in ("mini", "tiny", "small", "base") else {"path": value}
        return value

    @model_validator(mode="after")
    def _one_origin(self) -> "Model":
        if (self.preset is None) == (self.path is None):
            raise ValueError(
                "a model is either a 'preset' (mini, tiny, small, base) or a 'path' to a Hugging Face folder"
            )
        if self.path is not None and self.dropout:
            raise ValueError(f"dropout is {self.dropout:g}: a folder brings its own, in its config.json; leave it out")
        if len(set(self.added)) < len(self.added):
            raise ValueError(f"added is {list(self.added)}: a place can have one layer")
        return self


class Tokenizer(Section):
    kind: Literal["model", "bytes", "federated"] | None = None  # default: the model's own, else federated
    path: str | None = None
    size: Annotated[int, Field(ge=300, le=1_000_000)] = 8000
    minimum: Count = 5  # a word piece leaves a silo only if seen at least this often
