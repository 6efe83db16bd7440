"""Find names that are written with the family name first: SMITH, JOHN; Le Gall, Karim."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hansa.data.deidentification.lexicon import CAPITAL, LETTER, Vocabulary, one_of
from hansa.data.deidentification.ordinary import is_ordinary, is_term
from hansa.data.deidentification.repeats import plain
from hansa.data.deidentification.rules import Finding

GIVEN = re.compile(rf",[ ]?(?P<given>{CAPITAL}(?:[ -]{CAPITAL}){{0,2}})(?![\w@])")
WORD = re.compile(rf"{LETTER}(?:{LETTER}|['’](?={LETTER}))*")
WINDOW = 48  # characters before the comma that are examined


@dataclass(frozen=True)
class Inverted:
    """Finds «family name, given name» in a language whose script has capital letters."""

    words: Vocabulary
    given: frozenset[str]
    family: frozenset[str]
    before: re.Pattern[str]  # one to three capitalised words, with particles, that end at the comma

    def find(self, text: str) -> Iterator[Finding]:
        """The names in a text, each from the family name to the last given name."""
        for m in GIVEN.finditer(text):
            given = [plain(w) for w in WORD.findall(m["given"])]
            if not given or given[0] not in self.given or given[0] in self.words.stop:
                continue
            start = self._family(text, m.start(), m["given"])
            if start is not None:
                yield Finding(start, m.end(), "NAME")

    def _family(self, text: str, end: int, given: str) -> int | None:
        """Where the family name that ends at ``end`` begins; None if the words there are no family name."""
        before = self.before.search(text, max(0, end - WINDOW), end)
        if not before:
            return None
        start, words = before.start(), list(WORD.finditer(text, before.start(), end))
        while words and self._no_name(words[0][0]):
            words = words[1:]
            start = words[0].start() if words else end
        if not words or any(self._no_name(w[0]) for w in words):
            return None
        capitals = given.isupper() and all(w[0].isupper() for w in words)
        names = [w[0] for w in words if w[0].casefold() not in self.words.particles]
        known = any(plain(w) in self.family or plain(w) in self.given for w in names)
        unknown = names and not all(is_ordinary(self.words.code, w, begins=True) for w in names)
        return start if known or capitals or unknown else None

    def _no_name(self, word: str) -> bool:
        small = word.casefold()
        stops = small in self.words.stop and small not in self.words.particles
        return stops or small in self.words.title_words or (is_term(word) and plain(word) not in self.family)


def inverted(words: Vocabulary, given: frozenset[str], family: frozenset[str]) -> Inverted:
    """The finder of a language: ``given`` and ``family`` are listed names in plain form."""
    particles = one_of(words.particles) if words.particles else "(?!)"
    before = rf"(?<![\w'’-])(?:{particles} ){{0,2}}{CAPITAL}(?:[ -](?:{particles} ){{0,2}}{CAPITAL}){{0,2}}$"
    return Inverted(words, given, family, re.compile(before))
