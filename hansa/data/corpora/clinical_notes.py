"""Synthetic clinical notes in eleven languages, generated from sentence templates, with gold annotation.

The same seed gives parallel notes in all languages: note 17 in Hebrew is the translation of note 17 in French. A note
has entities (with assertions), relations and personal details, all with character offsets. `notes/catalogue.yaml` lists
the sentence patterns; `notes/LANG.yaml` has the sentences and terms of one language.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hansa.core.errors import UserError, did_you_mean
from hansa.core.seeds import stream

FOLDER = Path(__file__).parent / "notes"
LANGUAGES = ("it", "fr", "es", "pt", "en", "de", "ar", "he", "ru", "bg", "uk")
SLOT = re.compile(r"{(\w+)(?:\.(\w+))?}")
VALUES = {
    "age": (18, 95),
    "dose": (1, 40),
    "days": (2, 14),
    "weeks": (2, 12),
    "pulse": (54, 118),
    "temperature": (360, 395),
    "systolic": (98, 182),
    "diastolic": (58, 104),
    "weight": (46, 118),
}


@dataclass(frozen=True)
class Language:
    """The terms and sentence templates of one language."""

    code: str
    forms: list[str]
    people: dict[str, Any]
    places: dict[str, Any]
    formats: dict[str, Any]
    terms: dict[str, dict[str, str]]
    patterns: dict[str, list[str]]

    def term(self, kind: str, name: str, form: str) -> tuple[str, int, int]:
        """A term in a grammatical form, and the start and end of the entity in it."""
        forms = [f.strip() for f in str(self.terms[kind][name]).split("|")]
        text = forms[self.forms.index(form)] if form else forms[0]
        start, end = text.find("["), text.find("]")
        if start < 0:
            return text, 0, len(text)
        return text[:start] + text[start + 1 : end] + text[end + 1 :], start, end - 1


@cache
def language(code: str) -> Language:
    """The terms and templates of a language; raises `UserError` if there are none."""
    if code not in LANGUAGES:
        raise UserError(f"language '{code}' has no notes; {did_you_mean(code, LANGUAGES)}")
    raw = _read(code)
    return Language(code, *(raw[k] for k in ("forms", "people", "places", "formats", "terms", "patterns")))


@cache
def catalogue() -> dict[str, Any]:
    """The sentence patterns and their annotation, which are common to all languages."""
    return _read("catalogue")


def _read(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return loaded


def notes(code: str, count: int, seed: int = 0, sentences: tuple[int, int] = (4, 9)) -> Iterator[dict[str, Any]]:
    """``count`` notes: {"text", "lang", "note", "entities", "relations", "personal"}; offsets in characters."""
    for number in range(count):
        yield note(code, number, seed, sentences)


def note(code: str, number: int, seed: int, sentences: tuple[int, int], with_people: bool = True) -> dict[str, Any]:
    """Note ``number`` of a seed, with at least ``sentences[0]`` and at most ``sentences[1]`` clinical sentences.

    ``with_people=False`` leaves out the sentences that contain personal details.
    """
    plan = _plan(number, seed, sentences)
    if not with_people:
        plan = [(pattern, fill) for pattern, fill in plan if "personal" not in catalogue()["patterns"][pattern]]
    words = language(code)
    text = ""
    entities: list[dict[str, Any]] = []
    relations: list[dict[str, Any]] = []
    personal: list[dict[str, Any]] = []
    for pattern, fill in plan:
        if text:
            text += " "
        variants = words.patterns[pattern]
        template = variants[fill["variant"] % len(variants)]
        numbers: dict[str, int] = {}
        position = 0
        for slot in SLOT.finditer(template):
            text += template[position : slot.start()]
            position = slot.end()
            name, form = slot.group(1), slot.group(2) or ""
            value, start, end = _value(words, name, form, fill)
            span = [len(text) + start, len(text) + end]
            text += value
            if name in fill["assertions"]:
                numbers[name] = len(entities)
                kind = catalogue()["kinds"][_kind(name)]
                entities.append({"span": span, "type": kind, "term": fill[name], "assertion": fill["assertions"][name]})
            elif name in catalogue()["personal"]:
                personal.append({"span": span, "type": catalogue()["personal"][name]})
        text += template[position:]
        spec = catalogue()["patterns"][pattern]
        relations += [
            {"head": numbers[h], "type": t, "tail": numbers[tail]} for h, t, tail in spec.get("relations", [])
        ]
    return {
        "text": text,
        "lang": code,
        "note": number,
        "entities": entities,
        "relations": relations,
        "personal": personal,
    }


Fill = dict[str, Any]


@lru_cache(maxsize=4096)
def _plan(number: int, seed: int, sentences: tuple[int, int]) -> list[tuple[str, Fill]]:
    """The content of a note, independent of the language: patterns, terms, values and personal details."""
    rng = stream(seed, "note", number)
    patterns = list(catalogue()["patterns"])
    personal = [p for p in patterns if "personal" in catalogue()["patterns"][p]]
    clinical = [p for p in patterns if p not in personal]
    count = int(rng.integers(sentences[0], sentences[1] + 1))
    chosen = [str(p) for p in rng.choice(clinical, min(count, len(clinical)), replace=False)]
    chosen[:0] = [str(p) for p in rng.choice(personal, int(rng.integers(1, 3)), replace=False)]
    patient = {"sex": int(rng.integers(2)), "given": int(rng.integers(1 << 30)), "family": int(rng.integers(1 << 30))}
    plan = []
    for pattern in chosen:
        fill: Fill = {"variant": int(rng.integers(1 << 30)), "patient": patient}
        fill["assertions"] = catalogue()["patterns"][pattern].get("entities", {})
        for slot in fill["assertions"]:
            fill[slot] = _another_term(rng, slot, fill)
        for slot in catalogue()["personal"]:
            fill[slot] = int(rng.integers(1 << 62))
        for slot, (low, high) in VALUES.items():
            fill[slot] = int(rng.integers(low, high + 1))
        plan.append((pattern, fill))
    return plan


def _another_term(rng: np.random.Generator, slot: str, fill: Fill) -> str:
    terms = list(language("en").terms[_kind(slot)])
    taken = fill.get(_kind(slot)) if slot != _kind(slot) else None
    return str(rng.choice([t for t in terms if t != taken]))


def _kind(slot: str) -> str:
    return slot.rstrip("0123456789")


def _value(words: Language, slot: str, form: str, fill: Fill) -> tuple[str, int, int]:
    if slot in fill["assertions"]:
        return words.term(_kind(slot), fill[slot], form)
    value = _personal(words, slot, fill) if slot in catalogue()["personal"] else _number(slot, fill[slot])
    return value, 0, len(value)


def _number(slot: str, value: int) -> str:
    if slot == "temperature":
        return f"{value / 10:.1f}"
    if slot == "dose":
        return str(value * 5)
    return str(value)


def personal_detail(words: Language, slot: str, seed: int) -> str:
    """A personal detail other than a patient's name in the formats of a language: a date, phone number, id, e-mail."""
    return _personal(words, slot, {slot: seed})


def _personal(words: Language, slot: str, fill: Fill) -> str:
    rng = np.random.Generator(np.random.PCG64(fill[slot]))

    def one(items: list[str]) -> str:
        """A random item of a list."""
        return str(items[int(rng.integers(len(items)))])

    def digits(template: str) -> str:
        """The template with a random digit from 1 to 9 for each ``#`` and a random capital letter for each ``@``."""
        filled = re.sub("#", lambda _: str(rng.integers(1, 10)), template)
        return re.sub("@", lambda _: chr(65 + int(rng.integers(26))), filled)

    people, places, formats = words.people, words.places, words.formats
    if slot == "person":
        patient = fill["patient"]
        sex = ("female", "male")[patient["sex"]]
        given, family = people[sex], people["family"]
        title = people["patient"][sex][patient["given"] % len(people["patient"][sex])]
        return f"{title} {given[patient['given'] % len(given)]} {family[patient['family'] % len(family)]}"
    if slot == "doctor":
        sex = ("female", "male")[int(rng.integers(2))]
        return f"{one(people['doctor'][sex])} {one(people[sex])} {one(people['family'])}"
    if slot.startswith("date"):
        day, month, year = int(rng.integers(1, 29)), int(rng.integers(1, 13)), int(rng.integers(2015, 2026))
        names = {
            "day": day,
            "dd": f"{day:02}",
            "mm": f"{month:02}",
            "month": formats["months"][month - 1],
            "year": year,
        }
        return one(formats["date"]).format(**names)
    if slot == "phone":
        return digits(one(formats["phone"]))
    if slot == "id":
        return digits(one(formats["id"]))
    if slot == "email":
        names = language("en").people  # e-mail addresses have Latin letters in all languages
        return (
            f"{one(names['female'] + names['male'])}.{one(names['family'])}{rng.integers(10, 99)}@example.org".lower()
        )
    parts = {"number": int(rng.integers(1, 180)), "street": one(places["streets"]), "city": one(places["cities"])}
    return str(places["address"]).format(**parts, postcode=digits(places["postcode"]))
