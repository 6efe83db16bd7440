"""Masked language modelling (Devlin et al., 2019, Section 3.1).

Of the tokens, ``mask`` (15%) are chosen; 80% of those become the mask token, 10% a random token, 10% stay; the
model predicts the original. ``whole_word`` chooses all pieces of a word together. Masks come from the seed, so a
run repeats exactly and evaluation always asks the same questions.
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
from hansa.tasks.base import TASKS, Task, Vocabulary, as_tensors, logits_at, pad, token_metrics, token_scores, windows


@dataclass(frozen=True)
class MaskedLM:
    mask: float = 0.15
    whole_word: bool = False
    auto: ClassVar[str] = "AutoModelForMaskedLM"
    headline: ClassVar[str] = "perplexity"
    lower_is_better: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = False

    def encode(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterable[Encoded]:
        return windows(rows, source, vocabulary)

    def batch(
        self, examples: Examples, indices: NDArray[np.int64], rng: np.random.Generator, vocabulary: Vocabulary
    ) -> Batch:
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
        open_to_choice = ~vocabulary.special[ids]
        if self.whole_word:
            word = np.cumsum(vocabulary.starts[ids], axis=1)  # every piece gets the number of its word
            by_word = rng.random(ids.shape) < self.mask
            chosen = np.take_along_axis(by_word, np.minimum(word, ids.shape[1] - 1), axis=1) & open_to_choice
        else:
            chosen = (rng.random(ids.shape) < self.mask) & open_to_choice
        if not chosen.any():  # a batch with nothing to predict teaches nothing: ask for one token
            chosen[tuple(np.argwhere(open_to_choice)[0] if open_to_choice.any() else (0, 0))] = True
        return chosen

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(logits_at(model, batch), batch.targets)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        return token_scores(logits_at(model, batch), batch.targets)

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        return token_metrics(sums)

    def predict(self, model: nn.Module, vocabulary: Vocabulary, text: str) -> list[dict[str, Any]]:
        """The five likeliest fillings of every mask in the text; write `[MASK]` or the tokeniser's own mask."""
        tokenizer = vocabulary.tokenizer
        text = text.replace("[MASK]", str(tokenizer.mask_token))
        if str(tokenizer.mask_token) not in text:
            raise UserError(f"the text has no mask to fill: write [MASK] where a word is missing in {text!r}")
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
    mask: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    whole_word: bool = False

    def build(self) -> Task:
        return MaskedLM(self.mask, self.whole_word)
