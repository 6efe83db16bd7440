"""Surrogates: invented personal details of the same kind that replace the real ones.

A surrogate is derived from what it replaces by a keyed hash (BLAKE2b). Within a silo, the same person, number or
address therefore gets the same surrogate in every document; surrogates of silos with different keys cannot be linked.
Names are replaced word by word, so that "Conti" still matches "Sig. Matteo Conti"; two names may get the same
surrogate by chance. Dates are moved back by a whole number of weeks, which keeps intervals and weekdays: by the same
number in all documents whose first patient has the same family name, otherwise within the document.
"""
# ruff: noqa: RUF001 (letters of several scripts are intended)

import re
import unicodedata
from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cache
from hashlib import blake2b

from hansa.data.deidentification.lexicon import Month, Vocabulary, one_of, vocabulary
from hansa.data.deidentification.names import AFTER_TITLE, stemmed, titles
from hansa.data.deidentification.relatives import kin_words
from hansa.data.deidentification.rules import Finding

WORD = re.compile(r"[^\W\d_][^\W\d_\u0300-\u036f]*[\u0300-\u036f\u064b-\u0652]*(?:[^\W\d_]+[\u064b-\u0652]*)*")
TOKEN = re.compile(r"[^\W\d_]+|\d+")
# the prefix of a phone number, which is kept: it identifies the country but not the person
COUNTRY = re.compile(r"(?:\+|00)[1-9]\d{0,2}(?=[ .(/-])|(?:\+|00)[1-9]\d|\(?0|8(?= ?\()")
WEEKS = (5, 157)  # between one month and three years
LATIN = "bdfglmnprstvz", "aeiou"


@dataclass(frozen=True)
class _Tools:
    """Patterns of one language that are needed to make surrogates."""

    words: Vocabulary
    title: re.Pattern[str]
    title_after: re.Pattern[str]
    female: re.Pattern[str]
    male: re.Pattern[str]
    patient: re.Pattern[str]
    id_prefix: re.Pattern[str]
    place: re.Pattern[str]  # a postcode, or another word or number of an address
    place_words: frozenset[str]  # words of an address that are kept
    suffixes: tuple[str, ...]
    kin: tuple[str, ...]  # relatives


@cache
def _tools(language: str) -> _Tools:
    words = vocabulary(language)

    def both(sex: str) -> list[str]:
        """The titles of one sex that stand before or after a name."""
        return words.words("titles", sex) + words.words("titles_after", sex)

    place = words.raw["address"]
    keys = ("streets", "suffixes", "streets_after", "number_words", "unit_words", "city_words", "regions")
    return _Tools(
        words,
        re.compile(rf"(?:{titles(words)}{AFTER_TITLE})+"),
        re.compile(
            rf"(?<=\w) {one_of([t for g in ('female', 'male', 'any') for t in words.words('titles_after', g)])}$"
        ),
        re.compile(rf"(?<!\w){one_of(both('female'))}"),
        re.compile(rf"(?<!\w){one_of(both('male'))}"),
        re.compile(one_of(words.words("patient_titles"))),
        re.compile(rf"{one_of(words.words('id_prefixes'), cases=False)}|[^\W\d_]{{2,5}}[- ](?=\d)"),
        re.compile(rf"(?P<code>(?<!\w)(?:{place['postcode']})(?!\w))|[^\W\d_]+|\d+"),
        frozenset(w.strip(".").casefold() for key in keys for phrase in place.get(key, []) for w in phrase.split()),
        tuple(s.strip(".").casefold() for s in place.get("suffixes", [])),
        tuple(kin_words(words)),
    )


@dataclass
class Surrogates:
    """The surrogates of one document."""

    language: str
    key: str
    subject: str  # identifies the patient: dates of the same subject are moved by the same number of weeks
    female: dict[str, bool] = field(default_factory=dict)  # given name → whether its title is female

    def __post_init__(self) -> None:
        self.tools = _tools(self.language)
        self.words = self.tools.words
        self.secret = blake2b(self.key.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        self.days = 7 * (WEEKS[0] + self.draw("shift", self.subject) % (WEEKS[1] - WEEKS[0]))

    def draw(self, *purpose: str) -> int:
        """A pseudo-random number that depends on the key and the purpose only."""
        text = "\x1f".join(purpose).encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(text, digest_size=16, key=self.secret).digest(), "big")

    def of(self, original: str, kind: str) -> str:
        """The surrogate of a personal detail of the given type."""
        makers: dict[str, Callable[[str], str]] = {
            "NAME": self.name,
            "DATE": self.moved,
            "PHONE": lambda s: self.same_shape(s, keep=COUNTRY),
            "ID": lambda s: self.same_shape(s, keep=self.tools.id_prefix),
            "EMAIL": lambda s: f"{self._latin('mail', s.lower())}@example.org",
            "URL": lambda s: f"https://example.org/{self._latin('url', s)}",
            "ADDRESS": self.address,
            "RELATIVE": self.relative,
        }
        return makers.get(kind, self.same_shape)(original)

    def name(self, original: str) -> str:
        """The name with every word replaced, except titles and particles."""
        start, end = self._untitled(original)
        return original[:start] + WORD.sub(self._name_word, original[start:end]) + original[end:]

    def learn(self, original: str) -> None:
        """Remember the sex of a given name from its title; call this for all names before replacing the first."""
        start, end = self._untitled(original)
        words = [w for w in WORD.findall(original[start:end]) if not self._particle(w)]
        sex = self._sex(original[:start] + original[end:])
        if len(words) > 1 and sex is not None:
            self.female[rooted(words[0], self.words)] = sex

    def _untitled(self, original: str) -> tuple[int, int]:
        """Start and end of the name without the titles before and after it."""
        title, behind = self.tools.title.match(original), self.tools.title_after.search(original)
        start = title.end() if title and title.end() < len(original) else 0
        return start, behind.start() if behind else len(original)

    def _name_word(self, m: re.Match[str]) -> str:
        return m[0] if self._particle(m[0]) else self._made_up(m[0])

    def _particle(self, word: str) -> bool:
        return word.casefold() in self.words.particles

    def _sex(self, title: str) -> bool | None:
        if self.tools.female.search(title):
            return True
        return False if self.tools.male.search(title) else None

    def _made_up(self, word: str) -> str:
        """An invented word from the language's syllables, in the case and script of the original."""
        root = rooted(word, self.words)
        parts = self.words.raw["surrogate"]
        sex = self.female.get(root)
        endings = parts["family"] if sex is None else parts["female" if sex else "male"]
        if len(word) == 1:
            return _letter(word, self.draw("initial", root))
        for attempt in range(9):
            number = self.draw("name", root, str(attempt))
            first, number = parts["stems"][number % len(parts["stems"])], number // len(parts["stems"])
            second, number = parts["stems"][number % len(parts["stems"])], number // len(parts["stems"])
            made = f"{first}{'' if len(first) > 3 else second}{endings[number % len(endings)]}"
            if rooted(made, self.words) != root:
                break
        if word.isascii() and not made.isascii() and not self.words.cased:
            made = self._latin("name", root)
        return (
            made.upper()
            if word.isupper() and len(word) > 1
            else made[0].upper() + made[1:]
            if word[0].isupper()
            else made
        )

    def _latin(self, *purpose: str) -> str:
        number = self.draw(*purpose)
        letters = ""
        for place in range(8):
            choices = LATIN[place % 2]
            letters, number = letters + choices[number % len(choices)], number // len(choices)
        return letters

    def same_shape(self, original: str, keep: re.Pattern[str] | None = None) -> str:
        """Replace every digit by a digit and every letter by a letter; spacing does not influence the result."""
        kept = keep.match(original) if keep else None
        start = kept.end() if kept and any(c.isalnum() for c in original[kept.end() :]) else 0
        value = "".join(c for c in original if c.isalnum()).casefold()
        for attempt in range(99):
            number = self.draw("shape", value, str(attempt))
            made = original[:start]
            for character in original[start:]:
                made += _letter(character, number % 1009)
                number = number // 31 or self.draw("shape", value, str(attempt), str(len(made)))
            if made != original:
                break
        return made

    def address(self, original: str) -> str:
        """Replace names and digits of an address; keep street words, number words and particles."""

        def another(m: re.Match[str]) -> str:
            """The replacement of one word or number of the address; street words and particles stay."""
            word, small = m[0], m[0].casefold()
            if m["code"] or (word.isdecimal() and len(word) > 1):
                return self.same_shape(word)
            if word.isdecimal():
                return str(1 + self.draw("house", original, word) % 9)
            if small in self.tools.place_words or self._particle(word) or len(word) < 2 + word[0].islower():
                return word
            ending = next((s for s in self.tools.suffixes if small.endswith(s)), "")
            return self._made_up(word) if not ending else self._made_up(word[: -len(ending)]) + word[-len(ending) :]

        made = self.tools.place.sub(another, original)
        return made if made != original else self.same_shape(original)

    def relative(self, original: str) -> str:
        """Another relative of the language's list, in the case of the original."""
        others = [word for word in self.tools.kin if word.casefold() not in original.casefold()]
        made = others[self.draw("relative", original.casefold()) % len(others)]
        if original.isupper() and len(original) > 1:
            return made.upper()
        return made[0].upper() + made[1:] if original[0].isupper() else made

    def moved(self, original: str) -> str:
        """The date moved back, in the same notation; the tag [DATE] if it cannot be parsed."""
        pieces = list(TOKEN.finditer(original))
        numbers = [(m.start(), m.end(), int(m[0])) for m in pieces if m[0].isdecimal()]
        named = self._month_in(original)
        try:
            return _Written(original, numbers, named, self.words).back(self.days)
        except (ValueError, StopIteration, OverflowError):
            return "[DATE]"

    def _month_in(self, original: str) -> tuple[int, int, Month] | None:
        for m in re.finditer(r"[^\W\d_]+['’׳]?(?: [^\W\d_]+['’׳]?)?", original):
            ends = (m.end(), m.start() + len(m[0].split()[0]))
            for start in range(m.start(), m.end()):
                for end in (*ends, *(end - 1 for end in ends)):  # the apostrophe may belong to the year: May ’19
                    if start < end and (month := self.words.month(original[start:end])):
                        return start, end, month
        return None


def _letter(character: str, number: int) -> str:
    if character.isdecimal():
        zero = ord(character) - int(character)
        return chr(zero + number % 10)
    if character.isascii() and character.isalpha():
        return chr(ord("A" if character.isupper() else "a") + number % 26)
    if "а" <= character.lower() <= "я":
        return chr(ord("А" if character.isupper() else "а") + number % 32)
    for first, count in (("א", 22), ("α", 17)):
        if first <= character.lower() < chr(ord(first) + 27):
            made = chr(ord(first) + number % count)
            return made.upper() if character.isupper() else made
    return "بتثجحدرسشصطفقكلمن"[number % 17] if "ء" <= character <= "ي" else character


@dataclass
class _Written:
    """A date in its original notation: the positions of its day, month and year."""

    original: str
    numbers: list[tuple[int, int, int]]
    named: tuple[int, int, Month] | None
    words: Vocabulary

    def back(self, days: int) -> str:
        """The date moved back by a number of days, in its original notation; raises `ValueError` if it is no date."""
        year_at, month_at, days_at = self._roles()
        year = self._year(year_at)
        month = self.named[2].number if self.named else month_at[2] if month_at else 0
        written = [day[2] for day in days_at] or [15]
        swapped = not self.named and month > 12 >= written[-1]  # 01/16/2018
        if swapped and month_at:
            month, written, month_at, days_at = written[-1], [month], days_at[-1], [month_at]
        moved = [date(year, month, min(d, monthrange(year, month)[1])) - timedelta(days=days) for d in written]
        edits = [(s, e, str(new.day).zfill(self._width(s, e))) for (s, e, _), new in zip(days_at, moved, strict=False)]
        if month_at:
            edits.append((*month_at[:2], str(moved[-1].month).zfill(self._width(*month_at[:2]))))
        if self.named:
            edits.append((*self.named[:2], self._month_name(moved[-1].month)))
        if year_at:
            edits.append((*year_at[:2], str(moved[-1].year)[-(year_at[1] - year_at[0]) :]))
        return self._ordinals(self._edited(edits))

    def _width(self, start: int, end: int) -> int:
        """The width to pad a number to: 17 May becomes 3 May, 07 May may become 03 May, and 12.3. becomes 6.1."""
        if self.named:
            return end - start if int(self.original[start]) == 0 else 1
        return 1 if any(e - s == 1 for s, e, _ in self.numbers) else end - start

    def _roles(self) -> tuple[tuple[int, int, int] | None, tuple[int, int, int] | None, list[tuple[int, int, int]]]:
        numbers = list(self.numbers)
        year = next((n for n in numbers if n[1] - n[0] == 4), None)
        if year is None and (len(numbers) > 2 or (self.named and len(numbers) > 1 and numbers[-1][0] > self.named[0])):
            year = numbers[-1]
        rest = [n for n in numbers if n is not year]
        if self.named:
            return year, None, rest
        if len(rest) != 2:
            raise ValueError(self.original)
        iso = year is not None and year[0] < rest[0][0]
        return (year, rest[0], [rest[1]]) if iso else (year, rest[1], [rest[0]])

    def _year(self, at: tuple[int, int, int] | None) -> int:
        if at is None:
            return 2004  # the date has no year; a leap year also allows 29 February
        return at[2] if at[2] > 99 else at[2] + (2000 if at[2] < 50 else 1900)

    def _ordinals(self, made: str) -> str:
        """Adapt English and French ordinal endings to the new number: 2nd becomes 6th, and 1er becomes 22."""
        if self.words.code == "en":
            return re.sub(r"(\d+)(st|nd|rd|th)\b", lambda m: m[1] + _english_ending(int(m[1])), made)
        if self.words.code == "fr":
            return re.sub(r"\b(?!1e)(\d+)er\b", r"\1", made)
        return made

    def _month_name(self, number: int) -> str:
        assert self.named
        start, end, month = self.named
        table = self.words.short_months if month.short else self.words.full_months
        forms = table[number - 1] or self.words.full_months[number - 1]
        name, was = forms[min(month.form, len(forms) - 1)], self.original[start:end]
        name = name.replace("׳", "'") if "'" in was else name
        return (
            name.upper() if was.isupper() and len(was) > 1 else name[0].upper() + name[1:] if was[0].isupper() else name
        )

    def _edited(self, edits: list[tuple[int, int, str]]) -> str:
        made, position = "", 0
        for start, end, new in sorted(edits):
            zero = ord(self.original[start]) - int(self.original[start]) if self.original[start].isdecimal() else 48
            digits = {48 + d: chr(zero + d) for d in range(10)}
            made += self.original[position:start] + new.translate(digits)
            position = end
        return made + self.original[position:]


def _english_ending(number: int) -> str:
    return "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def patient(text: str, findings: list[Finding], language: str) -> str:
    """An identifier of the patient: the family name of the first person with a patient's title, else the text."""
    words = vocabulary(language)
    for finding in findings:
        original = text[finding.start : finding.end]
        if (
            finding.type == "NAME"
            and (m := _tools(language).patient.match(original))
            and (names := WORD.findall(original[m.end() :]))
        ):
            return rooted(names[-1], words)
    return text


def rooted(word: str, words: Vocabulary) -> str:
    """The name in lower case and, in languages that decline names, without its ending."""
    plain = unicodedata.normalize("NFC", word)
    return (stemmed(plain) if words.raw.get("name_endings") else plain).casefold()
