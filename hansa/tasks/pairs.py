"""Two texts, one label: are they paraphrases, does the answer match the question?

Both texts go through the model together, as the tokeniser joins them; which of the two a token belongs to is told to
models that want to know (token types). What is too long is cut where it is longest. Metrics are those of `classify`;
``negative`` names the class that means "no", so that F1 is the other one's.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from hansa.core.batch import Batch
from hansa.core.errors import UserError
from hansa.core.settings import Section
from hansa.data.examples import Encoded, Examples, Unusable
from hansa.data.formats.annotated import BadRow, label_of
from hansa.data.rows import Row
from hansa.data.source import Source
from hansa.tasks.base import TASKS, Task, Vocabulary, as_tensors, pad
from hansa.tasks.classify import Classify, class_probabilities

BETWEEN = "\t"  # of the two texts, where they are given as one


@dataclass(frozen=True)
class Pairs:
    single: Classify  # what it has in common with the classification of one text
    headline: str = "accuracy"
    auto: ClassVar[str] = Classify.auto
    lower_is_better: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = True
    takes: ClassVar[int] = 2  # texts for one prediction

    @property
    def labels(self) -> tuple[str, ...]:
        return self.single.labels

    def labels_in(self, row: Row, source: Source) -> Iterator[str]:
        yield from self.single.labels_in(row, source)

    def classes(self, names: Iterable[str]) -> tuple[str, ...]:
        return self.single.classes(names)

    def texts_in(self, row: Row, source: Source) -> list[str]:
        try:
            return [row[source.text], second_of(row, source)]
        except BadRow:
            return []  # reported when the row is encoded

    def encode(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterator[Encoded | Unusable]:
        known = {label: i for i, label in enumerate(vocabulary.labels)}
        firsts, seconds, labels = [], [], []
        for row in rows:
            try:
                second, label = second_of(row, source), label_of(row, source.label)
                if label not in known:
                    raise BadRow(f"its label (field '{source.label}') is not one of {', '.join(vocabulary.labels)}")
            except BadRow as error:
                yield Unusable(row.place, str(error))
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
        batch = self.single.batch(examples, indices, rng, vocabulary)
        if vocabulary.types < 2:
            return batch
        types, _ = pad(examples, indices, 0, examples.tags)
        return replace(batch, inputs=batch.inputs | as_tensors(token_type_ids=types))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.single.loss(model, batch)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        return self.single.score(model, batch)

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        return self.single.metrics(sums)

    def predict(self, model: Any, vocabulary: Vocabulary, text: str) -> list[dict[str, Any]]:
        first, between, second = text.partition(BETWEEN)
        if not between or not first.strip() or not second.strip():
            raise UserError("task 'pairs' looks at two texts: give both")
        [ids], [types] = joined(vocabulary, [first], [second])
        arrays = {"input_ids": np.array([ids])} | (
            {"token_type_ids": np.array([types])} if vocabulary.types > 1 else {}
        )
        return class_probabilities(model, vocabulary, as_tensors(**arrays))


def second_of(row: Row, source: Source) -> str:
    text = row.get(source.second)
    if not isinstance(text, str) or not text.strip():
        raise BadRow(f"field '{source.second}' (the other text, named by 'second:') is missing, empty or not text")
    return text


def joined(vocabulary: Vocabulary, firsts: list[str], seconds: list[str]) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids of each pair, and for each token which text it belongs to."""
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
class Settings(Section):
    labels: tuple[str, ...] = ()
    negative: str = ""  # the class that means "no": it counts for accuracy, not for F1

    def build(self) -> Task:
        return Pairs(Classify(self.labels, negative=self.negative))
