"""Words that indicate personal details in one language, and regular expressions made from them.

`languages/LANG.yaml` lists titles, month names, street words, labels and number formats. It lists no given names,
family names, streets or cities, so the findings do not depend on which names are common.
"""
# ruff: noqa: RUF001 (letters of several scripts are intended)

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from hansa.core.errors import UserError, did_you_mean

FOLDER = Path(__file__).parent / "languages"
# Capital letters of the Latin, Greek and Cyrillic scripts.
UPPER = "".join(c for c in map(chr, [*range(0x41, 0x530), *range(0x1E00, 0x2000)]) if c.isupper())
LETTER = r"[^\W\d_]"
LOWER = rf"[^\W\d_{UPPER}]"
# d'Angelo, al-Hassan, O’Brien, Anne-Marie
CAPITAL = rf"(?:[A-Za-z]{{1,4}}['’\-])?[{UPPER}](?:{LETTER}|['’\-](?={LETTER}))*"
SOFT_CAPITAL = rf"(?:[A-Za-z]{{1,4}}['’])?[{UPPER}](?:{LOWER}|[{UPPER}]{{2}})(?:{LETTER}|['’\-](?={LETTER}))*"
INITIAL_OR_ROMAN = rf"(?:[{UPPER}]\.|[IVX]+(?!\w))"
INITIAL = rf"[{UPPER}]\.(?:-?[{UPPER}]\.)*"
SAMPLE = 1000  # characters by which a text is judged
SMALL_SHARE = 0.003  # of capitals among the letters, below which a text is in small letters
APOSTROPHES = str.maketrans("’׳״", "''\"")  # as on a keyboard
UNCASED = rf"{LETTER}(?:[\w\u0300-\u036f\u05b0-\u05c7\u064b-\u0652״׳'’\-](?!\d))*"


def literal(word: str) -> str:
    """A pattern for a word. Full stops are optional except after a single letter; both kinds of quotes match."""
    body = word.removesuffix(".")
    pattern = re.escape(body).replace(r"\.", r"\.?").replace(r"\ ", " ?" if ". " in word else " ")
    for plain, fine in (("'", "’"), ("׳", "'"), ("״", '"')):
        pattern = pattern.replace(plain, f"[{plain}{fine}]") if plain in word else pattern
    if body != word:
        return pattern + (r"\." if sum(c.isalpha() for c in body) < 2 else r"(?:\.|(?!\w))")
    return pattern + (r"(?!\w)" if word[-1].isalnum() else "")


def in_cases(word: str) -> set[str]:
    """The word unchanged, capitalised (each word of it, too) and in capitals; a single letter mostly unchanged."""
    letters = sum(c.isalpha() for c in word)
    if letters < 2:
        return {word, word.upper()} if word.endswith("/") else {word}  # C/ Mayor
    each = {" ".join(w[:1].upper() + w[1:] for w in word.split(" "))} if " " in word else set()
    return {word, word[0].upper() + word[1:], *each, *({word.upper()} if letters > 2 else ())}


def one_of(words: Iterable[str], cases: bool = True) -> str:
    """A pattern for any of the words, longest first, grouped by first letter for speed."""
    forms = spellings(words) if cases else set(words)
    return grouped([literal(form) for form in sorted(forms, key=lambda f: (-len(f), f))])


def spellings(words: Iterable[str]) -> set[str]:
    """The words in all cases of `in_cases`."""
    return {form for word in words for form in in_cases(word)}


def grouped(patterns: list[str]) -> str:
    """A pattern for any of the patterns, with a common first letter factored out."""
    groups: dict[str, list[str]] = {}
    for pattern in patterns:
        first = pattern[0] if pattern[0].isalpha() else ""
        groups.setdefault(first, []).append(pattern[len(first) :])
    alternatives = [first + (_factored(rest) if first else f"(?:{'|'.join(rest)})") for first, rest in groups.items()]
    return "(?:" + "|".join(alternatives) + ")" if groups else "(?!)"


def _factored(patterns: list[str]) -> str:
    """A pattern that matches as the patterns joined by bars do; common first letters are read once.

    Patterns that begin with different letters exclude each other, so their order says nothing. No pattern is moved
    across one that does not begin with a letter.
    """
    groups: list[tuple[str, list[str]]] = []
    latest: dict[str, list[str]] = {}
    for pattern in patterns:
        first = pattern[0] if pattern[:1].isalpha() else ""
        if not first:
            groups.append(("", [pattern]))
            latest = {}
        elif first in latest:
            latest[first].append(pattern[1:])
        else:
            latest[first] = [pattern[1:]]
            groups.append((first, latest[first]))
    made = [first + (rest[0] if len(rest) == 1 else _factored(rest)) if first else rest[0] for first, rest in groups]
    return made[0] if len(made) == 1 else f"(?:{'|'.join(made)})"


def trie(patterns: list[str]) -> str:
    """As `grouped`, for patterns of which it only matters whether any matches; their order is not kept."""
    return _factored(sorted(patterns, key=lambda p: (p[:1].isalpha(), p))) if patterns else "(?!)"


FIRST_CAPITAL = re.compile(f"[{UPPER}]")
BEFORE_CAPITAL = re.compile(r"[A-Za-z]{1,4}['’\-]$")  # d'Angelo


def capitalised(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """The matches of a pattern that begins with `CAPITAL` or `INITIAL`, without overlaps.

    The same as ``pattern.finditer(text)``, but only the places before capital letters are tried.
    """
    match, past = pattern.match, 0
    for capital in FIRST_CAPITAL.finditer(text):
        start = capital.start()
        if start < past:
            continue
        m = None
        if start and text[start - 1] in "'’-":
            before = BEFORE_CAPITAL.search(text, max(past, start - 5), start)
            places = range(before.start(), start) if before else range(start, start)
            m = next((found for place in places if (found := match(text, place))), None)
        m = m or match(text, start)
        if m:
            past = m.end()
            yield m


@dataclass(frozen=True)
class Month:
    """A month name."""

    number: int
    form: int  # index of the inflected form
    short: bool


@dataclass(frozen=True)
class Vocabulary:
    """The words of one language; ``raw`` is the content of its YAML file."""

    code: str
    raw: dict[str, Any]
    cased: bool
    prefixes: str  # letters that Hebrew and Arabic attach to the front of a word
    stop: frozenset[str]
    particles: frozenset[str]
    months: dict[str, Month]  # by `month_key`
    full_months: list[list[str]]
    short_months: list[list[str]]

    def words(self, *path: str) -> list[str]:
        """The list at a path of keys in the language's file; empty if it is missing."""
        here: Any = self.raw
        for key in path:
            here = here.get(key, {})
        return list(here)

    def month(self, written: str) -> Month | None:
        """The month that a word names, with any kind of apostrophe; None if it names none."""
        return self.months.get(month_key(written))

    @cached_property
    def title_words(self) -> frozenset[str]:
        """The words of all titles, in lower case and without full stops."""
        after = [t for group in ("female", "male", "any") for t in self.words("titles_after", group)]
        return frozenset(w.strip(".,").casefold() for title in [*self.titles, *after] for w in title.split())

    @property
    def titles(self) -> list[str]:
        """All titles that precede a name."""
        return [title for group in ("female", "male", "any") for title in self.words("titles", group)]


# Keys of a language file whose values are patterns, or words that are never searched.
PATTERNS = (
    "name_shape",
    "day_words",
    "year_in_words",
    "phones",
    "id_shapes",
    "postcode",
    "patterns",
    "patronymic",
    "initials",
    "prefixes",
    "surrogate",
)


def caseless(words: Vocabulary) -> Vocabulary:
    """The vocabulary for texts in small letters: its words are in small letters, and case says nothing."""

    def lower(value: Any, key: str = "") -> Any:
        """The value with all texts in it in small letters, except under the keys of `PATTERNS`."""
        if key in PATTERNS:
            return value
        if isinstance(value, dict):
            return {k: lower(v, k) for k, v in value.items()}
        return (
            [lower(v) for v in value] if isinstance(value, list) else value.lower() if isinstance(value, str) else value
        )

    months = [
        [[form.lower() for form in forms] for forms in table] for table in (words.full_months, words.short_months)
    ]
    return replace(words, raw=lower(words.raw), cased=False, full_months=months[0], short_months=months[1])


def without_case(text: str) -> bool:
    """Whether the letters of a text are nearly all capitals, or nearly all small, so that case says nothing."""
    sample = text[:SAMPLE]
    for codec, lower_bytes, upper_bytes in _byte_letters():
        # Letters that the codec lacks are not counted, so both counts may be too small; then all letters are counted.
        written = sample.encode(codec, "replace")
        lower = len(written) - len(written.translate(None, lower_bytes))
        upper = len(written) - len(written.translate(None, upper_bytes))
        if upper >= SMALL_SHARE * SAMPLE and len(sample) - lower <= 1.5 * lower:
            return False
    lower = sum(map(str.islower, sample))
    upper = sum(map(str.isupper, sample)) if lower else len(sample)
    return upper + lower > 20 and (upper > 1.5 * lower or upper < SMALL_SHARE * lower)


@cache
def _byte_letters() -> list[tuple[str, bytes, bytes]]:
    """Codecs of one byte per character, each with its small letters and its capital letters."""
    made = []
    for codec in ("latin-1", "cp1251"):
        letters = {n: bytes([n]).decode(codec, "replace") for n in range(256)}
        small = bytes(n for n, letter in letters.items() if letter.islower())
        made.append((codec, small, bytes(n for n, letter in letters.items() if letter.isupper())))
    return made


def same_length(text: str, change: Callable[[str], str]) -> str:
    """The text with every character changed by ``change`` that stays one character."""
    whole = change(text)
    return whole if len(whole) == len(text) else "".join(n if len(n := change(c)) == 1 else c for c in text)


def month_key(written: str) -> str:
    """The form under which a month name is listed: texts have it in any case and with any kind of apostrophe."""
    return written.translate(APOSTROPHES).casefold()


@cache
def vocabulary(code: str) -> Vocabulary:
    """The words of a language; raises `UserError` if it has no file."""
    known = sorted(p.stem for p in FOLDER.glob("*.yaml"))
    code = re.split("[-_]", code.strip().lower())[0]
    if code not in known:
        raise UserError(f"language '{code}' has no rules for personal details; {did_you_mean(code, known)}")
    raw = yaml.load((FOLDER / f"{code}.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    full, short = _month_forms(raw["months"])
    months = {
        month_key(form): Month(number, index, table is short)
        for table in (short, full)
        for number, forms in enumerate(table, 1)
        for index, form in reversed(list(enumerate(forms)))
    }
    return Vocabulary(
        code,
        raw,
        raw.get("cased", True),
        raw.get("prefixes", ""),
        frozenset(w.casefold() for w in (*raw["stop"], *_not_names(raw))),
        frozenset(w.casefold() for w in raw["particles"]),
        months,
        full,
        short,
    )


def _not_names(raw: dict[str, Any]) -> Iterator[str]:
    """Words of streets, institutions and labels, which are not part of a person's name."""
    hospitals, address = raw.get("hospitals", {}), raw["address"]
    for phrase in (*hospitals.get("before", ()), *hospitals.get("after", ()), *address.get("streets", ())):
        if " " not in phrase and len(phrase) > 3:
            yield phrase.strip(".")
    for labels in raw.get("fields", {}).values():
        yield from (label for label in labels if " " not in label and len(label) > 2)
    yield from ("email", "e-mail", "mail")


def _month_forms(lines: list[str]) -> tuple[list[list[str]], list[list[str]]]:
    """Parse lines such as ``gennaio | gen, genn``: full forms, a bar, abbreviations; the nth forms correspond."""
    halves = [(line + "|").split("|")[:2] for line in lines]
    full, short = ([[f.strip() for f in half[i].split(",") if f.strip()] for half in halves] for i in (0, 1))
    return full, short
