"""Named-entity recognition: a BIO tag per word (Ramshaw & Marcus, 1995), predicted at the first token of the word.

    strict   boundaries and type must both be correct
    type     the type must be correct and the spans overlap            (Segura-Bedmar et al., 2013, SemEval task 9)

F1 is averaged over entities (micro), over types (macro) and over types by their frequency (weighted).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hansa.core.batch import Batch
from hansa.data.examples import Encoded, Examples, Unusable
from hansa.data.formats.annotated import OUTSIDE, WORD, BadRow, bio_spans, words_and_tags
from hansa.data.rows import BAD_ANNOTATION, OTHER_LABEL, TOO_LONG, Row
from hansa.data.source import Source
from hansa.tasks.base import (
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
from hansa.tasks.target_rows import logits_at

NO_TAG = -1  # the tag of special tokens, and of all tokens of a word after its first
Span = tuple[int, int, str]


@dataclass(frozen=True)
class Tag:
    """The task ``ner``."""

    labels: tuple[str, ...] = ()  # entity types
    discovery: LabelDiscovery = NO_DISCOVERY
    auto: ClassVar[str] = "AutoModelForTokenClassification"
    headline: ClassVar[str] = "strict_f1"
    lower_metrics: ClassVar[frozenset[str]] = frozenset({"loss"})
    needs_labels: ClassVar[bool] = True

    def labels_in(self, row: Row, source: Source) -> Iterator[str]:
        """See `LabelledTask.labels_in`."""
        try:
            yield from (tag[2:] for tag in words_and_tags(row, source.text, source.overlaps)[1] if tag != OUTSIDE)
        except BadRow:
            return  # reported when the row is encoded

    def classes(self, names: Iterable[str]) -> tuple[str, ...]:
        """O, and B- and I- of each entity type."""
        return (OUTSIDE, *(f"{prefix}-{name}" for name in names for prefix in "BI"))

    def encode(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterator[Encoded | Unusable]:
        """See `Task.encode`."""
        known = {tag: i for i, tag in enumerate(vocabulary.labels)}
        usable: list[Row] = []
        texts: list[list[str]] = []
        tags: list[list[int]] = []
        for row in rows:
            try:
                words, named = words_and_tags(row, source.text, source.overlaps)
            except BadRow as error:
                yield Unusable(row.place, str(error), kind=BAD_ANNOTATION)
                continue
            if not known.keys() >= set(named):
                types = ", ".join(tag[2:] for tag in vocabulary.labels if tag.startswith("B-"))
                reason = f"it has an entity type that is not one of {types}"
                yield Unusable(row.place, reason, kind=OTHER_LABEL)
                continue
            usable.append(row)
            texts.append(words)
            tags.append([known[tag] for tag in named])
        inside = {i for tag, i in known.items() if tag.startswith("I-")}
        for row, pieces, numbers in zip(usable, _pieces(texts, vocabulary), tags, strict=True):
            spans = bio_spans([vocabulary.labels[number] for number in numbers])
            if max((sum(map(len, pieces[s:e])) for s, e, _ in spans), default=0) > vocabulary.text_length:
                reason = f"an entity does not fit into a sample of {vocabulary.max_length} tokens (data.max_length)"
                yield Unusable(row.place, reason, kind=TOO_LONG)
            else:
                yield from _windows(pieces, numbers, inside, vocabulary)

    def batch(
        self, examples: Examples, indices: NDArray[np.int64], rng: np.random.Generator, vocabulary: Vocabulary
    ) -> Batch:
        """See `Task.batch`."""
        ids, mask = pad(examples, indices, vocabulary.pad)
        tags, _ = pad(examples, indices, NO_TAG, examples.tags)
        rows = np.flatnonzero(tags != NO_TAG)
        targets = tags.reshape(-1)[rows]
        return Batch(as_tensors(input_ids=ids, attention_mask=mask), torch.from_numpy(rows), torch.from_numpy(targets))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """See `Task.loss`."""
        return nn.functional.cross_entropy(logits_at(model, batch), batch.targets)

    def score(self, model: Any, batch: Batch) -> dict[str, float]:
        """See `Task.score`."""
        assert batch.rows is not None
        logits = logits_at(model, batch)
        sums = {
            "nll": float(nn.functional.cross_entropy(logits, batch.targets, reduction="sum")),
            "words": float(len(batch.targets)),
        }
        names = model.config.id2label
        sample = (batch.rows // batch.inputs["input_ids"].shape[1]).cpu().numpy()
        ends = np.flatnonzero(np.diff(sample, append=-1)) + 1
        true, guessed = batch.targets.tolist(), logits.argmax(dim=-1).tolist()
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            found = [bio_spans([names[i] for i in series[start:end]]) for series in (true, guessed)]
            count(found[0], found[1], sums)
        return sums

    def sum_names(self, labels: tuple[str, ...], decode: bool) -> tuple[str, ...]:
        """See `NamedSums.sum_names`."""
        kinds = dict.fromkeys(tag[2:] for tag in labels if tag != OUTSIDE)
        return ("nll", "words", *(f"{what}:{x}" for x in kinds for what in ("hit", "guessed", "true", "overlap")))

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """See `Task.metrics`."""
        words = sums.get("words", 0.0)
        if not words:
            return {}
        strict = f1_averages(sums)
        hits, guessed, true = (
            sum(n for key, n in sums.items() if key.startswith(prefix)) for prefix in ("hit:", "guessed:", "true:")
        )
        return {
            "strict_f1": strict["micro_f1"],
            "precision": hits / max(1.0, guessed),
            "recall": hits / max(1.0, true),
            "type_f1": f1_averages(sums, "overlap")["micro_f1"],
            "macro_f1": strict["macro_f1"],
            "weighted_f1": strict["weighted_f1"],
            "loss": sums["nll"] / words,
        }

    def predict(self, model: Any, vocabulary: Vocabulary, text: str) -> list[dict[str, Any]]:
        """The entities of a text with their types and character offsets."""
        places = [match.span() for match in WORD.finditer(text)]
        pieces = _pieces([[text[s:e] for s, e in places]], vocabulary)[0]
        names: list[str] = []
        for window in _windows(pieces, [0] * len(places), set(), vocabulary):
            inputs = {
                "input_ids": torch.tensor([window.ids], device=model.device),
                "attention_mask": torch.ones(1, len(window.ids), dtype=torch.long, device=model.device),
            }
            with torch.inference_mode():
                guesses = model(**inputs).logits[0].argmax(dim=-1).tolist()
            names += [model.config.id2label[g] for g, tag in zip(guesses, window.tags, strict=True) if tag != NO_TAG]
        return [
            {"text": text[places[i][0] : places[j - 1][1]], "type": kind, "span": [places[i][0], places[j - 1][1]]}
            for i, j, kind in bio_spans(names)
        ]


def count(true: list[Span], guessed: list[Span], sums: dict[str, float]) -> None:
    """Add the counts of one sentence to the sums, by entity type.

    A predicted entity that overlaps several true ones of its type is matched with the one whose boundaries are closest,
    as in nervaluate; a true entity is matched once.
    """

    def add(what: str, kind: str) -> None:
        """Add one to the count of an entity type."""
        sums[f"{what}:{kind}"] = sums.get(f"{what}:{kind}", 0.0) + 1.0

    left = list(true)
    for span in true:
        add("true", span[2])
    for span in guessed:
        add("guessed", span[2])
        if span in true:
            add("hit", span[2])
        overlapping = [t for t in left if t[2] == span[2] and t[0] < span[1] and span[0] < t[1]]
        if overlapping:
            left.remove(min(overlapping, key=lambda t: abs(t[0] - span[0]) + abs(t[1] - span[1])))
            add("overlap", span[2])


Pieces = list[list[int]]  # token ids of each word


def _pieces(texts: list[list[str]], vocabulary: Vocabulary) -> list[Pieces]:
    """The token ids of each word of each text."""
    if not texts:
        return []
    tokenizer = vocabulary.tokenizer
    encoded = tokenizer(texts, is_split_into_words=True, add_special_tokens=False, return_attention_mask=False)
    found: list[Pieces] = []
    for i, words in enumerate(texts):
        pieces: Pieces = [[] for _ in words]
        for token, word in zip(encoded["input_ids"][i], encoded.word_ids(i), strict=True):
            pieces[word].append(token)
        unknown = tokenizer.unk_token_id if tokenizer.unk_token_id is not None else vocabulary.pad
        found.append([p[: vocabulary.text_length] or [unknown] for p in pieces])
    return found


def _windows(pieces: Pieces, tags: list[int], inside: set[int], vocabulary: Vocabulary) -> Iterator[Encoded]:
    """A sentence as one sample or, if it is too long, as several, split between words and outside entities."""
    start = 0
    while start < len(pieces):
        end, used = start, 0
        while end < len(pieces) and used + len(pieces[end]) <= vocabulary.text_length:
            used += len(pieces[end])
            end += 1
        cut = end
        while cut < len(pieces) and cut > start and tags[cut] in inside:
            cut -= 1
        end = cut if cut > start else end  # adjacent entities that all begin with I- may fill a sample
        yield _sample(pieces[start:end], tags[start:end], vocabulary)
        start = end


def _sample(pieces: Pieces, tags: list[int], vocabulary: Vocabulary) -> Encoded:
    before, after = vocabulary.around
    ids, marks = list(before), [NO_TAG] * len(before)
    for piece, tag in zip(pieces, tags, strict=True):
        ids += piece
        marks += [tag] + [NO_TAG] * (len(piece) - 1)
    return Encoded([*ids, *after], tags=[*marks, *[NO_TAG] * len(after)])


@TASKS.register("ner")
class Settings(LabelSettings):
    """Settings of the task ``ner``; its labels are the entity types."""

    def build(self) -> Task:
        """Build the task."""
        return Tag(self.labels, self.discovery)
