"""What stands in the place of a personal detail: a made-up one of the same kind, or a tag.

A surrogate is a keyed hash (BLAKE2b) of what it replaces, so within a silo the same person, number or address becomes
the same surrogate in every document, and silos with different keys cannot be linked. Names are replaced word by word,
so that "Conti" alone still matches "Sig. Matteo Conti"; two different names may fall together by chance. Dates move
back by a whole number of weeks, the same for all documents whose first patient has the same family name (else the same
within the document): intervals and weekdays stay.
"""
# ruff: noqa: RUF001 (letters of several scripts side by side are what this file is about)

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
from hansa.data.deidentification.rules import Finding

WORD = re.compile(r"[^\W\d_][^\W\d_\u0300-\u036f]*[\u0300-\u036f\u064b-\u0652]*(?:[^\W\d_]+[\u064b-\u0652]*)*")
TOKEN = re.compile(r"[^\W\d_]+|\d+")
# what tells a phone number from another number and its country, but not its owner
COUNTRY = re.compile(r"(?:\+|00)[1-9]\d{0,2}(?=[ .(/-])|(?:\+|00)[1-9]\d|\(?0|8(?= ?\()")
WEEKS = (5, 157)  # between one month and three years
LATIN = "bdfglmnprstvz", "aeiou"


@dataclass(frozen=True)
class _Tools:
    """What the surrogates of a language need to know about its words."""

    words: Vocabulary
    title: re.Pattern[str]
    title_after: re.Pattern[str]
    female: re.Pattern[str]
    male: re.Pattern[str]
    patient: re.Pattern[str]
    id_prefix: re.Pattern[str]
    place: re.Pattern[str]  # a postcode, or another word or number of an address
    place_words: frozenset[str]  # words of an address that name no place
    suffixes: tuple[str, ...]


@cache
def _tools(language: str) -> _Tools:
    words = vocabulary(language)

    def both(sex: str) -> list[str]:
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
    )


@dataclass
class Surrogates:
    """The surrogates of one document."""

    language: str
    key: str
    subject: str  # whose dates move together
    female: dict[str, bool] = field(default_factory=dict)  # sex of the given names, where a title told

    def __post_init__(self) -> None:
        self.tools = _tools(self.language)
        self.words = self.tools.words
        self.secret = blake2b(self.key.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        self.days = 7 * (WEEKS[0] + self.draw("shift", self.subject) % (WEEKS[1] - WEEKS[0]))

    def draw(self, *purpose: str) -> int:
        text = "\x1f".join(purpose).encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(text, digest_size=16, key=self.secret).digest(), "big")

    def of(self, said: str, kind: str) -> str:
        makers: dict[str, Callable[[str], str]] = {
            "NAME": self.name,
            "DATE": self.moved,
            "PHONE": lambda s: self.same_shape(s, keep=COUNTRY),
            "ID": lambda s: self.same_shape(s, keep=self.tools.id_prefix),
            "EMAIL": lambda s: f"{self._latin('mail', s.lower())}@example.org",
            "URL": lambda s: f"https://example.org/{self._latin('url', s)}",
            "ADDRESS": self.address,
        }
        return makers.get(kind, self.same_shape)(said)

    def name(self, said: str) -> str:
        start, end = self._untitled(said)
        return said[:start] + WORD.sub(self._name_word, said[start:end]) + said[end:]

    def learn(self, said: str) -> None:
        """The sex of a given name, from the title; to be told of all names before the first is replaced."""
        start, end = self._untitled(said)
        words = [w for w in WORD.findall(said[start:end]) if not self._particle(w)]
        sex = self._sex(said[:start] + said[end:])
        if len(words) > 1 and sex is not None:
            self.female[rooted(words[0], self.words)] = sex

    def _untitled(self, said: str) -> tuple[int, int]:
        """Where the name itself stands, between a title before it and one behind it."""
        title, behind = self.tools.title.match(said), self.tools.title_after.search(said)
        start = title.end() if title and title.end() < len(said) else 0
        return start, behind.start() if behind else len(said)

    def _name_word(self, m: re.Match[str]) -> str:
        return m[0] if self._particle(m[0]) else self._made_up(m[0])

    def _particle(self, word: str) -> bool:
        return word.casefold() in self.words.particles

    def _sex(self, title: str) -> bool | None:
        if self.tools.female.search(title):
            return True
        return False if self.tools.male.search(title) else None

    def _made_up(self, word: str) -> str:
        """A word of the language's syllables, in the case and, for Latin letters elsewhere, the script of the other."""
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

    def same_shape(self, said: str, keep: re.Pattern[str] | None = None) -> str:
        """Every digit another digit, every letter another letter; the number alone decides, not how it is spaced."""
        kept = keep.match(said) if keep else None
        start = kept.end() if kept and any(c.isalnum() for c in said[kept.end() :]) else 0
        value = "".join(c for c in said if c.isalnum()).casefold()
        for attempt in range(99):
            number = self.draw("shape", value, str(attempt))
            made = said[:start]
            for character in said[start:]:
                made += _letter(character, number % 1009)
                number = number // 31 or self.draw("shape", value, str(attempt), str(len(made)))
            if made != said:
                break
        return made

    def address(self, said: str) -> str:
        """Street words, numbers' words and particles stay; names and digits change."""

        def another(m: re.Match[str]) -> str:
            word, small = m[0], m[0].casefold()
            if m["code"] or (word.isdecimal() and len(word) > 1):
                return self.same_shape(word)
            if word.isdecimal():
                return str(1 + self.draw("house", said, word) % 9)
            if small in self.tools.place_words or self._particle(word) or len(word) < 2 + word[0].islower():
                return word
            ending = next((s for s in self.tools.suffixes if small.endswith(s)), "")
            return self._made_up(word) if not ending else self._made_up(word[: -len(ending)]) + word[-len(ending) :]

        made = self.tools.place.sub(another, said)
        return made if made != said else self.same_shape(said)

    def moved(self, said: str) -> str:
        """The date, so many weeks earlier, written the same way; a tag when it cannot be read as a date."""
        pieces = list(TOKEN.finditer(said))
        numbers = [(m.start(), m.end(), int(m[0])) for m in pieces if m[0].isdecimal()]
        named = self._month_in(said)
        try:
            return _Written(said, numbers, named, self.words).back(self.days)
        except (ValueError, StopIteration, OverflowError):
            return "[DATE]"

    def _month_in(self, said: str) -> tuple[int, int, Month] | None:
        for m in re.finditer(r"[^\W\d_]+(?: [^\W\d_]+)?", said):
            for start in range(m.start(), m.end()):
                for end in (m.end(), m.start() + len(m[0].split()[0])):
                    if month := self.words.months.get(said[start:end].casefold()):
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
    """A date as it was written: where its day, month and year stand."""

    said: str
    numbers: list[tuple[int, int, int]]
    named: tuple[int, int, Month] | None
    words: Vocabulary

    def back(self, days: int) -> str:
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
        """A day is padded as it was: 17 May becomes 3 May, 07 May may become 03 May, and 12.3. becomes 6.1."""
        if self.named:
            return end - start if int(self.said[start]) == 0 else 1
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
            raise ValueError(self.said)
        iso = year is not None and year[0] < rest[0][0]
        return (year, rest[0], [rest[1]]) if iso else (year, rest[1], [rest[0]])

    def _year(self, at: tuple[int, int, int] | None) -> int:
        if at is None:
            return 2004  # no year was written: any leap year will do
        return at[2] if at[2] > 99 else at[2] + (2000 if at[2] < 50 else 1900)

    def _ordinals(self, made: str) -> str:
        """English and French endings follow the number: 2nd becomes 6th, and 1er becomes 22."""
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
        name, was = forms[min(month.form, len(forms) - 1)], self.said[start:end]
        return (
            name.upper() if was.isupper() and len(was) > 1 else name[0].upper() + name[1:] if was[0].isupper() else name
        )

    def _edited(self, edits: list[tuple[int, int, str]]) -> str:
        made, position = "", 0
        for start, end, new in sorted(edits):
            zero = ord(self.said[start]) - int(self.said[start]) if self.said[start].isdecimal() else 48
            digits = {48 + d: chr(zero + d) for d in range(10)}
            made += self.said[position:start] + new.translate(digits)
            position = end
        return made + self.said[position:]


def _english_ending(number: int) -> str:
    return "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def patient(text: str, findings: list[Finding], language: str) -> str:
    """Whose dates these are: the family name of the first person with a patient's title, else the text itself."""
    words = vocabulary(language)
    for finding in findings:
        said = text[finding.start : finding.end]
        if (
            finding.type == "NAME"
            and (m := _tools(language).patient.match(said))
            and (names := WORD.findall(said[m.end() :]))
        ):
            return rooted(names[-1], words)
    return text


def rooted(word: str, words: Vocabulary) -> str:
    """The name without case and, in languages that decline names, without its ending."""
    plain = unicodedata.normalize("NFC", word)
    return (stemmed(plain) if words.raw.get("name_endings") else plain).casefold()
