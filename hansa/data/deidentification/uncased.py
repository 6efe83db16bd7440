"""Find names and towns where capital letters say nothing: in Hebrew and Arabic, and in texts of one case.

Listed names count where a second name stands beside them, after a word that introduces a person, or if no dictionary
has them. Beside a listed name, and after such a word, an unknown word is a name too.
"""
# ruff: noqa: RUF001 (letters of several scripts are intended)

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hansa.data.deidentification.lexicon import LETTER, Vocabulary, one_of
from hansa.data.deidentification.names import is_eponym
from hansa.data.deidentification.ordinary import EVERYDAY, frequencies, is_common, is_ordinary, is_term, is_verb
from hansa.data.deidentification.repeats import plain
from hansa.data.deidentification.rules import Finding

LONGEST = 5  # words of a name
SHORTEST = 2  # letters of a given name that are too few for a name by itself
RARE = 2000  # occurrences in the dictionary below which a word that the context introduces may be a name
BEGINS = re.compile(r"(?:^|[.!?:;\n])\s*$")
WORD = re.compile(rf"{LETTER}(?:{LETTER}|[\u0300-\u036f\u064b-\u0652]|['’׳״\"-](?={LETTER}))*")
BESIDE = (" ", "-", ", ", ",", "، ")
ENDS = re.compile(r"\s*(?:[.,،;:()\n]|$)")
ALONE = re.compile(r":\s*$")
ARTICLE = re.compile(r"[^\W\d_]{1,4}['’](?=[^\W\d_]{2})")  # l'ambulanza, dell'asma
INITIALS = re.compile(rf"(?<![\w.]){LETTER}\.(?: ?{LETTER}\.)? $")  # before a family name
PREFIXES = {"he": "ובלכשמה", "ar": "وبلفك"}
# The first part of Arabic names.
COMPOUND = frozenset(map(plain, ("عبد", "أبو", "بو", "ابن", "بن", "آل", "بنو", "بني", "ذو", "ذي")))
Place = tuple[int, int, str]  # start, end, plain form


@dataclass(frozen=True)
class Uncased:
    """The lists of one language, in plain form, for texts whose letters have no case."""

    words: Vocabulary
    particles: frozenset[str]  # in plain form, as the words of the text are compared
    stop: frozenset[str]
    own: frozenset[str]  # names of the language itself
    certain: frozenset[str]  # given names of the language that are no ordinary words
    given: frozenset[str]
    family: frozenset[str]
    towns: frozenset[str]
    role: re.Pattern[str]  # introduces a person
    near: re.Pattern[str]  # often introduces a person: "with", "by"
    place: re.Pattern[str]  # introduces a town
    home: re.Pattern[str]  # introduces the town where somebody lives
    verb: re.Pattern[str]  # what people do
    shape: re.Pattern[str]  # family names of a typical form
    verbs: frozenset[str]  # the words of ``verb``, in plain form, that are no names of the language
    own_given: frozenset[str]
    own_family: frozenset[str]
    ordinary_given: frozenset[str]  # given names that are ordinary words, too

    def find(self, text: str) -> Iterator[Finding]:
        """The names and towns in a text in small letters."""
        words = [(w.start(), w.end(), plain(w[0])) for w in WORD.finditer(text)]
        at = 0
        while at < len(words):
            town = self._town(text, words, at)
            if town:
                yield Finding(words[at][0], words[at + town - 1][1], "TOWN")
                at += town
                continue
            count = self._count(text, words, at)
            if count and not self._eponym(text, words[at : at + count]):
                initial = INITIALS.search(text, max(0, words[at][0] - 8), words[at][0])
                yield Finding(initial.start() if initial else words[at][0], words[at + count - 1][1], "NAME")
            at += max(count, 1)

    def _eponym(self, text: str, some: list[Place]) -> bool:
        """Whether a name is that of a disease or a method; these have family names."""
        return some[0][2] not in self.certain and is_eponym(self.words, text, some[0][0], some[-1][1])

    def _count(self, text: str, words: list[Place], at: int) -> int:
        """The number of words of the name that begins at a word; 0 if none does."""
        start, _, word = words[at]
        double, cased = self._double(text, words, at), self.words.raw.get("cased", True)
        opens = word in COMPOUND or double or (word in self.particles and self._comma_given(text, words, at))
        if self._stops(word) and not opens:
            return 0
        before = text[max(0, start - 32) : start]
        role = self.role.search(before) is not None
        initial = INITIALS.search(before) is not None and cased
        near = role or initial or self.near.search(before) is not None or self._attached(word)
        pair = double or self._own_pair(text, words, at, near)
        weak = near and not cased and self._own_name(word) and ENDS.match(text, words[at][1])
        inverted = self._inverted(text, words, at)
        listed, unknown = self._listed(word) or opens or pair or inverted or bool(weak), self._unknown(word)
        if word in self.own_given and ALONE.search(before) and ENDS.match(text, words[at][1]):
            return 1  # "ask for: vera."
        shaped = self._shaped(word)
        begins = BEGINS.search(text, max(0, start - 3), start) is not None
        acts = begins and self.verb.match(text, words[at][1]) is not None
        if acts and not listed and not frequencies(self.words.code) and len(word) > 2:
            return int(not (cased and is_common(self.words.code, word)))  # before a verb that people govern
        listed = listed or (acts and word in self.own_family)
        if near and not listed and at + 1 < len(words) and self.shape.fullmatch(words[at + 1][2]):
            return 2 if text[words[at][1] : words[at + 1][0]] == " " else 0
        if not (
            listed
            or shaped
            or (
                unknown
                and (
                    (role and not is_verb(self.words.code, word))
                    or acts
                    or self._given_next(text, words, at, self.given)
                )
            )
        ):
            return self._introduced(text, words, at) if role else 0
        near = near and (not cased or role or initial or pair or inverted or self._may_follow(word))
        count, names = (2, 2) if pair or inverted else (1, int(listed))
        while at + count < len(words) and count < LONGEST:
            beside = text[words[at + count - 1][1] : words[at + count][0]]
            nxt = words[at + count][2]
            particle = nxt in self.particles
            if beside not in BESIDE or (nxt in self.stop and not particle) or nxt in self.verbs:
                break
            known = nxt in self.given or nxt in self.family
            last = words[at + count]
            after_particle = words[at + count - 1][2] in self.particles and not self.words.raw.get("cased", True)
            fits = particle or known or after_particle or self._listed(nxt) or self._unknown(nxt)
            fits = fits or self._family_like(text, last, names, word in self.certain)
            if not (fits or (role and count == 1 and self._rare(nxt))):
                break
            names += known or self._listed(nxt)
            count += 1
        while count > 1 and words[at + count - 1][2] in self.particles:
            count -= 1
        if count > 1:
            return count if names > 1 or (names and self._given_in(words[at : at + count])) or near else 0
        return 1 if near or acts or shaped or self._surely(word) else 0

    def _may_follow(self, word: str) -> bool:
        """Whether a word after one such as "with" is a name of the language, or a foreign one that is no other word."""
        if word in self.own:
            return True
        return not (self._ordinary(word) or is_term(word))

    def _double(self, text: str, words: list[Place], at: int) -> bool:
        """Whether a family name of two words begins at a particle, as in "de luca"."""
        if words[at][2] not in self.particles or at + 1 == len(words):
            return False
        return text[words[at][1] : words[at + 1][0]] == " " and f"{words[at][2]} {words[at + 1][2]}" in self.own_family

    def _inverted(self, text: str, words: list[Place], at: int) -> bool:
        """Whether a family name begins at a word, and a given name follows after a comma, as in SMITH, JOHN."""
        if text[words[at][1] : words[at][1] + 1] != ",":
            return False
        word, nothing_known = words[at][2], not frequencies(self.words.code)
        if self._given_next(text, words, at, self.certain):
            return word in self.family or (nothing_known and len(word) > 3 and not is_common(self.words.code, word))
        own = word in self.own_family and self._given_next(text, words, at, self.own_given)
        return own and ENDS.match(text, words[at + 1][1]) is not None

    def _introduced(self, text: str, words: list[Place], at: int) -> int:
        """Two or three words between a role and the end of a phrase, where no dictionary can say more."""
        count = 0
        while at + count < len(words) and count < 3 and not self._stops(words[at + count][2]):
            count += 1
            if ENDS.match(text, words[at + count - 1][1]):
                break
        ends = count and ENDS.match(text, words[at + count - 1][1])
        rare = all(self._rare(word) for _, _, word in words[at : at + count])
        return count if ends and (rare or not frequencies(self.words.code)) else 0

    def _rare(self, word: str) -> bool:
        """Whether a word is rare enough for a name that the context introduces."""
        bare = word.removeprefix("ال") if self.words.code == "ar" else word
        counts = frequencies(self.words.code)
        return max(counts.get(word, 0), counts.get(bare, 0)) < RARE and not is_verb(self.words.code, word)

    def _family_like(self, text: str, place: Place, names: int, certain: bool) -> bool:
        """Whether the word after a listed name is a family name: by its form, or at the end of a phrase.

        ``certain``: the listed name is no ordinary word.
        """
        if not names:
            return False
        if self.words.code == "ar":
            return place[2].startswith("ال") and len(place[2]) > 4 and not self._everyday(place[2])
        shaped = self.shape.fullmatch(place[2]) is not None
        open_end = ENDS.match(text, place[1]) is not None
        if frequencies(self.words.code):
            return shaped or (open_end and certain and self._rare(place[2]))
        return shaped or (open_end and not self._ordinary(place[2]))

    def _comma_given(self, text: str, words: list[Place], at: int) -> bool:
        """Whether a particle begins a name such as DE SANTIS, GIOVANNA."""
        return any(self._given_next(text, words, n, self.given) for n in range(at + 1, min(at + 3, len(words))))

    def _given_next(self, text: str, words: list[Place], at: int, given: frozenset[str]) -> bool:
        """Whether one of the given names follows after a comma, as in SMITH, JOHN."""
        here, nxt = words[at], words[at + 1] if at + 1 < len(words) else None
        return nxt is not None and text[here[1] : nxt[0]] in (", ", ",") and nxt[2] in given

    def _given_in(self, some: list[Place]) -> bool:
        return any(self._is_given(word) for _, _, word in some)

    def _is_given(self, word: str) -> bool:
        return word in self.given and not self._everyday(word)

    def _stripped(self, word: str) -> list[str]:
        """The word, and the word without the conjunction or preposition that may be attached to its front."""
        letters = PREFIXES.get(self.words.code, "")
        if not letters or word[:1] not in letters:
            return [word]
        if self.words.code == "ar" and word.startswith("لل") and len(word) > 4:
            return [word, "ال" + word[2:]]  # the article loses a letter after this preposition
        return [word, word[1:]] if len(word) > 4 or (len(word) == 4 and word[1:] in self.own) else [word]

    def _listed(self, word: str) -> bool:
        """Whether a word, or a part of a double name, is listed and no everyday word."""
        parts = [part for part in word.split("-") if part] if "-" in word else [word]
        forms = [form for part in parts for form in self._stripped(part)]
        return any((w in self.given or w in self.family) and not self._everyday(w) for w in forms)

    def _attached(self, word: str) -> bool:
        """Whether a name of the language follows an attached preposition that means "to" or "for"."""
        name = word[1:] if word[:1] in ("ل", "ל") else ""
        if len(name) < 4 or name not in self.own or word in self.own:
            return False
        return not (self._everyday(word) or self._everyday(name) or is_common(self.words.code, word))

    def _own_pair(self, text: str, words: list[Place], at: int, near: bool) -> bool:
        """Whether two names of the language stand side by side.

        The dictionary counts how often a name occurs, too, so it does not tell frequent names from ordinary words.
        """
        if at + 1 >= len(words):
            return False
        here, after = words[at], words[at + 1]
        if self.words.raw.get("cased", True):  # "grace hughes"
            names = here[2] in self.own_given and (after[2] in self.own_family or after[2] in self.certain)
            ordinary = is_term(after[2]) or (self._everyday(after[2]) and not near)
            return names and text[here[1] : after[0]] == " " and not ordinary
        if text[here[1] : after[0]] not in (" ", ", ", "، ") or here[2] in self.stop or after[2] in self.stop:
            return False
        first = any(w in self.own for w in self._stripped(here[2]))
        return first and any(part in self.own for part in after[2].split("-"))

    def _own_name(self, word: str) -> bool:
        return any(w in self.own for w in self._stripped(word))

    def _surely(self, word: str) -> bool:
        """Whether a listed name is enough by itself: it is a name of the language, and no ordinary word."""
        known = frequencies(self.words.code)
        if word in self.certain and known.get(word, 0) < EVERYDAY and not is_common(self.words.code, word):
            return True
        return bool(known) and len(word) > 4 and word in self.own and word not in known and not self._ordinary(word)

    def _shaped(self, word: str) -> bool:
        """Whether a word has the form of family names, and no dictionary or list of frequent words has it."""
        if self.shape.fullmatch(word) is None or is_common(self.words.code, word):
            return False
        return self._unknown(word) or not frequencies(self.words.code)

    def _unknown(self, word: str) -> bool:
        return len(word) > 2 and bool(frequencies(self.words.code)) and not self._ordinary(word)

    def _ordinary(self, word: str) -> bool:
        bare = word.removeprefix("ال") if self.words.code == "ar" else word
        forms = {*self._stripped(word), *self._stripped(bare)}
        if not word.isalpha():
            forms.add(ARTICLE.sub("", word))
        return any(is_ordinary(self.words.code, form) or form in self.ordinary_given for form in forms)

    def _everyday(self, word: str) -> bool:
        return frequencies(self.words.code).get(word, 0) >= EVERYDAY

    def _stops(self, word: str) -> bool:
        return len(word) < 2 or word in self.stop or word in self.words.title_words

    def _town(self, text: str, words: list[Place], at: int) -> int:
        """The number of words of the town that begins at a word, after a word that introduces one."""
        before = max(0, words[at][0] - 24)
        home = self.home.search(text, before, words[at][0]) is not None
        if not home and not self.place.search(text, before, words[at][0]):
            return 0
        if not home and self._own_pair(text, words, at, near=True):
            return 0  # «a Pilar García», where Pilar is a town, too
        for count in (3, 2, 1):
            some = words[at : at + count]
            if len(some) == count and text[some[0][0] : some[-1][1]].count(" ") == count - 1:
                name = " ".join(w for _, _, w in some)
                if name in self.towns and not (count == 1 and self._everyday(name)):
                    return count
        known = bool(frequencies(self.words.code))
        return int(home and not self._stops(words[at][2]) and (self._unknown(words[at][2]) or not known))


def uncased(
    words: Vocabulary,
    own_given: frozenset[str],
    own_family: frozenset[str],
    given: frozenset[str],
    family: frozenset[str],
    towns: frozenset[str],
) -> Uncased:
    """The finder of a language; ``own_…`` are the names of the language itself."""
    roles = [w.lower() for key in ("roles", "kin", "person_roles", "person_labels") for w in words.words(key)]
    near = [w.lower() for w in words.words("person_cues")]
    place = [w.lower() for w in words.words("town_cues")]
    home = [w.lower() for w in words.words("home_cues")]
    verbs = words.words("person_verbs")
    start = rf"(?<!\w){words.prefixes}"
    none = "(?!)"
    return Uncased(
        words,
        frozenset(map(plain, words.particles)),
        frozenset(map(plain, words.stop)),
        own_given | own_family,
        _certain(words, own_given, given),
        given,
        family,
        towns,
        re.compile(rf"{start}{one_of(roles)}[:,]? $" if roles else none),
        re.compile(rf"{start}{one_of(near)} $" if near else none),
        re.compile(rf"{start}{one_of(place)} $" if place else none),
        re.compile(rf"{start}{one_of(home)} $" if home else none),
        re.compile(rf",? {one_of(verbs, cases=False)}" if verbs else none),
        re.compile(words.raw.get("name_shape", none)),
        frozenset(map(plain, verbs)) - own_given - own_family if words.raw.get("cased", True) else frozenset(),
        own_given,
        own_family,
        frozenset(map(plain, words.words("ordinary_given"))),
    )


def _certain(words: Vocabulary, own: frozenset[str], given: frozenset[str]) -> frozenset[str]:
    """The given names that are no ordinary words of a cased language: its file lists those that are.

    Names of other languages count where the dictionary does not have them.
    """
    listed = frozenset(map(plain, words.words("ordinary_given")))
    if not listed:
        return frozenset()
    known = frequencies(words.code)
    foreign = {name for name in given if len(name) > SHORTEST + 1 and name not in known}
    return frozenset(name for name in {*own, *foreign} - listed if len(name) > SHORTEST)
