"""The words by which personal details are known in one language, as compiled patterns.

`personal/LANG.yaml` holds language, not people: titles, month names, street words, labels and number shapes. No list of
given names, families, streets or cities is kept anywhere, so what is found does not depend on who lives where.
"""
# ruff: noqa: RUF001 (letters of several scripts side by side are what this file is about)

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hansa.core.errors import UserError, did_you_mean

FOLDER = Path(__file__).parent / "languages"
# Letters that have case, in Latin, Greek and Cyrillic: a name may be written in any of the three.
UPPER = "".join(c for c in map(chr, [*range(0x41, 0x530), *range(0x1E00, 0x2000)]) if c.isupper())
LETTER = r"[^\W\d_]"
LOWER = rf"[^\W\d_{UPPER}]"
# d'Angelo, al-Hassan, O’Brien, Anne-Marie
CAPITAL = rf"(?:[A-Za-z]{{1,4}}['’\-])?[{UPPER}](?:{LETTER}|['’\-](?={LETTER}))*"
SOFT_CAPITAL = rf"(?:[A-Za-z]{{1,4}}['’])?[{UPPER}](?:{LOWER}|[{UPPER}]{{2}})(?:{LETTER}|['’\-](?={LETTER}))*"
INITIAL = rf"[{UPPER}]\.(?:-?[{UPPER}]\.)*"
UNCASED = rf"{LETTER}(?:[\w\u0300-\u036f\u05b0-\u05c7\u064b-\u0652״׳'’\-](?!\d))*"


def literal(word: str) -> str:
    """The word as a pattern: full stops may be missing (not after a single letter), quotes may be of either kind."""
    body = word.removesuffix(".")
    pattern = re.escape(body).replace(r"\.", r"\.?").replace(r"\ ", " ?" if ". " in word else " ")
    for plain, fine in (("'", "’"), ("׳", "'"), ("״", '"')):
        pattern = pattern.replace(plain, f"[{plain}{fine}]") if plain in word else pattern
    if body != word:
        return pattern + (r"\." if sum(c.isalpha() for c in body) < 2 else r"(?:\.|(?!\w))")
    return pattern + (r"(?!\w)" if word[-1].isalnum() else "")


def in_cases(word: str) -> set[str]:
    """As written, with a capital, and in capitals; a single letter only as written."""
    letters = sum(c.isalpha() for c in word)
    if letters < 2:
        return {word}
    return {word, word[0].upper() + word[1:], *({word.upper()} if letters > 2 else ())}


def one_of(words: Iterable[str], cases: bool = True) -> str:
    """A pattern for any of the words, longest first, grouped by first letter so that scanning a text stays fast."""
    forms = {form for word in words for form in (in_cases(word) if cases else {word})}
    return grouped([literal(form) for form in sorted(forms, key=lambda f: (-len(f), f))])


def grouped(patterns: list[str]) -> str:
    groups: dict[str, list[str]] = {}
    for pattern in patterns:
        first = pattern[0] if pattern[0].isalpha() else ""
        groups.setdefault(first, []).append(pattern[len(first) :])
    return (
        "(?:" + "|".join(f"{first}(?:{'|'.join(rest)})" for first, rest in groups.items()) + ")" if groups else "(?!)"
    )


def matches(pattern: re.Pattern[str], text: str, places: list[int]) -> Iterator[re.Match[str]]:
    """What begins at one of these places, without overlaps."""
    match, past = pattern.match, 0
    for place in places:
        if place >= past and (m := match(text, place)):
            past = m.end()
            yield m


@dataclass(frozen=True)
class Month:
    number: int
    form: int  # which of the inflected forms
    short: bool


@dataclass(frozen=True)
class Vocabulary:
    code: str
    raw: dict[str, Any]
    cased: bool
    prefixes: str  # letters that Hebrew and Arabic attach to the front of a word
    stop: frozenset[str]
    particles: frozenset[str]
    months: dict[str, Month]
    full_months: list[list[str]]
    short_months: list[list[str]]

    def words(self, *path: str) -> list[str]:
        """A list of the language's file, empty where the language has none."""
        here: Any = self.raw
        for key in path:
            here = here.get(key, {})
        return list(here)

    @property
    def titles(self) -> list[str]:
        return [title for group in ("female", "male", "any") for title in self.words("titles", group)]


@cache
def vocabulary(code: str) -> Vocabulary:
    known = sorted(p.stem for p in FOLDER.glob("*.yaml"))
    code = re.split("[-_]", code.strip().lower())[0]
    if code not in known:
        raise UserError(f"language '{code}' has no rules for personal details; {did_you_mean(code, known)}")
    raw = yaml.load((FOLDER / f"{code}.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    full, short = _month_forms(raw["months"])
    months = {
        form.casefold(): Month(number, index, table is short)
        for table in (short, full)
        for number, forms in enumerate(table, 1)
        for index, form in reversed(list(enumerate(forms)))
    }
    return Vocabulary(
        code,
        raw,
        raw.get("cased", True),
        raw.get("prefixes", ""),
        frozenset(w.casefold() for w in raw["stop"]),
        frozenset(w.casefold() for w in raw["particles"]),
        months,
        full,
        short,
    )


def _month_forms(lines: list[str]) -> tuple[list[list[str]], list[list[str]]]:
    """ "gennaio | gen, genn": full forms before the bar, abbreviations after it; the nth forms belong together."""
    halves = [(line + "|").split("|")[:2] for line in lines]
    full, short = ([[f.strip() for f in half[i].split(",") if f.strip()] for half in halves] for i in (0, 1))
    return full, short
