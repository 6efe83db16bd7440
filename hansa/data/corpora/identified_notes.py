"""Synthetic notes full of personal details, in eleven languages: what the learned finder trains on and is measured on.

`identities/LANG.yaml` has two sets of sentences. ``train`` is filled with names from Faker and towns from GeoNames;
``held_back`` with the names, towns and number formats of `clinical_notes`, so that neither a sentence nor the source of
a name is common to both. Clinical sentences stand between them. Some notes are rewritten as documents are in practice:
in capitals, in lower case, with the errors of optical character recognition (OCR).
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hansa.core.seeds import stream
from hansa.data.corpora import clinical_notes
from hansa.data.deidentification.lexicon import same_length, vocabulary
from hansa.data.deidentification.name_lists import people_of, towns_of
from hansa.data.deidentification.ordinary import COMMON, frequencies, medical_terms

FOLDER = Path(__file__).parent / "identities"
LANGUAGES = clinical_notes.LANGUAGES
SLOT = re.compile(r"{(\w+)}")
TYPES = {
    "name": "NAME", "given": "NAME", "family": "NAME", "listed": "NAME", "initialed": "NAME", "titled": "NAME",
    "date": "DATE", "phone": "PHONE", "email": "EMAIL", "id": "ID", "street": "ADDRESS", "town": "TOWN",
    "hospital": "HOSPITAL", "profession": "PROFESSION",
}  # fmt: skip
CLINICAL = ("symptom", "disease", "drug", "test")
ID_FORMATS = ("#######", "@@######", "##-####-##", "######/##", "@#######@", "########", "## ## #####", "nhc-######")
PHONE_FORMATS = ("### ### ###", "0## #######", "+## ### ### ####", "0##-###-####", "### ## ## ##", "#########")
# Confusions of optical character recognition that keep the number of characters.
OCR = dict(zip("lIOoSeaBncu", "1l0c5co8ueo", strict=True)) | dict(zip("0158", "OlSB", strict=True))
ORDINARY_WORDS = 50  # of a text without personal details
UNITS = ("mg/dl", "g", "cm", "mm", "ml", "U/l", "%", "/mm3", "x 3 cm", "mmHg", "h", "", "")
WORDS = re.compile(r"[^\W\d_]+")
Row = dict[str, Any]


def identified_notes(code: str, count: int, seed: int = 0, held_back: bool = False) -> Iterator[Row]:
    """``count`` notes: {"text", "lang", "personal"}, where ``personal`` lists the spans of personal details.

    ``held_back``: sentences, names and formats that the training notes do not have. Raises `UserError` if the language
    has no notes, or if the packages with names and towns are not installed.
    """
    for number in range(count):
        rng = stream(seed, "identified note", code, number, held_back)
        writer = _Writer(code, rng, held_back)
        text, spans = writer.note(number, seed)
        yield {"text": text, "lang": code, "personal": [{"span": list(s[:2]), "type": s[2]} for s in spans]}


@cache
def _sentences(code: str) -> dict[str, Any]:
    clinical_notes.language(code)  # refuses an unknown language
    loaded: dict[str, Any] = yaml.load((FOLDER / f"{code}.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return loaded


@cache
def _dictionary(code: str) -> tuple[str, ...]:
    """Ordinary words of a language with at least four letters; empty if there is no dictionary."""
    return tuple(sorted(w for w, n in frequencies(code).items() if n >= COMMON and len(w) > 3 and w.isalpha()))


def ordinary_text(code: str, count: int, seed: int = 0) -> Iterator[str]:
    """``count`` texts of ordinary words without any personal detail; none for a language without a dictionary.

    Words are drawn by the square root of their frequency, so that rare ones occur, too. A finder learns from them that
    a word is not a name because it is rare, and its vocabulary gets the language's words whole.
    """
    counts = frequencies(code)
    words = [word for word, n in counts.items() if n >= COMMON and word.isalpha()]
    if not words:
        return
    weights = np.sqrt([counts[word] for word in words])
    for number in range(count):
        rng = stream(seed, "ordinary text", code, number)
        drawn = [words[i] for i in rng.choice(len(words), ORDINARY_WORDS, p=weights / weights.sum())]
        ends = np.cumsum(rng.integers(4, 15, ORDINARY_WORDS))
        sentences = [drawn[a:b] for a, b in zip([0, *ends], ends, strict=False) if a < ORDINARY_WORDS]
        yield " ".join(f"{' '.join(some).capitalize()}." for some in sentences)


@cache
def _words(code: str) -> tuple[str, ...]:
    """Words of the clinical phrases of a language."""
    notes = (clinical_notes.note(code, number, 0, (1, 4), with_people=False) for number in range(40))
    return tuple(sorted({w.lower() for note in notes for w in WORDS.findall(note["text"]) if len(w) > 3}))


class _Writer:
    """Writes one note."""

    def __init__(self, code: str, rng: np.random.Generator, held_back: bool) -> None:
        self.code, self.rng, self.held_back = code, rng, held_back
        self.words = clinical_notes.language(code)
        self.raw = _sentences(code)
        if held_back:
            own = self.words.people
            self.people = (own["female"] + own["male"], own["family"])
            self.towns = self.words.places["cities"]
        else:
            self.people = people_of(self._locale())
            self.towns = towns_of(code)

    def _locale(self) -> str:
        """Mostly the language's own names; some of another language in the same script, as in every hospital."""
        own = self.raw["locales"]
        if self.words.code in ("ar", "he", "ru", "bg", "uk") or self.rng.random() < 0.85:
            return str(self.one(own))
        other = _sentences(str(self.one(["it", "fr", "es", "pt", "en", "de"])))
        return str(self.one(other["locales"]))

    def one(self, items: Any) -> Any:
        """An item of a sequence, drawn with the note's random generator."""
        return items[int(self.rng.integers(len(items)))]

    def note(self, number: int, seed: int) -> tuple[str, list[tuple[int, int, str]]]:
        """The text of note ``number``, and its personal details as (start, end, type)."""
        text, spans = "", []
        clinical = clinical_notes.note(self.code, number, seed + 7919 * self.held_back, (1, 4), with_people=False)
        parts: list[str | None] = [None] * int(self.rng.integers(2, 5))
        parts.insert(int(self.rng.integers(len(parts) + 1)), self._disguised(clinical["text"]))
        if not self.held_back:
            parts.insert(0, self._measurements())
            if self.rng.random() < 0.5:
                parts.insert(int(self.rng.integers(len(parts) + 1)), self._eponym())
        for part in parts:
            piece, found = self._sentence() if part is None else (part, [])
            offset = len(text)
            spans += [(s + offset, e + offset, kind) for s, e, kind in found]
            text += piece + ("\n" if self.rng.random() < 0.25 else " ")
        text = text.rstrip()
        return (text if self.held_back else self._rewritten(text)), spans

    def _disguised(self, text: str) -> str:
        """Clinical text in which half of the words are others of the dictionary, or invented where there is none.

        So a word is not a name because the finder does not know it.
        """
        if self.held_back:
            return text
        kind = self.rng.random()
        share = 0.0 if kind < 0.2 else 0.5
        made = WORDS.sub(lambda m: self._unknown(m[0]) if self.rng.random() < share else m[0], text)
        return made.title() if kind > 0.93 else made

    def _unknown(self, word: str) -> str:
        """An invented word with the ending and the case of a word."""
        if len(word) < 4 or not word.isalpha():
            return word
        others = _dictionary(self.code)
        if others and self.rng.random() < 0.8:
            made = str(self.one(others))
            return made.upper() if word.isupper() else made.capitalize() if word[0].isupper() else made
        stems = vocabulary(self.code).raw["surrogate"]["stems"]
        made = "".join(str(self.one(stems)) for _ in range(int(self.rng.integers(1, 4)))) + word[-3:].lower()
        return made.upper() if word.isupper() else made.capitalize() if word[0].isupper() else made

    def _measurements(self) -> str:
        """A line of findings: acronyms, headings, numbers and units, none of which is personal."""
        parts = []
        for _ in range(int(self.rng.integers(2, 6))):
            head = "".join(chr(65 + int(self.rng.integers(26))) for _ in range(int(self.rng.integers(2, 5))))
            if self.rng.random() < 0.5:
                head = self._unknown(str(self.one(["Albuminosa", "Hematoma", "Bilirrubina", "Leukocytosis"])))
            number = self._digits(
                str(self.one(("#", "##", "#,#", "##.#", "###", "#.###", "##x##", "#-#", "1/##", "##%")))
            )
            parts.append(f"{head}{self.one((':', '', ' de', ' =', ' >'))} {number} {self.one(UNITS)}".strip())
        return str(self.one(("; ", ", ", ". "))).join(parts) + "."

    def _eponym(self) -> str:
        """Medical terms that look like names: an eponym after its word, or terms between ordinary words."""
        before = vocabulary(self.code).words("eponyms", "before") or [""]
        if self.rng.random() < 0.3:
            return f"{self.one(before)} {self.one(self.people[1])}.".strip()
        others = _dictionary(self.code) or _words(self.code)
        parts = []
        for _ in range(int(self.rng.integers(2, 6))):
            parts += [str(self.one(others)) for _ in range(int(self.rng.integers(1, 4)))]
            term = str(self.one(medical_terms()))
            parts.append(term.capitalize() if self.rng.random() < 0.9 else term)
        return f"{parts[0].capitalize()} {' '.join(parts[1:])}."

    def _sentence(self) -> tuple[str, list[tuple[int, int, str]]]:
        template = self.one(self.raw["held_back" if self.held_back else "train"])
        text, spans, position = "", [], 0
        for slot in SLOT.finditer(template):
            text += template[position : slot.start()]
            value = self._value(slot[1])
            if slot[1] in TYPES:
                spans.append((len(text), len(text) + len(value), TYPES[slot[1]]))
            text, position = text + value, slot.end()
        return text + template[position:], spans

    def _value(self, slot: str) -> str:
        given, family = str(self.one(self.people[0])), str(self.one(self.people[1]))
        if not self.held_back and self.rng.random() < 0.3 and family.isalpha():
            family = self._unknown(family)
        if slot in CLINICAL:
            kind = str(self.one(list(self.words.terms[slot])))
            return self._disguised(self.words.term(slot, kind, "")[0])
        if slot in ("date", "phone", "id"):
            return str(getattr(self, f"_{slot}")())
        if slot == "email":
            return clinical_notes.personal_detail(self.words, "email", int(self.rng.integers(1 << 62)))
        if slot == "age":
            return str(self.rng.integers(18, 100))
        if slot == "number":
            return str(self.rng.integers(1, 200))
        if slot == "small":
            return str(self.rng.integers(1, 20))
        if slot == "profession":
            return str(self.one(self.raw["professions"]))
        if slot in ("hospital", "street"):
            return SLOT.sub(lambda m: self._value(m[1]), self.one(self.raw[f"{slot}s"]))
        if slot == "town":
            return str(self.one(self.towns))
        return self._person(slot, given, family)

    def _person(self, slot: str, given: str, family: str) -> str:
        if slot == "given":
            return given
        if slot == "family":
            return family
        if slot == "initialed":
            return f"{given[0]}. {family}"
        if slot == "listed":
            return f"{family.upper()}, {given.upper()}" if self.rng.random() < 0.5 else f"{family}, {given}"
        if slot == "titled":
            people = self.words.people
            groups = [*people["doctor"].values(), *people["patient"].values()]
            return f"{self.one(self.one(groups))} {family}"
        form = self.rng.random()
        if form < 0.08:
            return f"{family} {given}"
        if form < 0.2:
            return f"{given} {self.one(self.people[0])} {family}"
        if form < 0.3:
            return f"{given} {family}{'-' if form < 0.25 else ' '}{self.one(self.people[1])}"
        return f"{given} {family}"

    def _date(self) -> str:
        if self.held_back and self.rng.random() < 0.6:
            return clinical_notes.personal_detail(self.words, "date", int(self.rng.integers(1 << 62)))
        day, month, year = (
            int(self.rng.integers(1, 29)),
            int(self.rng.integers(1, 13)),
            int(self.rng.integers(1930, 2027)),
        )
        words = vocabulary(self.code)
        joiners = words.words("date", "joiners")
        joiner = f" {joiners[0]} " if joiners and self.code in ("es", "pt") else " "
        full = self.words.formats["months"][month - 1]
        short = (words.short_months[month - 1] or words.full_months[month - 1])[0]
        forms = [
            f"{day:02}/{month:02}/{year}", f"{day}.{month}.{year}", f"{year}-{month:02}-{day:02}",
            f"{day}-{month}-{year % 100:02}", f"{day:02}.{month:02}.{year % 100:02}",
            f"{day}{joiner}{full}{joiner}{year}",
            f"{day}{joiner}{full}", f"{day} {short} {year}", f"{full} {year}",
        ]  # fmt: skip
        if self.code == "en":
            forms += [f"{full} {day}, {year}", f"{month}/{day}/{year}"]
        return str(self.one(forms))

    def _digits(self, template: str) -> str:
        text = re.sub("#", lambda _: str(self.rng.integers(1, 10)), template)
        return re.sub("@", lambda _: chr(65 + int(self.rng.integers(26))), text)

    def _id(self) -> str:
        own = self.held_back or self.rng.random() < 0.3
        return self._digits(str(self.one(self.words.formats["id"] if own else ID_FORMATS)))

    def _phone(self) -> str:
        own = self.held_back or self.rng.random() < 0.3
        return self._digits(str(self.one(self.words.formats["phone"] if own else PHONE_FORMATS)))

    def _rewritten(self, text: str) -> str:
        """Another case or OCR errors, with every offset unchanged."""
        kind = self.rng.random()
        if kind < 0.1:
            return same_length(text, str.lower)
        if kind < 0.2:
            return same_length(text, str.upper)
        if kind < 0.35:
            return ocr_noise(text, self.rng, 0.02)
        return text


def ocr_noise(text: str, rng: np.random.Generator, share: float) -> str:
    """The text with a share of its characters replaced as optical character recognition confuses them."""
    hit = rng.random(len(text)) < share
    return "".join(OCR.get(c, c) if wrong else c for c, wrong in zip(text, hit, strict=True))
