"""Masked language modelling (Devlin et al., 2019, Section 3.1).

The fraction ``mask`` (15%) of the tokens is selected; 80% of these become the mask token, 10% a random token, 10% stay
unchanged; the model predicts the original. ``whole_word`` selects all tokens of a word together. Masks are derived from
the seed, so a run is reproducible and every evaluation uses the same masks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from hansa.core.batch import Batch
from hansa.core.errors import UserError
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
class MaskedLM:
    """The task ``mlm``."""

    mask: float = 0.15
    whole_word: bool = False
    auto: ClassVar[str] = "AutoModelForMaskedLM"
    headline: ClassVar[str] = "perplexity"
    lower_metrics: ClassVar[frozenset[str]] = frozenset({"perplexity", "loss"})
    needs_labels: ClassVar[bool] = False

    def encode(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterable[Encoded]:
        """See `Task.encode`."""
        return windows(rows, source, vocabulary)

    def batch(
        self, examples: Examples, indices: NDArray[np.int64], rng: np.random.Generator, vocabulary: Vocabulary
    ) -> Batch:
        """See `Task.batch`."""
        ids, mask = pad(examples, indices, vocabulary.pad)
        chosen = self._choose(ids, rng, vocabulary)
        rows = np.flatnonzero(chosen)
        targets = ids.reshape(-1)[rows]
        fate = rng.random(len(rows))
        noise = rng.integers(0, vocabulary.size, len(rows))
        flat = ids.reshape(-1)
        flat[rows] = np.where(fate < 0.8, vocabulary.mask, np.where(fate < 0.9, noise, targets))
        inputs = as_tensors(input_ids=ids, attention_mask=mask)
        return Batch(inputs, torch.from_numpy(rows), torch.from_numpy(targets))

    def _choose(self, ids: NDArray[np.int64], rng: np.random.Generator, vocabulary: Vocabulary) -> NDArray[np.bool_]:
        """Select the tokens to predict."""
        selectable = ~vocabulary.special[ids]
        if self.whole_word:
            word = np.cumsum(vocabulary.starts[ids], axis=1)  # every token gets the number of its word
            by_word = rng.random(ids.shape) < self.mask
            chosen = np.take_along_axis(by_word, np.minimum(word, ids.shape[1] - 1), axis=1) & selectable
        else:
            chosen = (rng.random(ids.shape) < self.mask) & selectable
        if not chosen.any():  # every batch has at least one target
            chosen[tuple(np.argwhere(selectable)[0] if selectable.any() else (0, 0))] = True
        return chosen

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """See `Task.loss`."""
        return nn.functional.cross_entropy(logits_at(model, batch), batch.targets)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """See `Task.score`."""
        return token_scores(logits_at(model, batch), batch.targets)

    def sum_names(self, labels: tuple[str, ...], decode: bool) -> tuple[str, ...]:
        """See `NamedSums.sum_names`."""
        return TOKEN_SUMS

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """See `Task.metrics`."""
        return token_metrics(sums)

    def predict(self, model: nn.Module, vocabulary: Vocabulary, text: str) -> list[dict[str, Any]]:
        """The five most probable tokens for every `[MASK]` (or the tokenizer's own mask token) in the text."""
        tokenizer = vocabulary.tokenizer
        text = text.replace("[MASK]", str(tokenizer.mask_token))
        if str(tokenizer.mask_token) not in text:
            raise UserError(f"the text has no mask: write [MASK] in place of a word in {text!r}")
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=vocabulary.max_length).to(
            model.device
        )
        rows = (inputs["input_ids"].reshape(-1) == tokenizer.mask_token_id).nonzero().squeeze(1)
        accepted = {k: inputs[k] for k in ("input_ids", "attention_mask")}
        with torch.inference_mode():
            chances = logits_at(model, Batch(accepted, rows, rows)).softmax(dim=-1)
        found = []
        for position, row in zip(rows.tolist(), chances, strict=True):
            best = row.topk(5)
            fillings = [
                {"token": tokenizer.decode([i]).strip(), "probability": round(p, 4)}
                for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            ]
            found.append({"position": position, "fillings": fillings})
        return found


@TASKS.register("mlm")
class Settings(Section):
    """Settings of the task ``mlm``."""

    mask: Annotated[float, Field(gt=0.0, lt=1.0, description="Fraction of the tokens that are masked.")] = 0.15
    whole_word: bool = Field(default=False, description="Mask all tokens of a word together.")

    def build(self) -> Task:
        """Build the task."""
        return MaskedLM(self.mask, self.whole_word)
