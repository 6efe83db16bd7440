"""Translation with an encoder–decoder (Vaswani et al., 2017; Passban et al., 2022).

    loss     cross-entropy of the translation's tokens with smoothed labels (Vaswani et al., Section 5.4)
    scores   cross-entropy without smoothing; of written translations, BLEU and chrF by sacrebleu

A sample is the source's token ids followed by the target's; its label says where the target begins. BLEU and chrF come
from counts that add up (n-gram matches and totals, lengths), so that silos are scored together and no text leaves one.
With ``tag`` a source begins with its target language, as `>>fr<<`: one engine for several languages. ``prefix`` is what
a given model wants to be told instead ("translate German to English: ").
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
from hansa.data.rows import Row
from hansa.data.source import Source
from hansa.tasks import bleu
from hansa.tasks.base import TASKS, Task, Vocabulary, as_tensors, logits_at, token_metrics, token_scores

IGNORED = -100  # the library's own mark for positions without a target


@dataclass(frozen=True)
class Translate:
    smoothing: float = 0.1
    beams: int = 4
    tag: bool = False
    prefix: str = ""
    detect: bool = False
    auto: ClassVar[str] = "AutoModelForSeq2SeqLM"
    headline: ClassVar[str] = "perplexity"
    lower_is_better: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = False

    def texts_in(self, row: Row, source: Source) -> list[str]:
        return [row[field] for field in (source.text, source.target) if isinstance(row.get(field), str)]

    def extra_tokens(self, sources: Iterable[Source]) -> list[str]:
        return sorted({language_tag(s.target_language) for s in sources if s.target_language}) if self.tag else []

    # ── samples ───────────────────────────────────────────────────────────────────────────────────────────────────

    def encode(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterator[Encoded | Unusable]:
        pairs: list[Row] = []
        for row in rows:
            reason = self._flaw(row, source)
            if reason:
                yield Unusable(row.place, reason)
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
                reason = f"one of its sides has {longest} tokens, and a sample holds {vocabulary.max_length}"
                yield Unusable(row.place, f"{reason} (data.max_length)")
            else:
                yield Encoded([*left, *right], label=len(left), text=row[source.target])

    def _flaw(self, row: Row, source: Source) -> str:
        target = row.get(source.target)
        if target is None:
            return f"no field '{source.target}' with the translation (name it with 'target:')"
        if not isinstance(target, str) or not target.strip():
            return f"its translation (field '{source.target}') is empty or not text"
        if self.tag and not source.target_language:
            return "its target language is not known, and task.tag writes it before the text: add 'target_language:'"
        if self.detect:
            return _foreign(row[source.text], source.language) or _foreign(target, source.target_language)
        return ""

    def batch(
        self, examples: Examples, indices: NDArray[np.int64], rng: np.random.Generator, vocabulary: Vocabulary
    ) -> Batch:
        starts, cut, ends = examples.offsets[indices], examples.labels[indices], examples.offsets[indices + 1]
        ids, mask = padded(examples.ids, starts, starts + cut, vocabulary.pad)
        labels, real = padded(examples.ids, starts + cut, ends, IGNORED)
        rows = np.flatnonzero(real)
        inputs = as_tensors(input_ids=ids, attention_mask=mask, labels=labels)
        return Batch(inputs, torch.from_numpy(rows), torch.from_numpy(labels.reshape(-1)[rows]))

    # ── learning and scoring ──────────────────────────────────────────────────────────────────────────────────────

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = logits_at(model, _with_decoder(model, batch))
        return nn.functional.cross_entropy(logits, batch.targets, label_smoothing=self.smoothing)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        return token_scores(logits_at(model, _with_decoder(model, batch)), batch.targets)

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        return token_metrics(sums) | bleu.metrics(sums)

    @property
    def signatures(self) -> tuple[str, ...]:
        return bleu.signatures()

    def compare(
        self, model: nn.Module, examples: Examples, indices: NDArray[np.int64], vocabulary: Vocabulary, size: int
    ) -> dict[str, float]:
        written = translations(model, examples, indices, vocabulary, self.beams, size)
        return bleu.sums(written, [examples.texts[int(i)] for i in indices])

    def predict(self, model: Any, vocabulary: Vocabulary, text: str) -> list[dict[str, Any]]:
        if self.tag and not text.startswith(">>"):
            raise UserError("this engine knows several languages: begin the text with the one you want, as >>fr<< …")
        [ids] = _ids(vocabulary, [self.prefix + text], target=False)
        if len(ids) > vocabulary.max_length:
            raise UserError(f"the text has {len(ids)} tokens, and the model was trained on {vocabulary.max_length}")
        with torch.inference_mode():
            [written] = generate(model, [np.asarray(ids)], vocabulary, self.beams)
        return [{"translation": written}]


def language_tag(language: str) -> str:
    return f">>{language}<<"


def _ids(vocabulary: Vocabulary, texts: list[str], target: bool) -> list[list[int]]:
    """Sources as the tokeniser has them; of targets the text and the end: the decoder's beginning is the model's."""
    tokenizer = vocabulary.tokenizer
    if not target:
        found: list[list[int]] = tokenizer(texts, return_attention_mask=False)["input_ids"]
        return found
    bare = tokenizer(text_target=texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
    return [[*ids, tokenizer.eos_token_id] for ids in bare]


def _foreign(text: str, language: str) -> str:
    from hansa.data.importing.sentences import other_language

    seen = other_language(text, language) if language else ""
    return f"a side that should be in '{language}' seems to be in another language ({seen})" if seen else ""


def padded(
    ids: NDArray[np.int32], starts: NDArray[np.int64], ends: NDArray[np.int64], filler: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Stretches of ids as rows of one array, and the mask of what is real."""
    lengths = ends - starts
    columns = np.arange(lengths.max(initial=1))
    real = columns < lengths[:, None]
    places = np.minimum(starts[:, None] + columns, len(ids) - 1)
    return np.where(real, ids[places], filler).astype(np.int64), real.astype(np.int64)


def decoder_start(model: Any) -> list[int]:
    """What a decoder is given before its first own token: its start, and the token it is forced to begin with."""
    settings, config = model.generation_config, model.config
    start = settings.decoder_start_token_id
    if start is None:
        start = getattr(config, "decoder_start_token_id", None)
    if start is None:
        start = config.pad_token_id if config.pad_token_id is not None else config.bos_token_id
    forced = settings.forced_bos_token_id
    return [int(start)] + ([int(forced)] if forced is not None else [])


def _with_decoder(model: Any, batch: Batch) -> Batch:
    """The batch as the model wants it: the decoder sees its beginning and the target up to the token before."""
    labels = batch.inputs["labels"]
    begin = torch.tensor(decoder_start(model), device=labels.device).expand(len(labels), -1)
    seen = torch.cat([begin, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, model.config.pad_token_id)], dim=1)
    assert batch.rows is not None
    width, extra = labels.shape[1], begin.shape[1] - 1
    rows = batch.rows + extra * (batch.rows // width + 1)  # targets stand after what is forced
    inputs = {name: batch.inputs[name] for name in ("input_ids", "attention_mask")} | {"decoder_input_ids": seen}
    return Batch(inputs, rows, batch.targets)


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def translations(
    model: Any, examples: Examples, indices: NDArray[np.int64], vocabulary: Vocabulary, beams: int, size: int
) -> list[str]:
    """Translations of the samples, in their order; batches hold sources of similar length, so that little is spent on
    padding and on waiting for the longest."""
    found: dict[int, str] = {}
    for some in batches(indices, examples.labels.astype(np.int64), size, None):
        sources = [examples[i][: examples.labels[i]] for i in some.tolist()]
        found |= zip(some.tolist(), generate(model, sources, vocabulary, beams), strict=True)
    return [found[i] for i in indices.tolist()]


def generate(model: Any, sources: Iterable[NDArray[np.int32]], vocabulary: Vocabulary, beams: int) -> list[str]:
    """One batch through the library's own search, with its key–value cache."""
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
    smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    beams: Count = 4  # 1: greedy
    tag: bool = False
    prefix: str = ""
    detect: bool = False  # refuse pairs that are surely in another language than named (needs hansa[prepare])

    def build(self) -> Task:
        return Translate(self.smoothing, self.beams, self.tag, self.prefix, self.detect)
