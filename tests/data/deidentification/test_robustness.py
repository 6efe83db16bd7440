"""Rewriting a text, as documents do, hardly changes what leaks; without the cleaned view it leaks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.data.corpora import clinical_notes as generator
from hansa.data.corpora.identified_notes import identified_notes, ocr_noise
from hansa.data.deidentification.finders import load
from hansa.data.deidentification.measuring import measure
from hansa.data.deidentification.rules import Rules
from hansa.data.deidentification.view import cleaned, repaired
from tests.data.deidentification.rewritings import REWRITINGS, rewritten

FINDER = load("rules+lists")
CASES: dict[str, Callable[[str], str]] = {"capitals": str.upper, "small letters": str.lower}
NOTES = {code: list(generator.notes(code, 12, seed=9)) for code in generator.LANGUAGES}


def leak_rate(notes: list[Any], code: str, finder: Any = FINDER) -> float:
    return float(measure(notes, finder, code)["overall"]["leak_rate"])


@pytest.mark.parametrize("name", [*REWRITINGS, *CASES])
def test_a_rewriting_changes_the_leak_rate_by_at_most_two_points(name: str) -> None:
    rewrite = {**REWRITINGS, **CASES}[name]
    for code, notes in NOTES.items():
        assert leak_rate([rewritten(note, rewrite) for note in notes], code) <= leak_rate(notes, code) + 0.02, code


@pytest.mark.parametrize("code", generator.LANGUAGES)
def test_misread_characters_change_the_leak_rate_by_at_most_two_points(code: str) -> None:
    notes, rng = list(generator.notes(code, 60, seed=31)), np.random.Generator(np.random.PCG64(7))
    misread = [rewritten(note, lambda text: ocr_noise(text, rng, 0.01)) for note in notes]
    assert leak_rate(misread, code) - leak_rate(notes, code) <= 0.02


@pytest.mark.parametrize(
    ("misread", "meant"),
    [
        ("le l1 mars 2015", "le 11 mars 2015"),
        ("el 2O de mayo de 2022", "el 20 de mayo de 2022"),
        ("on 22 August 2O2S", "on 22 August 2025"),
        ("02/0B/2018", "02/08/2018"),
        ("Tel. O773/756519", "Tel. 0773/756519"),
        ("9l 164 53 66", "91 164 53 66"),
        ("Ms Ferr4nte", "Ms Ferrante"),
    ],
)
def test_misread_numbers_and_words_are_corrected(misread: str, meant: str) -> None:
    assert repaired(misread) == meant


def test_codes_of_letters_and_digits_are_no_misread_numbers() -> None:
    """The negative control: what is written so on purpose stays."""
    for text in ("vitamin B12 and S100 protein", "CD34, HLA-B27, O157:H7", "1l of saline, 5S, T4 normal", "ICD I50.1"):
        assert repaired(text) == text


@given(st.lists(st.sampled_from(sorted(REWRITINGS)), min_size=1, max_size=2, unique=True), st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_any_two_rewritings_change_the_leak_rate_of_any_notes_by_at_most_two_points(
    names: list[str], seed: int
) -> None:
    """Over all languages together: notes of one language are too few for a bound of two points.

    A change of case is a test of its own (`test_text_of_one_case_leaks_little_more`).
    """
    assert _change(seed, lambda text: _apply(names, text)) <= 0.02


@pytest.mark.parametrize("case", CASES)
def test_text_of_one_case_leaks_little_more(case: str) -> None:
    """Held-back notes of all languages in capitals or small letters only: given names must be found by lists alone."""
    assert _change(11, CASES[case], notes=20) <= 0.02


def test_much_misreading_changes_the_leak_rate_by_more() -> None:
    """The negative control: the bound of two points can be missed."""
    rng = np.random.Generator(np.random.PCG64(0))
    assert _change(3, lambda text: ocr_noise(text, rng, 0.3)) > 0.02


def _apply(names: list[str], text: str) -> str:
    for name in names:
        text = REWRITINGS[name](text)
    return text


def _change(seed: int, rewrite: Callable[[str], str], notes: int = 5) -> float:
    """By how much the leak rate of held-back notes of all languages rises if they are rewritten."""
    leaked, entities = [0, 0], 0
    for code in generator.LANGUAGES:
        made = list(identified_notes(code, notes, seed, held_back=True))
        for which, some in enumerate((made, [rewritten(note, rewrite) for note in made])):
            leaked[which] += measure(some, FINDER, code)["overall"]["leaked"]
        entities += sum(len(note["personal"]) for note in made)
    return (leaked[1] - leaked[0]) / entities


def test_without_the_view_the_rewritten_text_leaks() -> None:
    """The negative control: the rules on the text as it is."""
    for name in ("soft hyphens", "zero-width spaces", "tags inside words", "tabs", "double spaces", "hyphenation"):
        notes = [rewritten(note, REWRITINGS[name]) for note in NOTES["it"]]
        assert leak_rate(notes, "it", Rules()) > 0.1, name


WRITTEN = (
    "Mu\u0308ller", "M&uuml;ller", "M&#252;ller", "Mül\xadler", "Mül\u200bler", "Mül\u200eler", "Mül<b>ler</b>",
    "Mül-\nler", "Mül\u2060ler", "Mül<!-- x -->ler", "\uff2düller", "M&#xfc;l&shy;ler", "Mül\ufeffler",
    "\u202aMüller\u202c", "MÜLLER", "Mü1ler",
)  # fmt: skip


@pytest.mark.parametrize("written", WRITTEN)
def test_one_name_in_sixteen_notations(written: str) -> None:
    text = f"Vorstellung bei Frau Dr.\t{written}  am 3. Mai 2020."
    found = FINDER.find(text, "de")
    start = text.index(written)
    end = start + len(written.removesuffix("</b>").removesuffix("\u202c"))
    assert any(f.start <= start + written.startswith("\u202a") and f.end >= end for f in found), found


@given(st.text(alphabet="aBü \t\n\xad\u200b<>bi/&;amp#-é\u0301ß1", max_size=60))
@settings(max_examples=200, deadline=None)
def test_spans_of_the_view_lie_in_the_text_and_in_order(text: str) -> None:
    view = cleaned(text)
    for start in range(len(view.text)):
        low, high = view.back(start, start + 1)
        assert 0 <= low < high <= len(text)
        if view.text[start] in text[low:high] or not view.text[start].isalpha():
            continue
        assert len(text[low:high]) > 0
    places = [view.back(i, i + 1)[0] for i in range(len(view.text))]
    assert places == sorted(places)
    if view.text:
        assert view.back(0, len(view.text))[1] <= len(text)
    assert len(repaired(text)) == len(text)


def test_plain_text_is_its_own_view() -> None:
    view = cleaned("Nothing to clean here.")
    assert (view.text, view.passes) == ("Nothing to clean here.", ())
    assert view.back(3, 7) == (3, 7)
