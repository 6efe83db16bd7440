"""A learned finder: a Hugging Face token classifier, such as the one that `hansa data train-finder` trains.

Any folder or hub id with a token classifier can be used; its labels are mapped to our types (`KINDS`). A word counts as
personal if the probability that it is not exceeds ``threshold`` nowhere: the type is the likeliest one. A low threshold
favours recall.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hansa.core.errors import UserError
from hansa.data.deidentification.kinds import kind_of
from hansa.data.deidentification.lexicon import vocabulary
from hansa.data.deidentification.ordinary import is_ordinary
from hansa.data.deidentification.rules import Finding
from hansa.data.formats.annotated import WORD

THRESHOLD = 0.5
SETTINGS = "finder.json"
WINDOW, CONTEXT = 126, 8  # tokens of a window, and how many of them are repeated as context on each side
BATCH = 16  # windows computed at once: more do not fit into the caches of a core
OUTSIDE = "O"
LETTERS = re.compile(r"[^\W\d_]+")
# What may stand between two words of one detail.
JOINED = frozenset(" ,.-'’/:@_+()\t")


@dataclass(frozen=True)
class _Window:
    text: int
    ids: list[int]
    words: list[tuple[int, int]]  # (word, position of its first token in ids), of the words that are decided here


@dataclass(frozen=True)
class Tagger:
    """Finds personal details with a token classifier from a folder or hub id.

    Raises `UserError` when first used if the model cannot be loaded.
    """

    path: str
    threshold: float | None = None  # default: the folder's own, else 0.5

    def find(self, text: str, language: str) -> list[Finding]:
        """The personal details in a text; the language is used for its dictionary, the model reads all of its own."""
        return self.find_all([text], language)[0]

    def find_all(self, texts: list[str], language: str) -> list[list[Finding]]:
        """The personal details in each text, computed in batches."""
        import torch

        model, tokenizer, kinds, threshold = self._loaded
        places = [[m.span() for m in WORD.finditer(text)] for text in texts]
        windows = sorted(self._windows(texts, places), key=lambda w: len(w.ids))
        guesses: list[dict[int, str]] = [{} for _ in texts]
        for first in range(0, len(windows), BATCH):
            batch = windows[first : first + BATCH]
            longest = max(len(w.ids) for w in batch)
            pad = tokenizer.pad_token_id or 0
            ids = torch.tensor([w.ids + [pad] * (longest - len(w.ids)) for w in batch])
            mask = torch.tensor([[1] * len(w.ids) + [0] * (longest - len(w.ids)) for w in batch])
            with torch.inference_mode():
                shares = model(input_ids=ids, attention_mask=mask).logits.softmax(dim=-1)
            rows = [(n, at) for n, w in enumerate(batch) for _, at in w.words]
            wanted = shares[[n for n, _ in rows], [at for _, at in rows]]
            outside = wanted[:, [i for i, kind in enumerate(kinds) if kind == OUTSIDE]].sum(dim=-1)
            personal = wanted.clone()
            personal[:, [i for i, kind in enumerate(kinds) if kind == OUTSIDE]] = 0
            best = personal.argmax(dim=-1).tolist()
            found = (1 - outside >= threshold).tolist()
            decided = [(w.text, word) for w in batch for word, _ in w.words]
            for (number, word), hit, kind in zip(decided, found, best, strict=True):
                if hit:
                    guesses[number][word] = kinds[kind]
        found = [_joined(text, places[n], guesses[n]) for n, text in enumerate(texts)]
        if not self._settings.get("dictionary"):
            return found
        return [[f for f in one if not _plain_words(text, f, language)] for text, one in zip(texts, found, strict=True)]

    def _windows(self, texts: list[str], places: list[list[tuple[int, int]]]) -> Iterator[_Window]:
        _, tokenizer, _, _ = self._loaded
        before, after = _around(tokenizer)
        for number, (text, spans) in enumerate(zip(texts, places, strict=True)):
            if not spans:
                continue
            encoded = tokenizer([text[s:e] for s, e in spans], is_split_into_words=True, add_special_tokens=False)
            ids, owners = encoded["input_ids"], encoded.word_ids()
            firsts = [i for i, owner in enumerate(owners) if i == 0 or owners[i - 1] != owner]
            start = 0
            while start < len(ids):
                end = min(len(ids), start + WINDOW)
                low = start + (CONTEXT if start else 0)
                high = end - (CONTEXT if end < len(ids) else 0)
                decided = [(owners[i], i - start + len(before)) for i in firsts if low <= i < high]
                yield _Window(number, [*before, *ids[start:end], *after], decided)
                if end == len(ids):
                    break
                start = end - 2 * CONTEXT

    @cached_property
    def _loaded(self) -> tuple[Any, Any, list[str], float]:
        import transformers

        try:
            local = Path(self.path).is_dir()
            model = transformers.AutoModelForTokenClassification.from_pretrained(
                self.path, trust_remote_code=False, local_files_only=local
            ).eval()
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                self.path, trust_remote_code=False, local_files_only=local
            )
        except (OSError, ValueError) as error:
            first = str(error).strip().splitlines()[0]
            raise UserError(
                f"de-identifier 'model:{self.path}' cannot be loaded ({first}); name the folder of a token classifier, "
                "such as 'hansa data train-finder' writes"
            ) from None
        names = [str(model.config.id2label[i]) for i in range(model.config.num_labels)]
        return model, tokenizer, [OUTSIDE if n == OUTSIDE else kind_of(n) for n in names], self._threshold()

    def _threshold(self) -> float:
        return self.threshold if self.threshold is not None else float(self._settings.get("threshold", THRESHOLD))

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """What `hansa data train-finder` wrote beside the model; empty for other models."""
        file = Path(self.path) / SETTINGS
        loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return loaded


def _plain_words(text: str, finding: Finding, language: str) -> bool:
    """Whether a name consists of ordinary words only, so that a small tagger is probably wrong."""
    code = vocabulary(language).code
    words = LETTERS.findall(text[finding.start : finding.end])
    return finding.type == "NAME" and all(is_ordinary(code, word, begins=True) for word in words)


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text."""
    marked = tokenizer("a", add_special_tokens=True)["input_ids"]
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    start = next(i for i in range(len(marked)) if marked[i : i + len(plain)] == plain)
    return marked[:start], marked[start + len(plain) :]


def _joined(text: str, places: list[tuple[int, int]], guesses: dict[int, str]) -> list[Finding]:
    """Consecutive words of one type as one finding; a finding has at least one letter or digit at both ends."""
    found: list[Finding] = []
    last = -2
    for word in sorted(guesses):
        (start, end), kind = places[word], guesses[word]
        if not any(c.isalnum() for c in text[start:end]):
            continue
        gap = text[found[-1].end : start] if found else ""
        if found and found[-1].type == kind and len(gap) < 4 and JOINED.issuperset(gap) and word - last <= 3:
            found[-1] = Finding(found[-1].start, end, kind)
        else:
            found.append(Finding(start, end, kind))
        last = word
    return found
