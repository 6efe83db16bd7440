"""Instruction tuning of decoders: learn the assistant's answers of conversations (Ouyang et al., 2022, Section 3.4).

    loss     cross-entropy of the tokens of answers; the model reads all other tokens, and learns none of them
    scores   the same; ROUGE-L and chrF of answers that the model writes, for a few samples of each silo

A row has a field `messages`, a list of {role, content} with one or several answers, or a question (``text``) and an
answer (``target``). The chat template writes it as text (hansa/tasks/chat.py, also for conversations that are too
long). A sample is token ids, with tag 1 for the tokens of answers; its label is the position where the last answer
begins, and its text is that answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from hansa.core.batch import Batch
from hansa.core.errors import UserError
from hansa.core.settings import Count, Section
from hansa.data.batching import batches
from hansa.data.examples import Encoded, Examples, Unusable
from hansa.data.readers import MESSAGES
from hansa.data.rows import BAD_ANNOTATION, TOO_LONG, Row
from hansa.data.source import Source
from hansa.tasks import bleu, rouge
from hansa.tasks.base import (
    TASKS,
    TOKEN_SUMS,
    Task,
    Vocabulary,
    as_tensors,
    pad,
    token_metrics,
    token_scores,
)
from hansa.tasks.chat import (
    ASSISTANT,
    MARKER,
    SYSTEM,
    TEMPLATES,
    USER,
    BadConversation,
    ChatFormat,
    Message,
    checked,
)
from hansa.tasks.target_rows import logits_at

CHRF = ("chrf",)


@dataclass(frozen=True)
class Instruct:
    """The task ``instruct``; its settings are described below."""

    template: str = ""
    system: str = ""
    answers: int = 20
    answer_length: int = 128
    auto: ClassVar[str] = "AutoModelForCausalLM"
    headline: ClassVar[str] = "perplexity"
    lower_metrics: ClassVar[frozenset[str]] = frozenset({"perplexity", "loss"})
    needs_labels: ClassVar[bool] = False
    packs: ClassVar[bool] = True
    texts_deidentified: ClassVar[bool] = True  # all its fields are those that data.deidentify replaces

    @property
    def disclosure(self) -> str:
        """See `GenerationTask.disclosure`."""
        return (
            f"With ROUGE-L and chrF, of up to {self.answers} answers that the model writes for each group: the sum of "
            "their scores, counts of matching character n-grams, and lengths; no text."
        )

    @property
    def generated(self) -> int | None:
        """See `GenerationTask.generated`."""
        return self.answers

    def chat(self, vocabulary: Vocabulary) -> ChatFormat:
        """The chat format of a vocabulary; raises `ConfigError` if it has none."""
        return ChatFormat(vocabulary.tokenizer, self.template)

    def texts_in(self, row: Row, source: Source) -> list[str]:
        """See `MultiTextTask.texts_in`."""
        try:
            return [message["content"] for message in self.conversation(row, source)]
        except BadConversation:
            return []

    def extra_tokens(self, sources: Any) -> list[str]:
        """The markers that the template writes, such as <|im_start|>."""
        return sorted(set(MARKER.findall(self.template)))

    # ── samples ───────────────────────────────────────────────────────────────────────────────────────────────────

    def conversation(self, row: Row, source: Source) -> list[Message]:
        """The messages of a row; raises `BadConversation` if it has none that can be used."""
        if isinstance(row.get(MESSAGES), list):
            messages = checked(row[MESSAGES])
        elif isinstance(row.get(source.target), str) and row[source.target].strip():
            pair = ((USER, row[source.text]), (ASSISTANT, row[source.target]))
            messages = [{"role": role, "content": content} for role, content in pair]
        else:
            raise BadConversation(
                f"it has neither a list '{MESSAGES}' nor an answer in the field '{source.target}' (name it: 'target:')"
            )
        if self.system and messages and messages[0]["role"] != SYSTEM:
            messages = [{"role": SYSTEM, "content": self.system}, *messages]
        return messages

    def encode(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterator[Encoded | Unusable]:
        """See `Task.encode`."""
        chat = self.chat(vocabulary)
        for number, row in enumerate(rows):
            try:
                for found in chat.samples(self.conversation(row, source), vocabulary.max_length):
                    if isinstance(found, BadConversation):
                        yield _unusable(row, found)
                        continue
                    turns, answer = found
                    yield Encoded(turns.ids, turns.prompt, turns.learned, answer, number, turns.shortened)
            except BadConversation as problem:
                yield _unusable(row, problem)

    def batch(
        self, examples: Examples, indices: NDArray[np.int64], rng: np.random.Generator, vocabulary: Vocabulary
    ) -> Batch:
        """See `Task.batch`."""
        ids, mask = pad(examples, indices, vocabulary.pad)
        learned, _ = pad(examples, indices, 0, examples.tags)
        rows = np.flatnonzero(np.pad(learned[:, 1:], ((0, 0), (0, 1))))  # positions whose next token is of an answer
        inputs = as_tensors(input_ids=ids, attention_mask=mask)
        return Batch(inputs, torch.from_numpy(rows), torch.from_numpy(ids.reshape(-1)[rows + 1]))

    # ── learning and scoring ──────────────────────────────────────────────────────────────────────────────────────

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """See `Task.loss`."""
        return nn.functional.cross_entropy(logits_at(model, batch), batch.targets)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """See `Task.score`."""
        return token_scores(logits_at(model, batch), batch.targets)

    def sum_names(self, labels: tuple[str, ...], decode: bool) -> tuple[str, ...]:
        """See `NamedSums.sum_names`."""
        return TOKEN_SUMS + ((*rouge.NAMES, *bleu.names(CHRF)) if decode else ())

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """See `Task.metrics`."""
        return token_metrics(sums) | rouge.metrics(sums) | bleu.metrics(sums)

    @property
    def signatures(self) -> tuple[str, ...]:
        """See `GenerationTask.signatures`."""
        return (rouge.signature(), *bleu.signatures(CHRF))

    def compare(
        self, model: nn.Module, examples: Examples, indices: NDArray[np.int64], vocabulary: Vocabulary, size: int
    ) -> dict[str, float]:
        """See `GenerationTask.compare`."""
        written: dict[int, str] = {}
        for some in batches(indices, examples.labels.astype(np.int64), size, None):
            prompts = [examples[i][: examples.labels[i]] for i in some.tolist()]
            written |= zip(some.tolist(), self._write(model, prompts, vocabulary), strict=True)
        texts, references = [written[int(i)] for i in indices], [examples.texts[int(i)] for i in indices]
        return rouge.sums(texts, references) | bleu.sums(texts, references, CHRF)

    # ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────

    def predict(self, model: Any, vocabulary: Vocabulary, text: str) -> list[dict[str, Any]]:
        """The answer to a question."""
        return [{"answer": self.reply(model, vocabulary, [{"role": USER, "content": text}])}]

    def reply(self, model: Any, vocabulary: Vocabulary, messages: Sequence[Message]) -> str:
        """See `ChatTask.reply`."""
        system = [{"role": SYSTEM, "content": self.system}] if self.system else []
        chat, kept = self.chat(vocabulary), list(messages)
        try:
            ids = chat.prompt([*system, *kept])
            while len(ids) > vocabulary.max_length and len(kept) > 2:  # the oldest question and its answer
                kept = kept[2:]
                ids = chat.prompt([*system, *kept])
        except BadConversation as problem:
            raise UserError(f"the conversation cannot be given to the model: {problem}") from None
        if len(ids) > vocabulary.max_length:
            raise UserError(
                f"the question has {len(ids)} tokens with its chat template, but the model was trained on "
                f"{vocabulary.max_length} (data.max_length): ask a shorter one"
            )
        [written] = self._write(model, [np.asarray(ids)], vocabulary)
        return written

    def _write(self, model: Any, prompts: Sequence[NDArray[Any]], vocabulary: Vocabulary) -> list[str]:
        """What the model writes after each prompt, by greedy search."""
        width = max(map(len, prompts))
        ids = np.stack([np.pad(p, (width - len(p), 0), constant_values=vocabulary.pad) for p in prompts])
        mask = np.stack([np.arange(width) >= width - len(p) for p in prompts])
        inputs = as_tensors(input_ids=ids.astype(np.int64), attention_mask=mask.astype(np.int64))
        with torch.inference_mode():
            written = model.generate(
                **{name: values.to(model.device) for name, values in inputs.items()},
                max_new_tokens=self.answer_length,
                do_sample=False,
                num_beams=1,
                pad_token_id=vocabulary.pad,
                eos_token_id=self.chat(vocabulary).stops or None,
            )
        texts: list[str] = vocabulary.tokenizer.batch_decode(written[:, width:], skip_special_tokens=True)
        return [text.strip() for text in texts]


def _unusable(row: Row, problem: BadConversation) -> Unusable:
    return Unusable(row.place, str(problem), kind=TOO_LONG if problem.long else BAD_ANNOTATION)


@TASKS.register("instruct")
class Settings(Section):
    """Settings of the task ``instruct``."""

    template: str = Field(
        default="",
        description="Chat template: 'chatml', or the text of a Jinja template; default: the tokenizer's own.",
    )
    system: str = Field(
        default="", description="System message of conversations that have none; default: what the template does."
    )
    answers: Count = Field(
        default=20, description="Samples of each group for which answers are written and compared, at the end of a run."
    )
    answer_length: Count = Field(default=128, description="Largest number of tokens of an answer that is written.")

    def build(self) -> Task:
        """Build the task."""
        return Instruct(TEMPLATES.get(self.template, self.template), self.system, self.answers, self.answer_length)
