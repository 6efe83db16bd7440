"""Notes without labels, in capitals, in small letters, with initials and dates in words: what leaks of them."""

from collections import Counter
from functools import cache

import pytest

from hansa.data.deidentification.finders import load
from hansa.data.deidentification.measuring import measure
from hansa.data.deidentification.rules import Rules
from tests.data.deidentification.hard_notes import SEEN, UNSEEN, notes

FINDER = load("rules+lists")
# The largest share of each type that may leak from notes that the rules were not written for.
LIMITS = {
    "NAME": 0.1,
    "DATE": 0.03,
    "ID": 0.03,
    "PHONE": 0.01,
    "EMAIL": 0.01,
    "ADDRESS": 0.15,
    "HOSPITAL": 0.25,
    "TOWN": 0.3,
}


@cache
def leaks(unseen: bool) -> tuple[dict[str, float], float]:
    """The leak rate by type over all languages, and the precision."""
    entities, leaked, found, right = Counter[str](), Counter[str](), 0, 0.0
    for language, rows in notes(UNSEEN if unseen else SEEN).items():
        scores = measure(rows, FINDER, language)
        for kind, one in scores["types"].items():
            entities[kind] += one["entities"]
            leaked[kind] += one["leaked"]
        found += scores["overall"]["findings"]
        right += scores["overall"]["findings"] * scores["overall"]["precision"]
    return {kind: leaked[kind] / count for kind, count in entities.items() if count}, right / found


@pytest.mark.parametrize("kind", LIMITS)
def test_little_leaks_from_unseen_hard_notes(kind: str) -> None:
    assert leaks(unseen=True)[0].get(kind, 0.0) <= LIMITS[kind]


def test_less_leaks_from_the_notes_that_the_rules_were_written_for() -> None:
    rates, precision = leaks(unseen=False)
    assert rates["NAME"] <= 0.05
    assert rates["DATE"] <= 0.03
    assert precision >= 0.95


def test_precision_stays_high_on_unseen_notes() -> None:
    assert leaks(unseen=True)[1] >= 0.95


def test_without_lists_and_dictionaries_half_of_the_names_leak() -> None:
    """The negative control: the rules alone."""
    scores = [measure(rows, Rules(), language)["types"]["NAME"] for language, rows in notes(UNSEEN).items()]
    assert sum(one["leaked"] for one in scores) > 0.4 * sum(one["entities"] for one in scores)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Known Crohn disease, Babinski negative, Doppler normal, Escherichia coli grew, started Lasix.", "en"),
        ("Enfermedad de Crohn, Mantoux negativo. Presentaba fiebre. Ingresa en Urgencias, Cirugía Maxilofacial.", "es"),
        ("Maladie de Crohn, signe de Babinski absent, traitement par Doliprane et Lasix.", "fr"),
        ("Luftnot und Herzrasen, Ramipril abgesetzt, Morbus Crohn bekannt.", "de"),
    ],
)
def test_clinical_words_with_capital_letters_are_no_names(text: str, language: str) -> None:
    assert [text[f.start : f.end] for f in FINDER.find(text, language)] == []
