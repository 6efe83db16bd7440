"""The ``model`` and ``tokenizer`` sections of a federation file."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hansa.core.settings import Count, Section, Share


class Lora(Section):
    """LoRA adapters: W + scale·B·A, where W stays as it is and A and B are trained."""

    rank: Count = Field(default=8, description="Rank of the adapters: rows of A, columns of B.")
    alpha: Count = Field(default=16, description="The scale is alpha/rank, or alpha/√rank with `rslora`.")
    dropout: Share = Field(default=0.0, description="Dropout on the adapters' input.")
    targets: tuple[str, ...] = Field(
        default=(), description="Names of linear layers, such as `q_proj`; default: every linear layer of every block."
    )
    rslora: bool = Field(default=False, description="Rank-stabilised LoRA: the scale is alpha/√rank.")
    dora: bool = Field(default=False, description="DoRA: also train the magnitude of each column of the weights.")
    aggregate: Literal["average", "exact", "stack", "freeze-a"] = Field(
        default="average",
        description="How adapters of several silos become one: the averages of A and of B; the average of the products "
        "B·A, with the difference in a factor of its own (`exact`, FedEx-LoRA) or all of it (`stack`, FLoRA); or A is "
        "not trained, so that the average of B is exact (`freeze-a`, FFA-LoRA).",
    )
    residual_rank: Count | None = Field(
        default=None,
        description="exact, stack: largest rank of the factor; default: what all rounds of the run can need.",
    )

    @model_validator(mode="after")
    def _combinations(self) -> "Lora":
        if self.dora and self.aggregate in ("exact", "stack"):
            raise ValueError(
                f"aggregate is '{self.aggregate}', which adds products B·A, and with dora the adapter is not a "
                "product: use aggregate 'average' or 'freeze-a', or leave dora out"
            )
        if self.residual_rank is not None and self.aggregate not in ("exact", "stack"):
            raise ValueError(f"residual_rank is for aggregate 'exact' or 'stack', and it is '{self.aggregate}'")
        return self


class Model(Section):
    """The model to train: a preset with random weights, or a Hugging Face folder or hub id.

    With `adapt: lora` or `frozen`, a model from a folder is a frozen base: it keeps its own dtype, does not travel, and
    every silo has its own copy (`hansa join --model`).
    """

    preset: Literal["mini", "tiny", "small", "base"] | None = Field(
        default=None, description="Size of a model with random weights."
    )
    path: str | None = Field(default=None, description="Hugging Face folder, or hub id (which downloads the model).")
    revision: str | None = Field(default=None, description="Commit, tag or branch of a hub id.")
    gguf: str | None = Field(default=None, description="GGUF file in the folder or hub repository to load from.")
    dtype: Literal["bfloat16", "float16", "float32"] | None = Field(
        default=None, description="dtype of a frozen base; default: the one of its files. What is trained is float32."
    )
    quantize: Literal["4bit", "8bit"] | None = Field(
        default=None, description="Quantise a frozen base when it is loaded (bitsandbytes)."
    )
    fresh: bool = Field(
        default=False, description="Use the architecture and the tokenizer of the folder, but not its weights."
    )
    dropout: Share = Field(default=0.0, description="Dropout of a preset; that of a folder is in its config.json.")
    added: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(), description="Positions of layers to add to each stack, counted from 0."
    )
    adapt: Literal["full", "frozen-embeddings", "frozen", "lora"] = Field(
        default="full",
        description="What is trained: everything, all but the embeddings, the head, or LoRA adapters and a new head.",
    )
    lora: Lora = Field(default=Lora(), description="lora: the adapters.")
    keep_outputs: bool = Field(
        default=False,
        description="frozen, from a folder or hub: keep the base's outputs in memory, so that each text passes through "
        "it once; dropout inside the base is off.",
    )

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
        if self.adapt != "lora" and self.lora != Lora():
            raise ValueError(f"lora is for adapt 'lora', and adapt is '{self.adapt}'")
        if self.keep_outputs and not (self.keeps_base and self.adapt == "frozen"):
            raise ValueError(
                "keep_outputs is for a base whose outputs stay the same: use a 'path' with adapt 'frozen', without "
                "'fresh' and 'added', or leave keep_outputs out"
            )
        for setting in ("revision", "gguf"):
            if self.path is None and getattr(self, setting) is not None:
                raise ValueError(f"{setting} is for a model from a folder or a hub: give its 'path'")
        for setting in ("dtype", "quantize"):
            if not self.keeps_base and getattr(self, setting) is not None:
                raise ValueError(
                    f"{setting} is for a frozen base: use a 'path' with adapt 'lora' or 'frozen', without 'fresh' and "
                    "'added'"
                )
        if self.gguf is not None and self.quantize is not None:
            raise ValueError("a GGUF file is quantised already, and is loaded de-quantised: leave 'quantize' out")
        return self

    @property
    def keeps_base(self) -> bool:
        """Whether the model is a frozen base from a folder or hub, which does not travel, and adapters or a head."""
        return self.path is not None and not self.fresh and not self.added and self.adapt in ("lora", "frozen")

    @property
    def trains_most(self) -> bool:
        """Whether most of the model is trained, rather than adapters or a head on frozen tensors."""
        return self.adapt in ("full", "frozen-embeddings")


class Tokenizer(Section):
    """The tokenizer: the model's own, bytes, or a vocabulary built from the silos' word counts."""

    kind: Literal["model", "bytes", "federated"] | None = Field(
        default=None, description="Default: the model's own if `model.path` is given, else `federated`."
    )
    path: str | None = Field(default=None, description="Folder of another tokenizer.")
    size: int = Field(default=8000, ge=300, le=1_000_000, description="federated: size of the vocabulary.")
    min_count: Count = Field(
        default=5, description="federated: a silo sends a word only if at least this many of its rows have it."
    )
