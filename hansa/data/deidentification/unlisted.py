"""Find names that no list has: capitalised words that the dictionary of the language does not know either.

Inside a sentence an ordinary word has no capital letter, so an unknown one is a name, or a town after words such as
"lives in". At the beginning of a sentence, and in German, the word must also look unlike the words of medicine.
Eponyms, departments and labels are left alone.
"""
# ruff: noqa: RUF001 (letters of several scripts are intended)

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hansa.data.deidentification.lexicon import CAPITAL, INITIAL, LETTER, LOWER, UPPER, Vocabulary, capitalised, one_of
from hansa.data.deidentification.names import is_eponym
from hansa.data.deidentification.ordinary import COMMON, EVERYDAY, bare, frequencies, is_common, is_ordinary, is_term
from hansa.data.deidentification.rules import Finding

Word = tuple[int, int]
WORD = re.compile(rf"{LETTER}(?:{LETTER}|['’](?={LETTER}))*\.?")
BEGINS = re.compile(r"(?:^|[.!?:•…\n\"“«*|–]|\s-|\d\))\s*$")
CLAUSE = re.compile(r"(?:^|[.!?:;•…\n(–])\s*$")
# Family names of Cyrillic scripts have endings of their own.
FAMILY = re.compile(
    r"(?:ов|ев|ёв|єв|ын|ых|их|ский|цкий|зький|ський|енко|чук|юк|ик|ян|дзе|швили|ко|ич|ць)(?:а|ой|у|ым|ом|ою|ем|я|ая|ского|скому)?$|"
    r"(?:ова|ева|ёва|ская|цкая|ська|зька|ски|ска)$"
)
SHORTEST = 3
CACHED = 100_000  # words whose kind is remembered
MIXED = re.compile(
    rf"(?!(?:Mc|Mac|De|Di|Da|Do|Du|La|Le|Lo|O['’]|D['’]|L['’]|Fitz|Van|Von)[{UPPER}])[{UPPER}]+{LOWER}+[{UPPER}].*"
)  # IgG, FiO
ELIDED = re.compile(rf"{LETTER}+['’]{LOWER}")  # L'ambulanza
INSIDE = re.compile(rf"(?:{LOWER}|,) $")
LABEL = re.compile(r"\s*:")
NOUNS_CAPITALISED = ("de",)


@dataclass(frozen=True)
class Unlisted:
    """Finds capitalised unknown words in a language whose script has capital letters."""

    words: Vocabulary
    given: frozenset[str]
    family: frozenset[str]
    own_family: frozenset[str]  # of the language itself
    sequence: re.Pattern[str]
    place: re.Pattern[str]  # words before a town
    department: re.Pattern[str]  # words before a name that is no person's
    verb: re.Pattern[str]  # what people do
    particle: re.Pattern[str]  # a capitalised particle before a family name
    kinds: dict[tuple[str, bool, bool], str] = field(default_factory=dict)

    def find(self, text: str) -> Iterator[Finding]:
        """Names and towns in a text that has both capital and small letters."""
        for m in capitalised(self.sequence, text):
            run: list[Word] = []
            certain = False
            for w in WORD.finditer(text, m.start(), m.end()):
                kind = self._kind(text, w, bool(run))
                if kind == "-" and not run and self._acts(text, w):
                    kind = "L"
                if kind == "-" and self._follows_name(text, run, w):
                    kind = "U"
                if kind == "-" or (
                    run and text[run[-1][1] : w.start()].strip(" ,") not in ("", "-", *self.words.particles)
                ):
                    yield from self._named(text, run, certain)
                    run, certain = [], False
                    if kind == "-":
                        continue
                run.append(w.span())
                certain = certain or kind == "L"
            yield from self._named(text, run, certain)

    def _kind(self, text: str, w: re.Match[str], inside: bool) -> str:
        """L: a listed name; U: unknown; I: an initial; p: a particle; -: an ordinary word."""
        joined = text[w.end() : w.end() + 1]
        if joined.isdigit() or joined in ("®", "™"):
            return "-"
        # Russian has capital letters inside a sentence in proper nouns only.
        proper = self.words.code == "ru" and INSIDE.search(text, max(0, w.start() - 3), w.start()) is not None
        key = (w[0], inside, proper)
        kind = self.kinds.get(key)
        if kind is None:
            if len(self.kinds) >= CACHED:
                self.kinds.clear()
            kind = self.kinds[key] = self._kind_alone(*key)
        return kind

    def _kind_alone(self, written: str, inside: bool, proper: bool) -> str:
        """The kind of a word, whatever stands around it."""
        word = written.rstrip(".")
        small, plain, code = word.casefold(), bare(word), self.words.code
        if len(word) == 1:
            return "I" if written.endswith(".") else "-"
        if small in self.words.particles:
            return "p" if inside else "-"
        if MIXED.fullmatch(word) or ELIDED.match(word) or word[0].islower():
            return "-"
        if small in self.words.stop or small in self.words.title_words:
            return "-"
        listed = plain in self.given or plain in self.family
        if word.isupper() and len(word) < (4 if listed else 6):
            return "-"
        if self._own(plain) or (listed and (inside or not is_ordinary(code, word, least=EVERYDAY))):
            return "L"
        least = EVERYDAY if proper and word.istitle() else COMMON
        return "-" if is_ordinary(code, word, least=least) else "U"

    def _acts(self, text: str, w: re.Match[str]) -> bool:
        """Whether a family name that is also an ordinary word begins a clause, before a verb that people govern."""
        word = w[0].rstrip(".")
        if bare(word) not in self.own_family or not word.istitle() or word.casefold() in self.words.stop:
            return False
        return (
            self.verb.match(text, w.end()) is not None
            and CLAUSE.search(text, max(0, w.start() - 4), w.start()) is not None
        )

    def _own(self, plain: str) -> bool:
        """Whether a word is a family name of the language and hardly occurs as an ordinary word."""
        return plain in self.own_family and frequencies(self.words.code).get(plain, 0) <= COMMON

    def _follows_name(self, text: str, run: list[Word], w: re.Match[str]) -> bool:
        """Whether an ordinary word with a capital letter is the family name after a given name or an initial."""
        word = w[0].rstrip(".")
        if not run or not word[0].isupper() or not word[1:].islower():
            return False
        if self.words.code in NOUNS_CAPITALISED and not self._after_initial(text, run):
            return False
        stops = word.casefold() in self.words.stop or is_term(word)
        if run[-1][1] - run[-1][0] < 3 and not stops:  # after an initial
            return text[run[-1][1] : w.start()] in ("", " ")
        return text[run[-1][1] : w.start()] == " " and not stops and len(run) < 3 and self._no_medicine(word)

    def _after_initial(self, text: str, run: list[Word]) -> bool:
        """Whether the run is one initial inside a sentence, as in "mit P. Lange"."""
        start, end = run[0]
        return len(run) == 1 and end - start == 2 and INSIDE.search(text, max(0, start - 3), start) is not None

    def _no_medicine(self, word: str) -> bool:
        return not is_ordinary(self.words.code, word, least=1 << 60)

    def _named(self, text: str, run: list[Word], certain: bool) -> Iterator[Finding]:
        while run and text[run[-1][0] : run[-1][1]].casefold() in self.words.particles:
            run = run[:-1]
        words = [text[s:e].rstrip(".") for s, e in run]
        long = [w for w in words if len(w) >= SHORTEST]
        if not long or len(run) > 6:
            return
        start, end = self._from_particle(text, run[0][0]), run[-1][0] + len(words[-1])
        begins = BEGINS.search(text, max(0, start - 4), start) is not None
        if is_eponym(self.words, text, start, end) or self.department.search(text, max(0, start - 40), start):
            return
        initial = len(words[0]) == 1
        if begins and not (certain or initial) and all(is_common(self.words.code, w) for w in long):
            return
        acts = self.verb.match(text, end) is not None
        if LABEL.match(text, end) or (begins and not (initial or acts) and not self._may_begin(words, certain)):
            return
        listed = any(bare(w) in self.given or bare(w) in self.family for w in words)
        town = not listed and self.place.search(text, max(0, start - 24), start) is not None
        yield Finding(start, end, "TOWN" if town else "NAME")

    def _from_particle(self, text: str, start: int) -> int:
        """Where a name begins: at a capitalised particle before it, as in "De Luca", if no sentence begins there."""
        before = self.particle.search(text, max(0, start - 12), start)
        if not before or BEGINS.search(text, max(0, before.start() - 4), before.start()):
            return start
        return before.start()

    def _may_begin(self, words: list[str], certain: bool) -> bool:
        """Whether words at the beginning of a sentence are a name."""
        code = self.words.code
        names = [w for w in words if len(w) >= SHORTEST]
        if code in ("ru", "bg", "uk"):
            return any(FAMILY.search(w.casefold()) for w in names) or (certain and len(names) > 1)
        if certain:
            return len(names) > 1 or self._own(bare(names[0])) or not is_ordinary(code, names[0], least=COMMON)
        return not all(is_ordinary(code, w, begins=True) for w in names)


def unlisted(
    words: Vocabulary,
    given: frozenset[str],
    family: frozenset[str],
    own_family: frozenset[str],
    place: re.Pattern[str],
) -> Unlisted:
    """The finder of a language: ``given`` and ``family`` are listed names in plain form, ``place`` precedes a town."""
    particles = one_of(words.particles) if words.particles else "(?!)"
    word = rf"(?:{INITIAL}|{CAPITAL})"
    sequence = rf"(?<![\w'’-]){word}(?:(?:,? |-| ?(?={INITIAL}))(?:{particles} ){{0,3}}{word}){{0,7}}"
    cues = [*words.words("hospitals", "before"), *words.words("departments")]
    department = re.compile(rf"(?<!\w){one_of(cues)} (?:{LETTER}{{1,5}} ){{0,2}}$") if cues else re.compile("(?!)")
    verbs = words.words("person_verbs")
    verb = re.compile(rf" {one_of(verbs, cases=False)}" if verbs else "(?!)")
    some = [p[:1].upper() + p[1:] for p in words.particles] + [p.upper() for p in words.particles]
    particle = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(some, key=len, reverse=True))) or '(?!)'}) $")
    return Unlisted(words, given, family, own_family, re.compile(sequence), place, department, verb, particle)
