"""Translation with an encoder–decoder (Vaswani et al., 2017; Passban et al., 2022).

    loss     cross-entropy of the translation's tokens with smoothed labels (Vaswani et al., Section 5.4)
    scores   cross-entropy without smoothing; BLEU and chrF of generated translations, by sacrebleu

A sample is the token ids of the source followed by those of the target; its label is the position where the target
begins. BLEU and chrF are computed from counts that are summed over silos (n-gram matches and totals, lengths), so that
silos are scored together and no text leaves a silo. With ``tag``, a source begins with its target language as
`>>fr<<`, so that one model translates into several languages. ``prefix`` is the instruction that some pre-trained
models expect instead ("translate German to English: ").
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

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
from hansa.data.rows import BAD_ANNOTATION, TOO_LONG, Row
from hansa.data.source import Source
from hansa.tasks import bleu
from hansa.tasks.base import TASKS, TOKEN_SUMS, Task, Vocabulary, as_tensors, token_metrics, token_scores
from hansa.tasks.target_rows import logits_at

IGNORED = -100  # transformers' label of positions without a target


@dataclass(frozen=True)
class Translate:
    """The task ``translate``."""

    smoothing: float = 0.1
    beams: int = 4
    tag: bool = False
    prefix: str = ""
    detect: bool = False
    auto: ClassVar[str] = "AutoModelForSeq2SeqLM"
    headline: ClassVar[str] = "perplexity"
    generated: ClassVar[None] = None
    disclosure: ClassVar[str] = (
        "With BLEU and chrF: counts of matching n-grams of the translations, and their lengths; no text."
    )
    lower_metrics: ClassVar[frozenset[str]] = frozenset({"perplexity", "loss"})
    needs_labels: ClassVar[bool] = False

    def texts_in(self, row: Row, source: Source) -> list[str]:
        """See `MultiTextTask.texts_in`."""
        return [row[field] for field in (source.text, source.target) if isinstance(row.get(field), str)]

    def extra_tokens(self, sources: Iterable[Source]) -> list[str]:
        """The tags of all target languages."""
        return sorted({language_tag(s.target_language) for s in sources if s.target_language}) if self.tag else []

    # ── samples ───────────────────────────────────────────────────────────────────────────────────────────────────

    def encode(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterator[Encoded | Unusable]:
        """See `Task.encode`."""
        pairs: list[Row] = []
        for row in rows:
            reason = self._flaw(row, source)
            if reason:
                yield Unusable(row.place, reason, kind=BAD_ANNOTATION)
            else:
                pairs.append(row)
        if not pairs:
            return
        begin = self.prefix + (language_tag(source.target_language) + " " if self.tag else "")
        sources = _ids(vocabulary, [begin + row[source.text] for row in pairs], target=False)
        targets = _ids(vocabulary, [row[source.target] for row in pairs], target=True)
        for row, left, right in zip(pairs, sources, targets, strict=True):
            longest = max(len(left), len(right))
            if longest > vocabulary.max_length:
                reason = f"its source or target has {longest} tokens, more than the {vocabulary.max_length} of a sample"
                yield Unusable(row.place, f"{reason} (data.max_length)", kind=TOO_LONG)
            else:
                yield Encoded([*left, *right], label=len(left), text=row[source.target])

    def _flaw(self, row: Row, source: Source) -> str:
        """Why a row cannot be used; empty if it can."""
        target = row.get(source.target)
        if target is None:
            return f"no field '{source.target}' with the translation (name it with 'target:')"
        if not isinstance(target, str) or not target.strip():
            return f"its translation (field '{source.target}') is empty or not text"
        if self.tag and not source.target_language:
            return "its target language, which task.tag writes before the text, is not known: add 'target_language:'"
        if self.detect:
            return _foreign(row[source.text], source.language) or _foreign(target, source.target_language)
        return ""

    def batch(
        self, examples: Examples, indices: NDArray[np.int64], rng: np.random.Generator, vocabulary: Vocabulary
    ) -> Batch:
        """See `Task.batch`."""
        starts, cut, ends = examples.offsets[indices], examples.labels[indices], examples.offsets[indices + 1]
        ids, mask = padded(examples.ids, starts, starts + cut, vocabulary.pad)
        labels, real = padded(examples.ids, starts + cut, ends, IGNORED)
        rows = np.flatnonzero(real)
        inputs = as_tensors(input_ids=ids, attention_mask=mask, labels=labels)
        return Batch(inputs, torch.from_numpy(rows), torch.from_numpy(labels.reshape(-1)[rows]))

    # ── learning and scoring ──────────────────────────────────────────────────────────────────────────────────────

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """See `Task.loss`."""
        logits = logits_at(model, _with_decoder(model, batch))
        return nn.functional.cross_entropy(logits, batch.targets, label_smoothing=self.smoothing)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """See `Task.score`."""
        return token_scores(logits_at(model, _with_decoder(model, batch)), batch.targets)

    def sum_names(self, labels: tuple[str, ...], decode: bool) -> tuple[str, ...]:
        """See `NamedSums.sum_names`."""
        return TOKEN_SUMS + (bleu.names() if decode else ())

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """See `Task.metrics`."""
        return token_metrics(sums) | bleu.metrics(sums)

    @property
    def signatures(self) -> tuple[str, ...]:
        """See `GenerationTask.signatures`."""
        return bleu.signatures()

    def compare(
        self, model: nn.Module, examples: Examples, indices: NDArray[np.int64], vocabulary: Vocabulary, size: int
    ) -> dict[str, float]:
        """See `GenerationTask.compare`."""
        written = translations(model, examples, indices, vocabulary, self.beams, size)
        return bleu.sums(written, [examples.texts[int(i)] for i in indices])

    def predict(self, model: Any, vocabulary: Vocabulary, text: str) -> list[dict[str, Any]]:
        """The translation of a text."""
        if self.tag and not text.startswith(">>"):
            raise UserError("this model has several target languages: begin the text with one of them, as >>fr<< …")
        [ids] = _ids(vocabulary, [self.prefix + text], target=False)
        if len(ids) > vocabulary.max_length:
            raise UserError(f"the text has {len(ids)} tokens, but the model was trained on {vocabulary.max_length}")
        with torch.inference_mode():
            [written] = generate(model, [np.asarray(ids)], vocabulary, self.beams)
        return [{"translation": written}]


def language_tag(language: str) -> str:
    """The token that names a target language."""
    return f">>{language}<<"


def _ids(vocabulary: Vocabulary, texts: list[str], target: bool) -> list[list[int]]:
    """Token ids of texts; targets have no special tokens but the end, because the model adds the decoder's start."""
    tokenizer = vocabulary.tokenizer
    if not target:
        found: list[list[int]] = tokenizer(texts, return_attention_mask=False)["input_ids"]
        return found
    bare = tokenizer(text_target=texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
    return [[*ids, tokenizer.eos_token_id] for ids in bare]


def _foreign(text: str, language: str) -> str:
    from hansa.data.importing.sentences import other_language

    seen = other_language(text, language) if language else ""
    return f"a text that should be in '{language}' appears to be in another language ({seen})" if seen else ""


def padded(
    ids: NDArray[np.int32], starts: NDArray[np.int64], ends: NDArray[np.int64], filler: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ranges of ids as rows of one array padded with ``filler``, and the attention mask."""
    lengths = ends - starts
    columns = np.arange(lengths.max(initial=1))
    real = columns < lengths[:, None]
    places = np.minimum(starts[:, None] + columns, len(ids) - 1)
    return np.where(real, ids[places], filler).astype(np.int64), real.astype(np.int64)


def decoder_start(model: Any) -> list[int]:
    """The tokens before the first generated one: the decoder start token, and the forced first token if any."""
    settings, config = model.generation_config, model.config
    start = settings.decoder_start_token_id
    if start is None:
        start = getattr(config, "decoder_start_token_id", None)
    if start is None:
        start = config.pad_token_id if config.pad_token_id is not None else config.bos_token_id
    forced = settings.forced_bos_token_id
    return [int(start)] + ([int(forced)] if forced is not None else [])


def _with_decoder(model: Any, batch: Batch) -> Batch:
    """The batch with decoder inputs: the decoder start, and the target shifted by one token."""
    labels = batch.inputs["labels"]
    begin = torch.tensor(decoder_start(model), device=labels.device).expand(len(labels), -1)
    seen = torch.cat([begin, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, model.config.pad_token_id)], dim=1)
    assert batch.rows is not None
    width, extra = labels.shape[1], begin.shape[1] - 1
    rows = batch.rows + extra * (batch.rows // width + 1)  # targets follow the forced token
    inputs = {name: batch.inputs[name] for name in ("input_ids", "attention_mask")} | {"decoder_input_ids": seen}
    return Batch(inputs, rows, batch.targets)


# ── generation ────────────────────────────────────────────────────────────────────────────────────────────────────────


def translations(
    model: Any, examples: Examples, indices: NDArray[np.int64], vocabulary: Vocabulary, beams: int, size: int
) -> list[str]:
    """The translations of the samples, in their order.

    Batches consist of sources of similar length, which need little padding and finish at about the same step.
    """
    found: dict[int, str] = {}
    for some in batches(indices, examples.labels, size, None):
        sources = [examples[i][: examples.labels[i]] for i in some.tolist()]
        found |= zip(some.tolist(), generate(model, sources, vocabulary, beams), strict=True)
    return [found[i] for i in indices.tolist()]


def generate(model: Any, sources: Iterable[NDArray[np.int32]], vocabulary: Vocabulary, beams: int) -> list[str]:
    """The translations of one batch, by the beam search of transformers."""
    sources = list(sources)
    ends = np.cumsum([len(s) for s in sources])
    ids, mask = padded(np.concatenate(sources), np.concatenate([[0], ends[:-1]]), ends, vocabulary.pad)
    longest = min(vocabulary.max_length, 2 * ids.shape[1] + 8)
    inputs = as_tensors(input_ids=ids, attention_mask=mask)
    written = model.generate(
        **{name: values.to(model.device) for name, values in inputs.items()},
        max_new_tokens=longest,
        num_beams=beams,
        do_sample=False,
        early_stopping=beams > 1,
    )
    texts: list[str] = vocabulary.tokenizer.batch_decode(written, skip_special_tokens=True)
    return [text.strip() for text in texts]


@TASKS.register("translate")
class Settings(Section):
    """Settings of the task ``translate``."""

    smoothing: Annotated[float, Field(ge=0.0, lt=1.0, description="Label smoothing of the training loss.")] = 0.1
    beams: Count = Field(default=4, description="Beams of the search; 1: greedy.")
    tag: bool = Field(default=False, description="Begin each source with its target language, as >>fr<<.")
    prefix: str = Field(default="", description="Text before each source, which some pre-trained models expect.")
    detect: bool = Field(
        default=False, description="Leave out pairs that are certainly in another language (needs hansa[prepare])."
    )

    def build(self) -> Task:
        """Build the task."""
        return Translate(self.smoothing, self.beams, self.tag, self.prefix, self.detect)
