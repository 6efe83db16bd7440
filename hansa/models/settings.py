"""The ``model`` and ``tokenizer`` sections of a federation file."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hansa.core.settings import Count, Section, Share


class Model(Section):
    """The model to train: a preset with random weights, or a Hugging Face folder or hub id."""

    preset: Literal["mini", "tiny", "small", "base"] | None = Field(
        default=None, description="Size of a model with random weights."
    )
    path: str | None = Field(default=None, description="Hugging Face folder, or hub id (which downloads the model).")
    fresh: bool = Field(
        default=False, description="Use the architecture and the tokenizer of the folder, but not its weights."
    )
    dropout: Share = Field(default=0.0, description="Dropout of a preset; that of a folder is in its config.json.")
    added: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(), description="Positions of layers to add to each stack, counted from 0."
    )
    adapt: Literal["full", "frozen-embeddings", "frozen", "lora"] = Field(
        default="full",
        description="What is trained: everything, all but the embeddings, the head, or LoRA adapters and the head.",
    )
    rank: Count = Field(default=8, description="lora: rank of the adapters.")
    alpha: Count = Field(default=16, description="lora: the adapters' scale is alpha/rank.")

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
            raise ValueError(f"dropout is {self.dropout:g}: set the dropout of a folder in its config.json")
        if len(set(self.added)) < len(self.added):
            raise ValueError(f"added is {list(self.added)}: name each position once")
        return self


class Tokenizer(Section):
    """The tokenizer: the model's own, bytes, or a vocabulary built from the silos' word-piece counts."""

    kind: Literal["model", "bytes", "federated"] | None = Field(
        default=None, description="Default: the model's own if `model.path` is given, else `federated`."
    )
    path: str | None = Field(default=None, description="Folder of another tokenizer.")
    size: int = Field(default=8000, ge=300, le=1_000_000, description="federated: size of the vocabulary.")
    min_count: Count = Field(
        default=5, description="federated: a silo sends a word piece only if at least this many of its rows have it."
    )
