"""The ``model`` and ``tokenizer`` sections of a federation file."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hansa.core.settings import Count, Section, Share


class Model(Section):
    """The model to train: a preset built from nothing, or a Hugging Face folder or hub id."""

    preset: Literal["mini", "tiny", "small", "base"] | None = Field(
        default=None, description="Size of a model built from nothing."
    )
    path: str | None = Field(
        default=None, description="Hugging Face folder, or hub id (then, and only then, the model is downloaded)."
    )
    fresh: bool = Field(
        default=False, description="Take the architecture and the tokenizer of the folder, not its weights."
    )
    dropout: Share = Field(default=0.0, description="Dropout of a preset; a folder has its own in config.json.")
    added: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(), description="Positions of layers to add to each stack (models/grow.py)."
    )
    adapt: Literal["full", "frozen-embeddings", "frozen", "lora"] = Field(
        default="full",
        description="What is trained: everything, all but the embeddings, the head alone, or LoRA adapters.",
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
            raise ValueError(f"dropout is {self.dropout:g}: a folder brings its own, in its config.json; leave it out")
        if len(set(self.added)) < len(self.added):
            raise ValueError(f"added is {list(self.added)}: a position can have one layer")
        return self


class Tokenizer(Section):
    """The tokenizer: the model's own, plain bytes, or a vocabulary built from the silos' counts of word pieces."""

    kind: Literal["model", "bytes", "federated"] | None = Field(
        default=None, description="Default: the model's own where `model.path` is given, else `federated`."
    )
    path: str | None = Field(default=None, description="Folder of another tokenizer.")
    size: int = Field(default=8000, ge=300, le=1_000_000, description="federated: size of the vocabulary.")
    min_count: Count = Field(
        default=5, description="federated: a word piece leaves a silo only if seen at least this often."
    )
