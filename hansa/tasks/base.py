"""What every task offers, and the pieces that tasks share."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hansa.core.errors import UserError
from hansa.core.registry import Registry
from hansa.data.examples import Encoded, Examples, Unusable
from hansa.data.rows import Row
from hansa.data.source import Source
from hansa.models.tokenizer import starts_word

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
from hansa.core.batch import Batch


@dataclass(frozen=True)
class Vocabulary:
    """What tasks need to know of a tokeniser, as plain arrays."""

    tokenizer: "PreTrainedTokenizerBase"
    max_length: int
    labels: tuple[str, ...] = ()
    types: int = 0  # kinds of token that the model tells apart: of two texts, which one a token belongs to

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
    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokeniser puts before and after a text."""
        bare, whole = self.tokenizer("a", add_special_tokens=False)["input_ids"], self.tokenizer("a")["input_ids"]
        before = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
        return whole[:before], whole[before + len(bare) :]

    @property
    def room(self) -> int:
        """How many tokens of text fit into one sample."""
        return self.max_length - sum(map(len, self.around))

    @cached_property
    def starts(self) -> NDArray[np.bool_]:
        return np.asarray(starts_word(self.tokenizer)) | self.special


class Task(Protocol):
    auto: ClassVar[str]  # the transformers class that holds the model
    lower_is_better: ClassVar[bool]
    needs_labels: ClassVar[bool]

    @property
    def headline(self) -> str:
        """The metric a table shows."""

    def encode(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterable[Encoded | Unusable]: ...

    def batch(
        self, examples: Examples, indices: NDArray[np.int64], rng: np.random.Generator, vocabulary: Vocabulary
    ) -> Batch: ...

    def loss(self, model: nn.Module, batch: Batch) -> Tensor: ...

    def score(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """Sums that add up over batches and silos."""

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]: ...

    def predict(self, model: nn.Module, vocabulary: Vocabulary, text: str) -> list[dict[str, Any]]: ...


class LabelledTask(Task, Protocol):
    """A task with classes (``needs_labels``): named in the federation file, or told by the silos."""

    @property
    def labels(self) -> tuple[str, ...]: ...

    def labels_in(self, row: Row, source: Source) -> Iterable[str]:
        """The names that a row uses; what a survey asks for."""

    def classes(self, names: Iterable[str]) -> tuple[str, ...]:
        """The model's classes, when these names are all there are."""


@runtime_checkable
class MultiTextTask(Protocol):
    """A task whose samples have more text than one field."""

    def texts_in(self, row: Row, source: Source) -> list[str]: ...


def texts_of(task: Task) -> Callable[[Row, Source], list[str]]:
    """What of a row the vocabulary is built from. (Asked once per task: to ask a protocol for every row takes as long
    as reading it.)"""
    return task.texts_in if isinstance(task, MultiTextTask) else lambda row, source: [row[source.text]]


@runtime_checkable
class ExtraTokensTask(Protocol):
    """A task that needs tokens of its own in a vocabulary that is built for it."""

    def extra_tokens(self, sources: Iterable[Source]) -> list[str]: ...


@runtime_checkable
class GenerationTask(Protocol):
    """A task whose model writes texts, which are compared with those the samples bring."""

    def compare(
        self, model: nn.Module, examples: Examples, indices: NDArray[np.int64], vocabulary: Vocabulary, size: int
    ) -> dict[str, float]:
        """Sums that add up, of so many samples at once."""

    @property
    def signatures(self) -> tuple[str, ...]:
        """How exactly its metrics were computed, in the words of their library."""


def pad(
    examples: Examples, indices: NDArray[np.int64], filler: int, values: NDArray[np.int32] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The samples' token ids (or other ``values`` that go with them) as one rectangle, and the mask of what is real."""
    values = examples.ids if values is None else values
    lengths = examples.lengths[indices]
    columns = np.arange(lengths.max(initial=1))
    real = columns < lengths[:, None]
    places = examples.offsets[indices][:, None] + columns
    filled = np.where(real, values[np.minimum(places, len(values) - 1)], filler)
    return filled.astype(np.int64), real.astype(np.int64)


def windows(rows: list[Row], source: Source, vocabulary: Vocabulary, covered: bool = False) -> Iterator[Encoded]:
    """Texts cut into windows of at most ``max_length`` tokens, each between the tokeniser's own special tokens. With
    ``covered`` every token is tagged with the bytes of text it stands for."""
    texts = [row[source.text] for row in rows]
    encoded = vocabulary.tokenizer(
        texts,
        truncation=True,
        max_length=vocabulary.max_length,
        return_overflowing_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=covered,
    )
    if not covered:
        for ids in encoded["input_ids"]:
            yield Encoded(ids)
        return
    before = (-1, 0)  # the text, and how far its tokens have come: they follow one another over the windows
    pieces = zip(encoded["input_ids"], encoded["offset_mapping"], encoded["overflow_to_sample_mapping"], strict=True)
    for ids, offsets, number in pieces:
        reached = before[1] if before[0] == number else 0
        sizes = []
        for _, end in offsets:  # spaces between two tokens belong to the second; special tokens end at 0
            sizes.append(len(texts[number][reached:end].encode()))
            reached = max(reached, end)
        before = (number, reached)
        yield Encoded(ids, tags=sizes)


def logits_at(model: Any, batch: Batch) -> Tensor:
    """The head's output at ``batch.rows`` alone.

    Whatever the architecture, the head is what runs after `base_model` (after the decoder, of an encoder–decoder);
    keeping only the wanted rows of the last hidden state spares the head, and the vocabulary-wide product above all,
    the rest.
    """

    def keep(_module: nn.Module, _args: Any, output: Any) -> Any:
        hidden = output.last_hidden_state
        output.last_hidden_state = hidden.reshape(-1, hidden.shape[-1])[batch.rows].unsqueeze(0)
        return output

    before_head = model.get_decoder() if model.config.is_encoder_decoder else model.base_model
    handle = before_head.register_forward_hook(keep)
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


def f1_averages(sums: Mapping[str, float], hit: str = "hit") -> dict[str, float]:
    """F1 over all (micro), over classes (macro), over classes by frequency (weighted), from sums by class
    (``hit:X``, ``guessed:X``, ``true:X``). A class that is neither there nor guessed does not count."""
    kinds = {key.partition(":")[2] for key, n in sums.items() if key.startswith(("true:", "guessed:")) and n}

    def f1(kinds: Iterable[str]) -> float:
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
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


TASKS: Registry[Task] = Registry("task")
