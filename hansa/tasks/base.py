"""What every task offers, and the pieces that tasks share."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from hansa.config import Source
from hansa.data.examples import Encoded, Examples
from hansa.data.readers import Row
from hansa.errors import UserError
from hansa.models.tokenizer import starts_word


@dataclass(frozen=True)
class Vocabulary:
    """What tasks need to know of a tokeniser, as plain arrays."""

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    labels: tuple[str, ...] = ()

    @cached_property
    def pad(self) -> int:
        return int(self.tokenizer.pad_token_id)

    @cached_property
    def mask(self) -> int:
        if self.tokenizer.mask_token_id is None:
            raise UserError("task 'mlm' needs a tokenizer with a mask token, this one has none: use task 'causal-lm'")
        return int(self.tokenizer.mask_token_id)

    @cached_property
    def size(self) -> int:
        return len(self.tokenizer)

    @cached_property
    def special(self) -> NDArray[np.bool_]:
        mask = np.zeros(self.size, bool)
        mask[self.tokenizer.all_special_ids] = True
        return mask

    @cached_property
    def starts(self) -> NDArray[np.bool_]:
        return np.asarray(starts_word(self.tokenizer)) | self.special


@dataclass(frozen=True)
class Batch:
    """Model inputs; the rows (of batch × position, flattened) whose output counts; and what it should be there."""

    inputs: dict[str, Tensor]
    rows: Tensor | None
    targets: Tensor


class Task(Protocol):
    auto: ClassVar[str]  # the transformers class that holds the model
    headline: ClassVar[str]  # the metric a table shows
    lower_is_better: ClassVar[bool]
    needs_labels: ClassVar[bool]

    def encode(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterable[Encoded]: ...

    def batch(
        self, examples: Examples, indices: NDArray[np.int64], rng: np.random.Generator, vocabulary: Vocabulary
    ) -> Batch: ...

    def loss(self, model: nn.Module, batch: Batch) -> Tensor: ...

    def score(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """Sums that add up over batches and silos."""

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]: ...

    def predict(self, model: nn.Module, vocabulary: Vocabulary, text: str) -> list[dict[str, Any]]: ...


def pad(examples: Examples, indices: NDArray[np.int64], filler: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The samples' token ids as one rectangle, and the mask of what is real."""
    lengths = examples.lengths[indices]
    columns = np.arange(lengths.max(initial=1))
    real = columns < lengths[:, None]
    places = examples.offsets[indices][:, None] + columns
    ids = np.where(real, examples.ids[np.minimum(places, len(examples.ids) - 1)], filler)
    return ids.astype(np.int64), real.astype(np.int64)


def windows(rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterator[Encoded]:
    """Texts cut into windows of at most ``max_length`` tokens, each between the tokeniser's own special tokens."""
    encoded = vocabulary.tokenizer(
        [row[source.text] for row in rows],
        truncation=True,
        max_length=vocabulary.max_length,
        return_overflowing_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
    )
    for ids in encoded["input_ids"]:
        yield ids, -1


def logits_at(model: Any, batch: Batch) -> Tensor:
    """The head's output at ``batch.rows`` alone.

    Whatever the architecture, the head is what runs after `base_model`; keeping only the wanted rows of the base's
    last hidden state spares the head, and the vocabulary-wide product above all, the rest.
    """

    def keep(_module: nn.Module, _args: Any, output: Any) -> Any:
        hidden = output.last_hidden_state
        output.last_hidden_state = hidden.reshape(-1, hidden.shape[-1])[batch.rows].unsqueeze(0)
        return output

    handle = model.base_model.register_forward_hook(keep)
    try:
        logits: Tensor = model(**batch.inputs, return_dict=True).logits
    finally:
        handle.remove()
    return logits.squeeze(0)


def token_scores(logits: Tensor, targets: Tensor) -> dict[str, float]:
    nll = nn.functional.cross_entropy(logits, targets, reduction="sum")
    correct = (logits.argmax(dim=-1) == targets).sum()
    return {"nll": float(nll), "tokens": float(len(targets)), "correct": float(correct)}


def token_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    tokens = sums.get("tokens", 0.0)
    if not tokens:
        return {}
    loss = sums["nll"] / tokens
    return {"perplexity": exp(min(loss, 700.0)), "accuracy": sums["correct"] / tokens, "loss": loss}


def as_tensors(**arrays: NDArray[np.int64]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
