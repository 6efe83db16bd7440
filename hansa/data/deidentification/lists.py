"""Find names and towns that stand in word lists: names without a title, label or role, and towns without a street.

A sequence of capitalised words that contains a listed given name, or two listed names, is a name; so "Marta Okonjo" is
found although no list has "Okonjo". A listed given name alone is a name inside a sentence, where ordinary words have no
capital letter. In scripts without capitals, a listed given name must be followed by a listed family or given name.
"""
# ruff: noqa: RUF001 (letters of several scripts are intended)

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from hansa.data.deidentification.inverted import Inverted, inverted
from hansa.data.deidentification.lexicon import (
    CAPITAL,
    INITIAL,
    LETTER,
    UPPER,
    Vocabulary,
    capitalised,
    one_of,
    same_length,
    vocabulary,
    without_case,
)
from hansa.data.deidentification.name_lists import LOCALES, SCRIPTS, further_people, locales_of, people_of, towns_of
from hansa.data.deidentification.names import is_eponym
from hansa.data.deidentification.ordinary import is_term
from hansa.data.deidentification.repeats import plain
from hansa.data.deidentification.rules import Finding
from hansa.data.deidentification.uncased import Uncased, uncased
from hansa.data.deidentification.unlisted import Unlisted, unlisted

LONGEST = 5  # words of a name
WORD = re.compile(rf"{LETTER}(?:{LETTER}|['’׳״-](?={LETTER}))*")
SENTENCE_END = re.compile(r"(?:^|[.!?:•\n\"“«(–-])\s*$")
ALONE = re.compile(r":\s*$")
ENDS = re.compile(r"\s*(?:[.,;)\n]|$)")
# Given names that are also words with which a sentence may begin.
ORDINARY = frozenset(
    (  # noqa: SIM905 (a hundred words, several per line)
        "will mark may grace rose hope faith joy dawn april june august summer bill frank art chase drew pat sue "
        "dale clay skip page price rich sterling iris alba rosa pilar clara vera bruno pero luz paz mar dolores "
        "remedios mercedes angeles consuelo socorro salud milagros blanca leon celeste prudence constance pascal "
        "noel felicite aurore marine fleur fiore gioia salvo bianca serena chiara stella viola perla alma "
        "victoria gloria мир вера надежда любовь слава роза лилия майя роман марк надія віра любов здрава "
    ).split()
)
CAPITALISED_NOUNS = ("de",)  # where a capital letter says little


class Lists:
    """The finder ``lists``; needs the packages of `pip install 'hansa[prepare]'`."""

    def find(self, text: str, language: str) -> list[Finding]:
        """The names and towns in a text; raises `UserError` if the packages with the lists are not installed."""
        known = _known(vocabulary(language).code)
        if known.words.cased and not without_case(text):
            return [*known.cased(text), *known.unlisted.find(text), *known.inverted.find(text)]
        return list(known.caseless.find(same_length(text, str.lower)))


@dataclass(frozen=True)
class _Known:
    """The lists of one language, in plain form (`plain`)."""

    words: Vocabulary
    given: frozenset[str]  # of the language
    any_given: frozenset[str]  # of all languages in its script
    family: frozenset[str]
    towns: frozenset[str]
    sequence: re.Pattern[str]
    place: re.Pattern[str]  # words before a town
    unlisted: Unlisted
    inverted: Inverted
    caseless: Uncased

    def cased(self, text: str) -> Iterator[Finding]:
        """The names and towns among the sequences of capitalised words in a text."""
        for m in capitalised(self.sequence, text):
            yield from self._in_sequence(text, m.start(), m.end())

    def _in_sequence(self, text: str, start: int, end: int) -> Iterator[Finding]:
        words = [(w.start(), w.end(), plain(w[0])) for w in WORD.finditer(text, start, end)]
        while words and (
            text[words[0][0] : words[0][1]].casefold() in self.words.stop or self._first_only(text, words)
        ):
            words = words[1:]
        while words and text[words[0][0]].islower() and words[0][2] in self.words.particles:
            words = words[1:]
        while words and words[-1][2] in self.words.particles:
            words = words[:-1]
        if not words:
            return
        place = self._town(text, words)
        if place is not None:
            yield place
            return
        names = words[:LONGEST]
        if self._is_name(text, names) and not self._eponym(text, names):
            yield Finding(names[0][0], names[-1][1], "NAME")

    def _eponym(self, text: str, words: list[tuple[int, int, str]]) -> bool:
        """Whether the words belong to a medical term; a given name of the language does not, unless medicine has it."""
        own = words[0][2] in self.given and not is_term(words[0][2])
        return not own and is_eponym(self.words, text, words[0][0], words[-1][1])

    def _first_only(self, text: str, words: list[tuple[int, int, str]]) -> bool:
        """Whether the first word is capitalised because it begins a sentence, and is no listed name."""
        begins = SENTENCE_END.search(text, max(0, words[0][0] - 4), words[0][0]) is not None
        listed = len(words) > 1 and words[1][2] in self.any_given and text[words[0][1] : words[1][0]] == ", "
        return begins and not listed and words[0][2] not in self.any_given and words[0][2] not in self.family

    def _is_name(self, text: str, words: list[tuple[int, int, str]]) -> bool:
        plain_words = [w[2] for w in words if w[2] not in self.words.particles]
        given = sum(w in self.any_given for w in plain_words)
        listed = sum(w in self.any_given or w in self.family for w in plain_words)
        if len(plain_words) > 1:
            if len(plain_words[0]) == 1:  # J. Smith; unlisted words after a letter are often species
                return listed > 0
            short = any(text[w[0] : w[1]].isupper() and w[1] - w[0] < 4 for w in words)  # ELISA, ANA
            if short and listed < 2:
                return False
            own = sum(w in self.given for w in plain_words)
            inside = not SENTENCE_END.search(text, max(0, words[0][0] - 4), words[0][0])
            if self.words.code in CAPITALISED_NOUNS:
                return listed > 1 or own > 0
            return listed > 1 or given > 0 or (listed > 0 and inside and len(plain_words) == 2)
        if not plain_words or plain_words[0] not in self.given:
            return False
        start = words[0][0]
        if text[start : words[0][1]].isupper():  # an acronym
            return False
        begins = SENTENCE_END.search(text, max(0, start - 4), start) is not None
        if ALONE.search(text, max(0, start - 3), start) and ENDS.match(text, words[0][1]):
            return True  # "ask for: Vera."
        return len(plain_words[0]) > (3 if begins else 2) and not (begins and plain_words[0] in ORDINARY)

    def _town(self, text: str, words: list[tuple[int, int, str]]) -> Finding | None:
        if len(words) > 4:
            return None
        name = " ".join(w[2] for w in words)
        start, end = words[0][0], words[-1][1]
        if name not in self.towns or is_eponym(self.words, text, start, end):
            return None
        introduced = self.place.search(text, max(0, start - 24), start) is not None
        ambiguous = name in self.any_given or name in self.family or len(name) < 4
        begins = SENTENCE_END.search(text, max(0, start - 4), start) is not None
        return Finding(start, end, "TOWN") if introduced or not (ambiguous or begins) else None


@cache
def _known(code: str) -> _Known:
    words = vocabulary(code)
    own = [*(people_of(locale) for locale in LOCALES.get(code, ())), further_people(code)]
    alike = [other for other in LOCALES if SCRIPTS.get(other) == SCRIPTS.get(code)]
    everyone = [*(people_of(locale) for locale in locales_of(code)), *map(further_people, alike)]
    particles = one_of(words.particles) if words.particles else "(?!)"
    word = rf"(?:{INITIAL}|{CAPITAL})"
    sequence = rf"(?<![\w'’]){word}(?:(?:,? |-)(?:{particles} ){{0,3}}{word}){{0,5}}"
    cues = one_of(words.words("town_cues")) if words.words("town_cues") else "(?!)"
    place = re.compile(rf"(?:(?<!\w){cues} |\d{{4,6}},? |[{UPPER}]{LETTER}+[,.] ?\(?|\()$")
    given = frozenset(plain(n) for given, _ in everyone for n in given if len(n) > (1 if code == "he" else 2))
    family = frozenset(plain(n) for _, family in everyone for n in family if len(n) > (1 if code == "he" else 2))
    own_family = frozenset(plain(n) for _, family in own for n in family if len(n) > (1 if code == "he" else 2))
    own_given = frozenset(plain(n) for given, _ in own for n in given)
    towns = frozenset(plain(n) for n in towns_of(code))
    return _Known(
        words,
        own_given,
        given,
        family,
        towns,
        re.compile(sequence),
        place,
        unlisted(words, given, family, own_family, re.compile(rf"(?<!\w){cues} $")),
        inverted(words, given, family),
        uncased(words, own_given, own_family, given, family, towns),
    )
