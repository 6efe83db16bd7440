"""Text classification: one label for a text, for a mention (assertion) or for a pair of mentions (relation) in it.

The labels are listed in the federation file. If they are not, the silos of a simulation report the label names in their
data; between organisations they do so only with ``discover_labels``. It is a release and stated in the report.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from hansa.core.batch import Batch
from hansa.core.errors import UserError
from hansa.core.seeds import stream
from hansa.data.examples import Encoded, Examples, Unusable
from hansa.data.formats.annotated import NO_RELATION, BadRow, Entity, label_of, mark, mentions, pairs
from hansa.data.rows import BAD_ANNOTATION, OTHER_LABEL, TOO_LONG, Row
from hansa.data.source import Source
from hansa.tasks.base import (
    ANY_LENGTH,
    NO_DISCOVERY,
    TASKS,
    LabelDiscovery,
    LabelSettings,
    Task,
    Vocabulary,
    as_tensors,
    f1_averages,
    pad,
)

Focus = tuple[int, int]  # the part of a text that must not be truncated

WHOLE: Focus = (0, 0)  # no part: a long text is cut at its end
CHUNK = 1000  # samples tokenised at once: a text with many entities has very many pairs
CHARACTERS = 2_000_000  # of their texts, at most
ESTIMATED = ", estimated from some of these pairs"
ALL_OF = 200  # `hansa check` tokenises all derived samples of a row that has no more of them


class Sample(NamedTuple):
    """A text with a label; ``mentions`` are marked in it when it is tokenised, because it may have very many pairs."""

    label: str
    text: str
    mentions: tuple[Entity, ...] = ()

    def marked(self) -> tuple[str, Focus]:
        """The text with its mentions marked, and the part that they are in."""
        return mark(self.text, *self.mentions) if self.mentions else (self.text, WHOLE)


class Placed(NamedTuple):
    """A sample with its file and line, whether it is derived (`Unusable.derived`), and the number of its row."""

    place: str
    sample: Sample
    derived: bool
    row: int


def whole_texts(row: Row, source: Source) -> Iterator[Sample]:
    """The text of a row with its label."""
    yield Sample(label_of(row, source.label), row[source.text])


def marked_mentions(row: Row, source: Source) -> Iterator[Sample]:
    """One sample for each mention of a row."""
    for mention, label in mentions(row, source.label, source.text):
        yield Sample(label, row[source.text], (mention,))


def marked_pairs(row: Row, source: Source, unrelated: str = NO_RELATION) -> Iterator[Sample]:
    """One sample for each pair of mentions of a row."""
    for head, tail, label in pairs(row, source.label, source.text, unrelated):
        yield Sample(label, row[source.text], (head, tail))


@dataclass(frozen=True)
class Classify:
    """The tasks ``classify``, ``assertion`` and ``relation``; ``samples`` makes samples from a row."""

    labels: tuple[str, ...] = ()
    samples: Callable[[Row, Source], Iterable[Sample]] = whole_texts
    negative: str = ""  # the negative class, which counts for accuracy but not for F1
    headline: str = "accuracy"
    discovery: LabelDiscovery = NO_DISCOVERY
    auto: ClassVar[str] = "AutoModelForSequenceClassification"
    lower_metrics: ClassVar[frozenset[str]] = frozenset({"loss"})
    needs_labels: ClassVar[bool] = True

    def labels_in(self, row: Row, source: Source) -> Iterator[str]:
        """See `LabelledTask.labels_in`."""
        try:
            yield from (sample.label for sample in self.samples(row, source))
        except BadRow:
            return  # reported when the row is encoded

    def classes(self, names: Iterable[str]) -> tuple[str, ...]:
        """See `LabelledTask.classes`."""
        return tuple(names)

    def encode(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterator[Encoded | Unusable]:
        """See `Task.encode`."""
        held: list[Placed] = []
        size = 0
        for number, row in enumerate(rows):
            found = self._labels(row, source, vocabulary)
            if isinstance(found, Unusable):
                yield found
                continue
            several, full = found.total() > 1, False
            for sample in self.samples(row, source):
                held.append(self._placed(sample, row, several, number))
                size += len(sample.text)
                if len(held) >= CHUNK or size >= CHARACTERS:
                    yield from _encoded(held, vocabulary)
                    held, size, full = [], 0, True
            if full:  # where a row is cut does not change the order in which problems are found
                yield from _encoded(held, vocabulary)
                held, size = [], 0
        yield from _encoded(held, vocabulary)

    def examine(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> tuple[int, list[Unusable]]:
        """See `DerivingTask.examine`."""
        found = [(row, self._labels(row, source, vocabulary)) for row in rows]
        unusable = [labels for _, labels in found if isinstance(labels, Unusable)]
        usable = [(row, labels) for row, labels in found if not isinstance(labels, Unusable)]
        count = sum(labels.total() for _, labels in usable)
        if vocabulary.max_length >= ANY_LENGTH:
            return count, unusable
        many = sum(self._derived(labels) > ALL_OF for _, labels in usable)
        for row, labels in usable:
            most = CHARACTERS // max(1, many) // max(1, len(row[source.text]))
            step = 1 if self._derived(labels) <= ALL_OF else ceil(self._derived(labels) / max(1, min(most, ALL_OF)))
            for one in self._too_long(row, source, labels, step, vocabulary):
                estimated = one.derived and step > 1
                unusable.append(one._replace(reason=one.reason + ESTIMATED, stands_for=step) if estimated else one)
        return max(0, count - sum(one.stands_for for one in unusable if one.kind == TOO_LONG)), unusable

    def _too_long(
        self, row: Row, source: Source, labels: Counter[str], step: int, vocabulary: Vocabulary
    ) -> Iterator[Unusable]:
        """The samples of a row that do not fit; of the derived samples, one of every ``step`` is tried, at random."""
        rng, number, chosen = stream(0, row.place, "examine"), 0, 0
        held: list[Placed] = []
        for sample in self.samples(row, source):
            one = self._placed(sample, row, labels.total() > 1, 0)
            if one.derived:
                chosen = int(rng.integers(step)) if number % step == 0 else chosen
                number += 1
            if not one.derived or (number - 1) % step == chosen:
                held.append(one)
            if len(held) * len(sample.text) >= CHARACTERS:
                yield from _unusable(held, vocabulary)
                held = []
        yield from _unusable(held, vocabulary)

    def _derived(self, labels: Counter[str]) -> int:
        """How many samples of a row are derived, by the labels of all its samples."""
        return labels[self.negative] if labels.total() > 1 else 0

    def _labels(self, row: Row, source: Source, vocabulary: Vocabulary) -> Counter[str] | Unusable:
        """How many samples of each label a row has, or why it cannot be used."""
        try:
            found = Counter(sample.label for sample in self.samples(row, source))
        except BadRow as error:
            return Unusable(row.place, str(error), kind=BAD_ANNOTATION)
        if found.keys() <= set(vocabulary.labels):
            return found
        reason = f"its label (field '{source.label}') is not one of {', '.join(vocabulary.labels)}"
        return Unusable(row.place, reason, kind=OTHER_LABEL)

    def _placed(self, sample: Sample, row: Row, several: bool, number: int) -> Placed:
        # In a text with entities, every pair without a relation is a derived sample of the negative class.
        return Placed(row.place, sample, several and sample.label == self.negative, number)

    def batch(
        self, examples: Examples, indices: NDArray[np.int64], rng: np.random.Generator, vocabulary: Vocabulary
    ) -> Batch:
        """See `Task.batch`."""
        ids, mask = pad(examples, indices, vocabulary.pad)
        targets = examples.labels[indices].astype(np.int64)
        return Batch(as_tensors(input_ids=ids, attention_mask=mask), None, torch.from_numpy(targets))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """See `Task.loss`."""
        return nn.functional.cross_entropy(model(**batch.inputs).logits, batch.targets)

    def score(self, model: Any, batch: Batch) -> dict[str, float]:
        """See `Task.score`."""
        logits, targets = model(**batch.inputs).logits, batch.targets
        guesses = logits.argmax(dim=-1)
        sums = {
            "nll": float(nn.functional.cross_entropy(logits, targets, reduction="sum")),
            "samples": float(len(targets)),
            "correct": float((guesses == targets).sum()),
        }
        for label in set(guesses.tolist() + targets.tolist()):
            name, guessed, true = model.config.id2label[label], guesses == label, targets == label
            sums[f"hit:{name}"] = float((guessed & true).sum())
            sums[f"guessed:{name}"] = float(guessed.sum())
            sums[f"true:{name}"] = float(true.sum())
        return sums

    def sum_names(self, labels: tuple[str, ...], decode: bool) -> tuple[str, ...]:
        """See `NamedSums.sum_names`."""
        return ("nll", "samples", "correct", *(f"{what}:{x}" for x in labels for what in ("hit", "guessed", "true")))

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """See `Task.metrics`."""
        samples = sums.get("samples", 0.0)
        if not samples:
            return {}
        counted = {key: n for key, n in sums.items() if key.partition(":")[2] != self.negative or not self.negative}
        return {"accuracy": sums["correct"] / samples, **f1_averages(counted), "loss": sums["nll"] / samples}

    def predict(self, model: Any, vocabulary: Vocabulary, text: str) -> list[dict[str, Any]]:
        """The probability of each class; mentions are marked as [[…]] and ((…))."""
        text, focus = self._marked(text)
        ids = _around(vocabulary, [text], [focus])[0]
        if ids is None:
            raise UserError(f"the mentions are too far apart for a sample of {vocabulary.max_length} tokens")
        return class_probabilities(model, vocabulary, as_tensors(input_ids=np.array([ids])))

    def _marked(self, text: str) -> tuple[str, Focus]:
        """Parse the notation of mentions on the command line: [[head]], and ((tail)) for pairs."""
        if self.samples is whole_texts:
            return text, WHOLE
        wanted = ["[["] if self.samples is marked_mentions else ["[[", "(("]
        places = {}
        for opening, closing in (("[[", "]]"), ("((", "))")):
            found = re.search(re.escape(opening) + "(.+?)" + re.escape(closing), text)
            if opening in wanted and found is None:
                raise UserError(f"mark the mention as {opening}…{closing} in {text!r}")
            if found is not None:
                places[opening] = found
        shown, spans, position = "", {}, 0
        for opening, found in sorted(places.items(), key=lambda item: item[1].start()):
            shown += text[position : found.start()]
            spans[opening] = Entity(len(shown), len(shown) + len(found.group(1)), "")
            shown, position = shown + found.group(1), found.end()
        return mark(shown + text[position:], spans["[["], spans.get("(("))


def class_probabilities(model: Any, vocabulary: Vocabulary, inputs: dict[str, Tensor]) -> list[dict[str, Any]]:
    """The classes of one text with their probabilities, in descending order."""
    inputs = {name: values.to(model.device) for name, values in inputs.items()}
    with torch.inference_mode():
        chances = model(**inputs, attention_mask=torch.ones_like(inputs["input_ids"])).logits.softmax(dim=-1)[0]
    found = sorted(zip(vocabulary.labels, chances.tolist(), strict=True), key=lambda pair: -pair[1])
    return [{"label": label, "probability": round(p, 4)} for label, p in found]


def _encoded(placed: list[Placed], vocabulary: Vocabulary) -> Iterator[Encoded | Unusable]:
    if not placed:
        return
    known = {label: i for i, label in enumerate(vocabulary.labels)}
    texts, focuses = zip(*(one.sample.marked() for one in placed), strict=True)
    for one, ids in zip(placed, _around(vocabulary, list(texts), list(focuses)), strict=True):
        if ids is None:
            reason = f"its mentions are too far apart for a sample of {vocabulary.max_length} tokens (data.max_length)"
            yield Unusable(one.place, reason, one.derived, TOO_LONG)
        else:
            yield Encoded(ids, known[one.sample.label], row=one.row)


def _unusable(placed: list[Placed], vocabulary: Vocabulary) -> Iterator[Unusable]:
    yield from (one for one in _encoded(placed, vocabulary) if isinstance(one, Unusable))


def _around(vocabulary: Vocabulary, texts: list[str], focuses: list[Focus]) -> list[list[int] | None]:
    """Token ids of each text; a long text is cut around its focus; None if the focus does not fit."""
    offsets = any(focus != WHOLE for focus in focuses)
    encoded = vocabulary.encodings(texts, special=False, windows=False, offsets=offsets)
    before, after = vocabulary.around
    found: list[list[int] | None] = []
    for encoding, (start, end) in zip(encoded, focuses, strict=True):
        ids = encoding.ids
        if len(ids) > vocabulary.text_length:
            inside = [0]
            if end:
                inside = [i for i, (s, e) in enumerate(encoding.offsets) if s < end and e > start] or [0]
            spare = vocabulary.text_length - (inside[-1] - inside[0] + 1)
            if spare < 0:
                found.append(None)
                continue
            first = min(max(0, inside[0] - spare // 2), len(ids) - vocabulary.text_length)
            ids = ids[first : first + vocabulary.text_length]
        found.append([*before, *ids, *after])
    return found


@TASKS.register("classify")
class Settings(LabelSettings):
    """Settings of the task ``classify``."""

    def build(self) -> Task:
        """Build the task."""
        return Classify(self.labels, discovery=self.discovery)


@TASKS.register("assertion")
class Assertion(LabelSettings):
    """Settings of the task ``assertion``: classify mentions, for example as present, absent or possible."""

    def build(self) -> Task:
        """Build the task."""
        return Classify(self.labels, marked_mentions, headline="macro_f1", discovery=self.discovery)


@TASKS.register("relation")
class Relation(LabelSettings):
    """Settings of the task ``relation``: classify the relation of two mentions."""

    negative: Annotated[
        str, Field(min_length=1, description="Label of pairs without a relation; it does not count for F1.")
    ] = NO_RELATION

    def build(self) -> Task:
        """Build the task."""
        missing = (self.negative,) if self.labels and self.negative not in self.labels else ()
        samples = partial(marked_pairs, unrelated=self.negative)
        return Classify(self.labels + missing, samples, self.negative, "micro_f1", self.discovery)
