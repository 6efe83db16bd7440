"""Classification of text pairs: one label for two texts, such as paraphrases, or question and answer.

The tokenizer joins both texts into one input. Models with token types are given which of the two a token belongs to. If
the input is too long, the longer text is truncated first. Metrics are those of `classify`; ``negative`` names the
negative class, which does not count for F1.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from hansa.core.batch import Batch
from hansa.core.errors import UserError
from hansa.data.examples import Encoded, Examples, Unusable
from hansa.data.formats.annotated import BadRow, label_of
from hansa.data.rows import BAD_ANNOTATION, OTHER_LABEL, Row
from hansa.data.source import Source
from hansa.tasks.base import TASKS, LabelDiscovery, LabelSettings, Task, Vocabulary, as_tensors, pad
from hansa.tasks.classify import Classify, class_probabilities

BETWEEN = "\t"  # separates the two texts in the argument of `Pairs.predict`


@dataclass(frozen=True)
class Pairs:
    """The task ``pairs``."""

    single: Classify  # the classification of one text, which shares labels, loss and metrics
    headline: str = "accuracy"
    auto: ClassVar[str] = Classify.auto
    lower_metrics: ClassVar[frozenset[str]] = Classify.lower_metrics
    needs_labels: ClassVar[bool] = True
    takes: ClassVar[int] = 2  # number of texts for one prediction

    @property
    def labels(self) -> tuple[str, ...]:
        """See `LabelledTask.labels`."""
        return self.single.labels

    @property
    def discovery(self) -> LabelDiscovery:
        """See `DiscoveringTask.discovery`."""
        return self.single.discovery

    def labels_in(self, row: Row, source: Source) -> Iterator[str]:
        """See `LabelledTask.labels_in`."""
        yield from self.single.labels_in(row, source)

    def classes(self, names: Iterable[str]) -> tuple[str, ...]:
        """See `LabelledTask.classes`."""
        return self.single.classes(names)

    def texts_in(self, row: Row, source: Source) -> list[str]:
        """See `MultiTextTask.texts_in`."""
        try:
            return [row[source.text], second_of(row, source)]
        except BadRow:
            return []  # reported when the row is encoded

    def encode(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterator[Encoded | Unusable]:
        """See `Task.encode`."""
        known = {label: i for i, label in enumerate(vocabulary.labels)}
        firsts, seconds, labels = [], [], []
        for row in rows:
            try:
                second, label = second_of(row, source), label_of(row, source.label)
            except BadRow as error:
                yield Unusable(row.place, str(error), kind=BAD_ANNOTATION)
                continue
            if label not in known:
                reason = f"its label (field '{source.label}') is not one of {', '.join(vocabulary.labels)}"
                yield Unusable(row.place, reason, kind=OTHER_LABEL)
                continue
            firsts.append(row[source.text])
            seconds.append(second)
            labels.append(known[label])
        if firsts:
            ids, types = joined(vocabulary, firsts, seconds)
            yield from (Encoded(i, label, t) for i, label, t in zip(ids, labels, types, strict=True))

    def batch(
        self, examples: Examples, indices: NDArray[np.int64], rng: np.random.Generator, vocabulary: Vocabulary
    ) -> Batch:
        """See `Task.batch`."""
        batch = self.single.batch(examples, indices, rng, vocabulary)
        if vocabulary.types < 2:
            return batch
        types, _ = pad(examples, indices, 0, examples.tags)
        return replace(batch, inputs=batch.inputs | as_tensors(token_type_ids=types))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """See `Task.loss`."""
        return self.single.loss(model, batch)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """See `Task.score`."""
        return self.single.score(model, batch)

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """See `Task.metrics`."""
        return self.single.metrics(sums)

    def predict(self, model: Any, vocabulary: Vocabulary, text: str) -> list[dict[str, Any]]:
        """The probability of each class for two texts, which are separated by a tab."""
        first, between, second = text.partition(BETWEEN)
        if not between or not first.strip() or not second.strip():
            raise UserError("task 'pairs' classifies two texts: give both")
        [ids], [types] = joined(vocabulary, [first], [second])
        arrays = {"input_ids": np.array([ids])} | (
            {"token_type_ids": np.array([types])} if vocabulary.types > 1 else {}
        )
        return class_probabilities(model, vocabulary, as_tensors(**arrays))


def second_of(row: Row, source: Source) -> str:
    """The second text of a row; raises `BadRow` if it has none."""
    text = row.get(source.second)
    if not isinstance(text, str) or not text.strip():
        raise BadRow(f"field '{source.second}' (the second text, named by 'second:') is missing, empty or not text")
    return text


def joined(vocabulary: Vocabulary, firsts: list[str], seconds: list[str]) -> tuple[list[list[int]], list[list[int]]]:
    """The token ids and token types of each pair."""
    encoded = vocabulary.tokenizer(
        firsts,
        seconds,
        truncation="longest_first",
        max_length=vocabulary.max_length,
        return_attention_mask=False,
        return_token_type_ids=True,
    )
    return encoded["input_ids"], encoded["token_type_ids"]


@TASKS.register("pairs")
class Settings(LabelSettings):
    """Settings of the task ``pairs``."""

    negative: str = Field(default="", description="The negative class; it counts for accuracy but not for F1.")

    def build(self) -> Task:
        """Build the task."""
        return Pairs(Classify(self.labels, negative=self.negative, discovery=self.discovery))
