"""A task as a plug-in: predict whether a text contains a keyword.

A task says how rows become samples and samples become batches, what the loss is, and which metrics follow from sums
over all silos. Here the label of a text follows from the text itself, so that the data need no labels.

In a federation file:

    plugins: [examples/keyword_task.py]
    task: {name: keyword, words: [fever, cough]}
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from hansa.core.batch import Batch
from hansa.core.settings import Section
from hansa.data.examples import Encoded, Examples, Unusable
from hansa.data.rows import Row
from hansa.data.source import Source
from hansa.tasks.base import TASKS, Task, Vocabulary, as_tensors, pad

LABELS = ("absent", "present")


@dataclass(frozen=True)
class KeywordTask:
    """Classify texts as containing one of ``words`` or not."""

    words: frozenset[str]
    auto: ClassVar[str] = "AutoModelForSequenceClassification"
    headline: ClassVar[str] = "accuracy"
    lower_metrics: ClassVar[frozenset[str]] = frozenset({"loss"})
    lower_is_better: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = True
    labels: ClassVar[tuple[str, ...]] = LABELS  # they are known, so silos are not asked for them

    def labels_in(self, row: Row, source: Source) -> Iterable[str]:
        """The label of a row."""
        return [LABELS[self._present(row[source.text])]]

    def classes(self, names: Iterable[str]) -> tuple[str, ...]:
        """The classes of the model."""
        return LABELS

    def encode(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterator[Encoded | Unusable]:
        """One sample per row, cut to the longest sample that the federation file allows."""
        texts = [row[source.text] for row in rows]
        encoded = vocabulary.tokenizer(texts, truncation=True, max_length=vocabulary.max_length)
        for text, ids in zip(texts, encoded["input_ids"], strict=True):
            yield Encoded(ids, self._present(text))

    def batch(
        self, examples: Examples, indices: NDArray[np.int64], rng: np.random.Generator, vocabulary: Vocabulary
    ) -> Batch:
        """Padded token ids, and the labels as targets."""
        ids, mask = pad(examples, indices, vocabulary.pad)
        targets = torch.from_numpy(examples.labels[indices].astype(np.int64))
        return Batch(as_tensors(input_ids=ids, attention_mask=mask), None, targets)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean cross-entropy."""
        return nn.functional.cross_entropy(model(**batch.inputs).logits, batch.targets)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """Sums that are added up over batches and silos."""
        logits, targets = model(**batch.inputs).logits, batch.targets
        return {
            "nll": float(nn.functional.cross_entropy(logits, targets, reduction="sum")),
            "samples": float(len(targets)),
            "correct": float((logits.argmax(dim=-1) == targets).sum()),
            "present": float(targets.sum()),
        }

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Accuracy, mean loss, and the fraction of texts that contain a keyword."""
        samples = sums.get("samples", 0.0)
        if not samples:
            return {}
        return {
            "accuracy": sums["correct"] / samples,
            "prevalence": sums["present"] / samples,
            "loss": sums["nll"] / samples,
        }

    def predict(self, model: Any, vocabulary: Vocabulary, text: str) -> list[dict[str, Any]]:
        """Both labels with their probabilities."""
        inputs = vocabulary.tokenizer(text, truncation=True, max_length=vocabulary.max_length, return_tensors="pt")
        with torch.inference_mode():
            chances = model(**inputs.to(model.device)).logits.softmax(dim=-1)[0]
        return [{"label": label, "probability": float(p)} for label, p in zip(LABELS, chances, strict=True)]

    def _present(self, text: str) -> int:
        return int(not self.words.isdisjoint(text.lower().split()))


@TASKS.register("keyword")
class Keyword(Section):
    """Settings of the task ``keyword``."""

    words: tuple[str, ...] = Field(description="The keywords, in lower case.")

    def build(self) -> Task:
        """The task."""
        return KeywordTask(frozenset(self.words))
