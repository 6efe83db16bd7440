"""Tokenizers: the model's own, bytes, or a vocabulary built from counts of all silos.

Federated: every silo splits its text into words by the same rule and sends, of those that occur in at least
``min_count`` rows, in how many rows they occur; the server adds the counts and trains byte-pair merges on them. No text
leaves a silo, rare words (names, numbers, spelling variants) are withheld, also those that a single row repeats, and
the report states what was sent.
"""

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from hansa.core.errors import ConfigError
from hansa.data.units import UnitCounts
from hansa.models.library import transformers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPECIAL = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "mask_token": "<mask>",
}
RESERVED = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
BYTES = [f"<0x{i:02X}>" for i in range(256)]
# These are pieces on their own: characters of scripts without spaces, digits, punctuation; everything else is a word.
ALONE = Regex(r"\p{Han}|\p{Hiragana}+|\p{Katakana}+|\p{Thai}+|\p{Lao}+|\p{N}|[\p{P}\p{S}&&[^▁]]")
TRAINING_WORDS = 3_000_000  # counts are scaled down to about this total, to limit the time of training


def _normalizer() -> Any:
    return normalizers.NFC()


def _cutter() -> Any:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Split(ALONE, "isolated")]
    )


Document = tuple[Hashable | None, Sequence[str]]  # the unit that a row belongs to (None: it is one), and its texts


def count_pieces(documents: Iterable[Document], min_count: int) -> tuple[dict[str, int], int]:
    """What a silo releases: the pieces that occur in at least ``min_count`` units, and how many others it withholds.

    A piece counts once for each unit, however often it occurs there.
    """
    normalizer, cutter = _normalizer(), _cutter()
    counts = UnitCounts()
    for unit, texts in documents:
        cut = (cutter.pre_tokenize_str(normalizer.normalize_str(text)) for text in texts)
        counts.add((piece for pieces in cut for piece, _ in pieces), unit)
    kept = counts.at_least(min_count)
    return kept, len(counts) - len(kept)


def train_vocabulary(counts: Mapping[str, int], size: int) -> "PreTrainedTokenizerBase":
    """A byte-pair tokenizer of the given size, trained on piece counts. Unknown characters are encoded as bytes."""
    draft = Tokenizer(models.BPE(unk_token="<unk>"))
    # The pieces are already split: the trainer must not split them again.
    draft.pre_tokenizer = pre_tokenizers.Split("\n", "removed")
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(BYTES), special_tokens=RESERVED, show_progress=False, max_token_length=24
    )
    draft.train_from_iterator(_repeat(counts), trainer)
    learned = json.loads(draft.to_str())["model"]
    rest = sorted((i, token) for token, i in learned["vocab"].items() if token not in RESERVED)
    vocabulary = {token: i for i, token in enumerate(RESERVED + BYTES + [token for _, token in rest])}
    merges = [tuple(pair) for pair in learned["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = _normalizer()
    tokenizer.pre_tokenizer = _cutter()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrap(tokenizer)


def _repeat(counts: Mapping[str, int]) -> Iterator[str]:
    scale = min(1.0, TRAINING_WORDS / max(1, sum(counts.values())))
    for piece, count in sorted(counts.items()):
        left = max(1, round(count * scale))
        while left > 0:
            step = min(left, 1000)
            yield "\n".join([piece] * step)
            left -= step


def byte_tokenizer() -> "PreTrainedTokenizerBase":
    """A tokenizer of 256 bytes and the special tokens, which needs no counts from silos."""
    vocabulary = {token: i for i, token in enumerate(RESERVED + BYTES)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = _normalizer()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return _wrap(tokenizer)


def _wrap(tokenizer: Tokenizer) -> "PreTrainedTokenizerBase":
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", tokenizer.token_to_id("<s>")), ("</s>", tokenizer.token_to_id("</s>"))],
    )
    fast = transformers().PreTrainedTokenizerFast
    wrapped: PreTrainedTokenizerBase = fast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **SPECIAL)
    return wrapped


def load(path: str, revision: str | None = None, gguf: str | None = None) -> "PreTrainedTokenizerBase":
    """The tokenizer of a folder or hub id, or of a GGUF file in it; raises `ConfigError` if it cannot be loaded."""
    try:
        tokenizer: PreTrainedTokenizerBase = transformers().AutoTokenizer.from_pretrained(
            path,
            trust_remote_code=False,
            local_files_only=Path(path).is_dir(),
            revision=revision or "main",
            **({"gguf_file": gguf} if gguf is not None else {}),
        )
    except (OSError, ValueError, ImportError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(f"tokenizer: {path} cannot be loaded: {first}") from None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer


def starts_word(tokenizer: "PreTrainedTokenizerBase") -> list[bool]:
    """For each token id, whether it begins a word: '▁x' and 'Ġx' do, 'x' does not; '##x' does not, 'x' does."""
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    if any(t.startswith("##") for t in tokens):
        return [not t.startswith("##") for t in tokens]
    return [t.startswith(("▁", "Ġ")) for t in tokens]
