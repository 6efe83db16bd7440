"""Patterns are tried only where they can match: this loses no finding, and the places are those of a plain search."""

import re
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.data.corpora import clinical_notes as generator
from hansa.data.corpora.identified_notes import identified_notes
from hansa.data.deidentification import rules
from hansa.data.deidentification.anchors import NumberPlaces, Places, number_places, opening
from hansa.data.deidentification.lexicon import FOLDER, literal, one_of, spellings, vocabulary, without_case
from hansa.data.deidentification.rules import Finding, Patterns

LANGUAGES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
NUMBERS = (
    "+44 20 7946 0018 (0421) 558731 A1234567 MRN-1234567 abc-12345 ab 12 XY 1234567 28046 Madrid, 3.4.2020 am 16.01. "
    "5/3 12-8-14 2019-04-03 1er mai 2019 3rd Juni 2018 90 years 129 años in 2014 B12 1ab2 12AB-34 *77 93-jährige 1 2"
)


def texts(code: str) -> list[str]:
    """Notes of the language or, if there are none, of another one; in three cases, and many formats of numbers."""
    known = code if code in generator.LANGUAGES else "es"
    notes = [*generator.notes(known, 6, seed=41), *identified_notes(known, 6, seed=42, held_back=True)]
    plain = [note["text"] for note in notes]
    words = " ".join(f"{word}: 12345 Abc Def, {word} Ghi" for word in sorted(vocabulary(code).title_words))
    return [*plain, plain[0].upper(), plain[1].lower(), NUMBERS, words]


def unfiltered(patterns: Patterns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every pattern be tried at every anchor word and at every number."""
    monkeypatch.setattr(patterns.anchors, "all", True)
    monkeypatch.setattr(patterns, "any_shape", lambda text, place: True)
    monkeypatch.setattr(rules, "number_places", lambda text: NumberPlaces(*[number_places(text).any] * 6))


@pytest.mark.parametrize("code", LANGUAGES)
def test_what_is_found_does_not_depend_on_where_patterns_are_tried(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = Patterns(vocabulary(code))
    found = [patterns.find(text) for text in texts(code)]
    assert sum(map(len, found)) > 30
    unfiltered(patterns, monkeypatch)
    assert [patterns.find(text) for text in texts(code)] == found


def test_a_filter_that_is_too_strict_loses_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: without the places of titles, or of numbers of four digits, less is found."""
    patterns, text = Patterns(vocabulary("en")), "Seen by Dr. Okonjo, ill since 2014."
    assert [f.type for f in patterns.find(text)] == ["NAME", "DATE"]
    monkeypatch.setattr(rules, "number_places", lambda text: number_places(text)._replace(four=[]))
    assert patterns.find(text) == [Finding(8, 18, "NAME")]
    strict = {k: v for k, v in patterns.anchors.by_opening.items() if "title" not in v}
    monkeypatch.setattr(patterns.anchors, "by_opening", strict)
    assert patterns.find(text) == []


@pytest.mark.parametrize("code", LANGUAGES)
def test_anchors_are_where_a_plain_search_finds_them(code: str) -> None:
    words = vocabulary(code)
    anchors = Patterns(words).anchors
    listed = [*words.titles, *words.words("kin"), *words.words("phone_labels"), *words.words("hospitals", "before")]
    pattern = re.compile(rf"(?<![^\W\d]){words.prefixes}(?={one_of(listed)})\w")
    for text in texts(code):
        places: Places = defaultdict(list, anchors.places(text))
        found = {place for some in places.values() for place in some}
        assert {m.start() for m in pattern.finditer(text)} <= found


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_literal_matches_only_texts_that_begin_with_its_opening(code: str) -> None:
    words = vocabulary(code)
    for form in sorted(spellings([*words.titles, *words.words("id_labels"), *words.words("address", "streets")])):
        begun = opening(form)
        assert form.startswith(begun)
        assert re.match(literal(form), form + " ")
        if begun:
            assert not re.match(literal(form), "\u4e00" + form[1:])


@given(st.text(alphabet="aB é Ж ю1.\u0660", max_size=80), st.integers(1, 30))
@settings(max_examples=200, deadline=None)
def test_whether_case_says_something_is_told_as_by_counting(piece: str, times: int) -> None:
    text = (piece * times)[:1000]
    lower, upper = sum(map(str.islower, text)), sum(map(str.isupper, text))
    upper = upper if lower else len(text)
    assert without_case(text) == (upper + lower > 20 and (upper > 1.5 * lower or upper < 0.003 * lower))
