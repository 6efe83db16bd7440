"""The interface of a task, and functions that tasks share.

A task declares which of its metrics are better low; `better` returns the direction of a metric.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from hansa.core.batch import Batch
from hansa.core.errors import UserError
from hansa.core.registry import Registry
from hansa.core.settings import Count, Section
from hansa.data.examples import Encoded, Examples, Unusable
from hansa.data.rows import Row
from hansa.data.source import Source
from hansa.models.tokenizer import starts_word

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Direction = Literal["low", "high"]
ANY_LENGTH = 1 << 30  # the maximum length of a sample where it is not known yet


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer with its properties as arrays, the maximum length of a sample, and the model's classes."""

    tokenizer: "PreTrainedTokenizerBase"
    max_length: int
    labels: tuple[str, ...] = ()
    types: int = 0  # number of token types of the model; they mark which of two texts a token belongs to

    @cached_property
    def pad(self) -> int:
        """The id of the padding token."""
        return int(self.tokenizer.pad_token_id)

    @cached_property
    def mask(self) -> int:
        """The id of the mask token; raises `UserError` if the tokenizer has none."""
        if self.tokenizer.mask_token_id is None:
            raise UserError("task 'mlm' needs a tokenizer with a mask token, and this has none: use task 'causal-lm'")
        return int(self.tokenizer.mask_token_id)

    @cached_property
    def size(self) -> int:
        """The number of tokens."""
        return len(self.tokenizer)

    @cached_property
    def special(self) -> NDArray[np.bool_]:
        """For each token id, whether it is a special token."""
        mask = np.zeros(self.size, bool)
        mask[self.tokenizer.all_special_ids] = True
        return mask

    @cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokenizer puts before and after a text."""
        bare, whole = self.tokenizer("a", add_special_tokens=False)["input_ids"], self.tokenizer("a")["input_ids"]
        before = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
        return whole[:before], whole[before + len(bare) :]

    def encodings(self, texts: list[str], *, special: bool, windows: bool, offsets: bool) -> list[Any]:
        """The texts as `tokenizers.Encoding`, by the tokenizer's own library, which uses several cores.

        Conversion by transformers takes as long as tokenisation itself. ``special``: add special tokens; ``windows``:
        cut texts after ``max_length`` tokens, the rest is in ``overflowing``; ``offsets``: needed, which takes time.
        """
        cut = {"truncation": True, "max_length": self.max_length} if windows else {}
        self.tokenizer([""], **cut)  # it tells the library how to cut, and whether texts may name special tokens
        library = self.tokenizer.backend_tokenizer
        encode = library.encode_batch if offsets else library.encode_batch_fast
        found: list[Any] = encode(texts, add_special_tokens=special)
        return found

    @property
    def text_length(self) -> int:
        """How many tokens of text fit into one sample, besides special tokens."""
        return self.max_length - sum(map(len, self.around))

    @cached_property
    def starts(self) -> NDArray[np.bool_]:
        """For each token id, whether it begins a word or is special."""
        return np.asarray(starts_word(self.tokenizer)) | self.special


class Task(Protocol):
    """What a model learns: how rows become batches, the loss, and the metrics.

    ``auto``: the transformers class of the model. ``needs_labels``: whether the model has classes; if so, the task is a
    `LabelledTask`. ``lower_metrics``: the metrics that are better low; all others are better high (`better`). A task
    whose model reads nothing after the token that it predicts may declare ``packs = True``: its samples may share a row
    (`train.packing`).
    """

    auto: ClassVar[str]
    lower_metrics: ClassVar[frozenset[str]]
    needs_labels: ClassVar[bool]

    @property
    def headline(self) -> str:
        """The metric that tables show."""

    def encode(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterable[Encoded | Unusable]:
        """The samples of some rows, as token ids."""

    def batch(
        self, examples: Examples, indices: NDArray[np.int64], rng: np.random.Generator, vocabulary: Vocabulary
    ) -> Batch:
        """The samples at ``indices`` as tensors; ``rng`` is the only source of randomness."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The training loss of a batch."""

    def score(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """Statistics of a batch that are summed over batches and silos before metrics are computed."""

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The metrics by name, from summed statistics; empty if there are none."""

    def predict(self, model: nn.Module, vocabulary: Vocabulary, text: str) -> list[dict[str, Any]]:
        """The model's predictions for one text; raises `UserError` if the text lacks what the task needs."""


def better(task: Task, metric: str) -> Direction:
    """Whether a metric of a task is better low or high."""
    return "low" if metric in task.lower_metrics else "high"


class LabelledTask(Task, Protocol):
    """A task whose model has classes. Their names come from the federation file or from the silos' data."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The label names that the federation file lists; empty if it lists none."""

    def labels_in(self, row: Row, source: Source) -> Iterable[str]:
        """The label names that a row uses; silos report them if the federation file lists none."""

    def classes(self, names: Iterable[str]) -> tuple[str, ...]:
        """The model's classes for these label names."""


@dataclass(frozen=True)
class LabelDiscovery:
    """Whether silos may report the names of the labels in their data, and the least number of rows behind a label."""

    allowed: bool = False
    min_rows: int = 20


NO_DISCOVERY = LabelDiscovery()


@runtime_checkable
class DiscoveringTask(Protocol):
    """A labelled task whose settings say whether silos report label names."""

    @property
    def discovery(self) -> LabelDiscovery:
        """What the federation file says about it."""


def discovery_of(task: Task) -> LabelDiscovery:
    """What a task says about reporting label names; a task that says nothing does not allow it."""
    return task.discovery if isinstance(task, DiscoveringTask) else NO_DISCOVERY


class LabelSettings(Section):
    """The settings of tasks with labels."""

    labels: tuple[str, ...] = Field(
        default=(), description="Label names. Without them a simulation takes those in the data."
    )
    discover_labels: bool = Field(
        default=False,
        description="Let silos report the label names in their data. Without it, silos in other organisations refuse.",
    )
    min_label_rows: Count = Field(
        default=20,
        description="discover_labels: a silo reports a label only if at least this many of its rows have it.",
    )

    @property
    def discovery(self) -> LabelDiscovery:
        """What these settings say about reporting label names."""
        return LabelDiscovery(self.discover_labels, self.min_label_rows)

    @model_validator(mode="after")
    def _listed_or_discovered(self) -> "LabelSettings":
        if self.labels and self.discover_labels:
            raise ValueError("'labels' and 'discover_labels: true' exclude each other: keep one of them")
        return self


@runtime_checkable
class MultiTextTask(Protocol):
    """A task whose samples have text in more than one field."""

    def texts_in(self, row: Row, source: Source) -> list[str]:
        """The texts of a row."""


def texts_of(task: Task) -> Callable[[Row, Source], list[str]]:
    """A function that returns the texts of a row from which a vocabulary is built.

    The check for a protocol is as slow as reading a row, so it is done once per task.
    """
    return task.texts_in if isinstance(task, MultiTextTask) else lambda row, source: [row[source.text]]


@runtime_checkable
class ExtraTokensTask(Protocol):
    """A task that adds tokens to a vocabulary that is built for it."""

    def extra_tokens(self, sources: Iterable[Source]) -> list[str]:
        """The tokens to add for the data of these sources."""


@runtime_checkable
class GenerationTask(Protocol):
    """A task whose model generates texts, which are compared with reference texts."""

    def compare(
        self, model: nn.Module, examples: Examples, indices: NDArray[np.int64], vocabulary: Vocabulary, size: int
    ) -> dict[str, float]:
        """Generate texts in batches of ``size``; returns statistics that are summed over batches and silos."""

    @property
    def disclosure(self) -> str:
        """One sentence: what leaves a silo because of generated texts."""

    @property
    def generated(self) -> int | None:
        """For how many samples of each group texts are generated, since that takes long; None: for all."""

    @property
    def signatures(self) -> tuple[str, ...]:
        """The version and parameters of the metrics, as their library reports them."""


@runtime_checkable
class DerivingTask(Protocol):
    """A task that derives samples from annotations: a document with 1,000 entities has 999,000 ordered pairs."""

    def examine(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> tuple[int, list[Unusable]]:
        """How many samples `encode` would give, and the unusable ones, without encoding all of them.

        Annotated samples are all encoded. Of many derived samples only some are; each unusable one then stands for
        several (`Unusable.stands_for`), and its reason says that it is an estimate.
        """


@runtime_checkable
class ChatTask(Protocol):
    """A task whose model answers in conversations. ``template``: the chat template; empty: the tokenizer's own."""

    @property
    def template(self) -> str:
        """The chat template as a Jinja program."""

    def reply(self, model: Any, vocabulary: Vocabulary, messages: Sequence[dict[str, str]]) -> str:
        """The answer to the last of some messages ({role, content}); the oldest are left out where they do not fit.

        Raises `UserError` if the last one alone is too long.
        """


@runtime_checkable
class NamedSums(Protocol):
    """A task that names its statistics before it sees data, so that silos can add them up under masks."""

    def sum_names(self, labels: tuple[str, ...], decode: bool) -> tuple[str, ...]:
        """Every key that `score` may return for a model with these classes; ``decode``: and those of `compare`."""


def pad(
    examples: Examples, indices: NDArray[np.int64], filler: int, values: NDArray[np.int32] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The samples' token ids (or other ``values`` of the tokens) padded with ``filler``, and the attention mask."""
    values = examples.ids if values is None else values
    lengths = examples.lengths[indices]
    columns = np.arange(lengths.max(initial=1))
    real = columns < lengths[:, None]
    places = examples.offsets[indices][:, None] + columns
    filled = np.where(real, values[np.minimum(places, len(values) - 1)], filler)
    return filled.astype(np.int64), real.astype(np.int64)


def windows(rows: list[Row], source: Source, vocabulary: Vocabulary, covered: bool = False) -> Iterator[Encoded]:
    """The rows' texts in windows of at most ``max_length`` tokens, each with the tokenizer's special tokens.

    With ``covered``, every token is tagged with the number of bytes of text that it stands for.
    """
    texts = [row[source.text] for row in rows]
    encoded = vocabulary.encodings(texts, special=True, windows=True, offsets=covered)
    for number, (text, whole) in enumerate(zip(texts, encoded, strict=True)):
        reached, ascii_only = 0, covered and text.isascii()
        for window in (whole, *whole.overflowing):
            if not covered:
                yield Encoded(window.ids, row=number)
                continue
            sizes = []
            for _, end in window.offsets:  # spaces between two tokens belong to the second; special tokens end at 0
                size = max(0, end - reached)
                sizes.append(size if ascii_only else len(text[reached : reached + size].encode()))
                reached += size
            yield Encoded(window.ids, tags=sizes, row=number)


def token_scores(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """Statistics of predicted tokens, for `token_metrics`."""
    nll = nn.functional.cross_entropy(logits, targets, reduction="sum")
    correct = (logits.argmax(dim=-1) == targets).sum()
    return {"nll": float(nll), "tokens": float(len(targets)), "correct": float(correct)}


def token_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Perplexity, accuracy and loss per token."""
    tokens = sums.get("tokens", 0.0)
    if not tokens:
        return {}
    loss = sums["nll"] / tokens
    return {"perplexity": exp(min(loss, 700.0)), "accuracy": sums["correct"] / tokens, "loss": loss}


TOKEN_SUMS = ("nll", "tokens", "correct")  # the keys of `token_scores`


def f1_averages(sums: Mapping[str, float], hit: str = "hit") -> dict[str, float]:
    """Micro-, macro- and frequency-weighted F1 from counts by class (``hit:X``, ``guessed:X``, ``true:X``).

    A class that occurs neither in the data nor among the predictions is ignored.
    """
    kinds = {key.partition(":")[2] for key, n in sums.items() if key.startswith(("true:", "guessed:")) and n}

    def f1(kinds: Iterable[str]) -> float:
        """F1 of the given classes, from their counts taken together; 0 where there is nothing to count."""
        hits, both = 0.0, 0.0
        for kind in kinds:
            hits += sums.get(f"{hit}:{kind}", 0.0)
            both += sums.get(f"guessed:{kind}", 0.0) + sums.get(f"true:{kind}", 0.0)
        return 2 * hits / both if both else 0.0

    seen = {kind: sums.get(f"true:{kind}", 0.0) for kind in sorted(kinds)}
    there = [kind for kind, n in seen.items() if n]
    return {
        "micro_f1": f1(kinds),
        "macro_f1": sum(f1([kind]) for kind in there) / len(there) if there else 0.0,
        "weighted_f1": sum(n * f1([kind]) for kind, n in seen.items()) / (sum(seen.values()) or 1.0),
    }


def as_tensors(**arrays: NDArray[np.int64]) -> dict[str, Tensor]:
    """The arrays as tensors that share their memory."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


TASKS: Registry[Task] = Registry("task")
