"""Which capitalised words are no names of people: words of a dictionary, and the proper nouns and endings of medicine.

The dictionaries are those of pyspellchecker (part of `pip install 'hansa[prepare]'`), for the languages that it has.
They hold few names, so a capitalised word inside a sentence that they do not know is probably a name.
"""
# ruff: noqa: RUF001 (letters of several scripts are intended)

import re
import unicodedata
from functools import cache, lru_cache
from pathlib import Path

import yaml

from hansa.core.errors import UserError

TERMS = Path(__file__).parent / "terms.yaml"
COMMON_WORDS = Path(__file__).parent / "common_words.yaml"
DICTIONARIES = ("en", "de", "es", "fr", "it", "pt", "eu", "ar", "ru")
COMMON = 100  # occurrences from which a word of the dictionary counts as ordinary; rarer ones are often names
EVERYDAY = 20000  # occurrences from which a word stays ordinary although a list of names has it
CYRILLIC = re.compile(
    r"(?:ит|оз|ома|емия|урия|логия|графия|скопия|терапия|метрия|патия|ция|ние|ость|ство|тель|ический|ческая|альный|альная|"
    r"ый|ий|ая|ое|ые|ого|ому|ых|ться|лся|лась|ил|ол|прил|сартан|цин|цил\w*|зол|мид|зид|лин|вит|ция|ції|ність|ння|ський|"
    r"ична|ичний|ого|ова|аційн\w+|ение|ения|ане|ение|ост|ство|ния)$"
)
INFINITIVES = {
    "es": ("ar", "er", "ir", "arse", "irse", "erse"), "pt": ("ar", "er", "ir"), "it": ("are", "ere", "ire", "arsi"),
    "fr": ("er", "ir", "re", "oir"), "de": ("en", "n"), "en": ("", "e"),
}  # fmt: skip
PLURALS = ("en", "es", "fr", "pt")
JOINTS = ("", "s", "es", "n", "en", "er", "e")  # between the parts of a German compound
CASES = ("s", "es", "n", "en", "e", "er", "em", "ern")  # endings of German nouns and adjectives
WITHOUT_DICTIONARY = ("bg", "uk", "he")  # languages of `common_words.yaml`


@lru_cache(maxsize=65536)
def bare(word: str) -> str:
    """The word in small letters without accents."""
    return "".join(c for c in unicodedata.normalize("NFD", word.casefold()) if not unicodedata.combining(c))


@cache
def _terms() -> tuple[frozenset[str], tuple[str, ...], tuple[str, ...]]:
    raw = yaml.load(TERMS.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    words = {bare(w) for key in ("eponyms", "genera", "brands", "general") for w in raw[key].split()}
    return frozenset(words), tuple(map(bare, raw["endings"].split())), tuple(map(bare, raw["loose"].split()))


@cache
def _common(code: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Frequent words of a language without a dictionary, and the stems of others."""
    if code not in WITHOUT_DICTIONARY:
        return frozenset(), ()
    raw = yaml.load(COMMON_WORDS.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)[code].split()
    stems = {bare(w[:-1]) for w in raw if w.endswith("*")}
    return frozenset(bare(w.rstrip("*")) for w in raw), tuple(sorted(stems))


@cache
def is_common(code: str, word: str) -> bool:
    """Whether a word is frequent in clinical notes of a language that has no dictionary."""
    plain, (words, stems) = bare(word), _common(code)
    if plain in words:
        return True
    stem = next((s for s in stems if plain.startswith(s) and len(plain) - len(s) <= (6 if len(s) > 4 else 3)), None)
    return stem is not None


@cache
def frequencies(code: str) -> dict[str, int]:
    """How often each word of a language occurs, with and without accents; empty if there is no dictionary.

    Raises `UserError` if pyspellchecker is not installed.
    """
    if code not in DICTIONARIES:
        return {}
    try:
        from spellchecker import SpellChecker
    except ImportError:
        raise UserError("the dictionaries need the package pyspellchecker: pip install 'hansa[prepare]'") from None
    counts: dict[str, int] = {}
    for word, count in SpellChecker(language=code).word_frequency.dictionary.items():
        for key in {word, bare(word)}:
            counts[key] = max(count, counts.get(key, 0))
    return counts


@cache
def medical_terms() -> tuple[str, ...]:
    """Proper nouns of medicine, in small letters and without accents."""
    return tuple(sorted(_terms()[0]))


def is_term(word: str) -> bool:
    """Whether a word is a proper noun of medicine, such as an eponym or a genus, or a word like "Emergency"."""
    return bare(word) in _terms()[0]


@cache
def _compound(code: str, word: str) -> bool:
    """Whether a German word is made of two or three words of the dictionary."""
    known = frequencies(code)
    for cut in range(len(word) - 3, 3, -1):
        head, rest = word[:cut], word[cut:]
        starts = head + "en" in known or any(head.endswith(j) and head[: len(head) - len(j)] in known for j in JOINTS)
        if starts and (rest in known or (len(rest) > 7 and _compound(code, rest))):
            return True
    return False


@cache
def is_verb(code: str, word: str) -> bool:
    """Whether a word is a form of a verb whose infinitive the dictionary has: «presentaba», «acude», «riferisce»."""
    endings, known = INFINITIVES.get(code, ()), frequencies(code)
    return any(word[:cut] + ending in known for cut in range(max(4, len(word) - 5), len(word)) for ending in endings)


@cache
def is_ordinary(code: str, word: str, begins: bool = False, least: int = COMMON) -> bool:
    """Whether a word of a language is probably no name: it is in the dictionary, or a term or form of medicine.

    ``begins``: the word begins a sentence, so its capital letter says nothing. ``least``: see `COMMON`, `EVERYDAY`.
    """
    plain = bare(word)
    words, endings, loose = _terms()
    known = frequencies(code)
    if plain in words or known.get(plain, 0) >= least:
        return True
    if code in ("ru", "bg", "uk", "he"):
        return (code == "he" or begins) and (is_common(code, word) or bool(CYRILLIC.search(word.casefold())))
    if plain.endswith(endings) or (code in PLURALS and plain.endswith("s") and known.get(plain[:-1], 0) >= least):
        return True
    if begins and (plain in known or plain.endswith(loose) or is_verb(code, plain)):
        return True
    return code == "de" and (plain in known or _compound(code, plain) or _declined(known, plain))


def _declined(known: dict[str, int], word: str) -> bool:
    """Whether a German word is a declined form of a word of the dictionary."""
    return any(word.endswith(end) and known.get(word[: -len(end)], 0) >= COMMON for end in CASES)
