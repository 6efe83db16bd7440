"""Causal language modelling: predict every token from the tokens before it.

Perplexity is per token, so it is comparable only between models with the same vocabulary. ``bits_per_byte`` is
nll / (ln 2 · bytes), with the bytes of the text, and is comparable between vocabularies.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hansa.core.batch import Batch
from hansa.core.settings import Section
from hansa.data.examples import Encoded, Examples
from hansa.data.rows import Row
from hansa.data.source import Source
from hansa.tasks.base import (
    TASKS,
    TOKEN_SUMS,
    Task,
    Vocabulary,
    as_tensors,
    pad,
    token_metrics,
    token_scores,
    windows,
)
from hansa.tasks.target_rows import logits_at


@dataclass(frozen=True)
class CausalLM:
    """The task ``causal-lm``."""

    auto: ClassVar[str] = "AutoModelForCausalLM"
    headline: ClassVar[str] = "perplexity"
    lower_metrics: ClassVar[frozenset[str]] = frozenset({"perplexity", "bits_per_byte", "loss"})
    needs_labels: ClassVar[bool] = False
    packs: ClassVar[bool] = True

    def encode(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterable[Encoded]:
        """See `Task.encode`."""
        return windows(rows, source, vocabulary, covered=True)

    def batch(
        self, examples: Examples, indices: NDArray[np.int64], rng: np.random.Generator, vocabulary: Vocabulary
    ) -> Batch:
        """See `Task.batch`."""
        ids, mask = pad(examples, indices, vocabulary.pad)
        followed = np.zeros_like(mask)
        followed[:, :-1] = mask[:, 1:]  # positions that have a next token
        rows = np.flatnonzero(followed)
        targets = ids.reshape(-1)[rows + 1]
        covered, _ = pad(examples, indices, 0, examples.tags)
        size = int(covered.reshape(-1)[rows + 1].sum())
        inputs = as_tensors(input_ids=ids, attention_mask=mask)
        return Batch(inputs, torch.from_numpy(rows), torch.from_numpy(targets), size)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """See `Task.loss`."""
        return nn.functional.cross_entropy(logits_at(model, batch), batch.targets)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """See `Task.score`."""
        return token_scores(logits_at(model, batch), batch.targets) | {"bytes": float(batch.bytes)}

    def sum_names(self, labels: tuple[str, ...], decode: bool) -> tuple[str, ...]:
        """See `NamedSums.sum_names`."""
        return (*TOKEN_SUMS, "bytes")

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """See `Task.metrics`."""
        found = token_metrics(sums)
        if sums.get("bytes"):
            found["bits_per_byte"] = sums["nll"] / log(2) / sums["bytes"]
        return found

    def predict(self, model: Any, vocabulary: Vocabulary, text: str) -> list[dict[str, Any]]:
        """The most probable continuation of the text (greedy search)."""
        tokenizer = vocabulary.tokenizer
        ids = tokenizer(text, return_tensors="pt")["input_ids"].to(model.device)
        if ids.shape[1] > 1 and ids[0, -1] == tokenizer.eos_token_id:
            ids = ids[:, :-1]  # remove the end-of-text token, so that the model continues
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=40,
                do_sample=False,
                pad_token_id=vocabulary.pad,
            )
        return [{"continuation": tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)}]


@TASKS.register("causal-lm")
class Settings(Section):
    """Settings of the task ``causal-lm``: none."""

    def build(self) -> Task:
        """Build the task."""
        return CausalLM()
