"""Surrogates and tags: consistency, secrecy, dates, and offsets of annotations."""

# ruff: noqa: RUF001 (texts in nine scripts and languages)
import json
import re
from datetime import date, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.core.errors import DataError, UserError
from hansa.data.corpora import clinical_notes as generator
from hansa.data.deidentification.deidentify import Finding, Rules, deidentify, replace, rewrite
from hansa.data.deidentification.lexicon import FOLDER, in_cases, vocabulary

RULES = Rules()
LANGUAGES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
NOTE = (
    "La Sig.ra Carla De Santis (CC-1234567, tel. 347 1234567) è nata il 4 marzo 1951, vista il 05/03/2021 e il "
    "19/03/2021 dal Dott. Ivo Zanella. De Santis vive in Via dei Mille 12, 56127 Pisa; c.desantis@posta.example."
)


def test_surrogates_are_consistent_keyed_and_of_the_same_kind() -> None:
    new, found = deidentify(NOTE, "it", RULES, "one key", "surrogates")
    again, _ = deidentify(NOTE, "it", RULES, "one key", "surrogates")
    other, _ = deidentify(NOTE, "it", RULES, "another", "surrogates")
    assert new == again != other
    for f in found:
        assert NOTE[f.start : f.end] not in new
    for word in ("Carla", "Santis", "Zanella", "Mille", "Pisa", "desantis", "1951", "2021"):
        assert word not in new
    m = re.search(r"Sig\.ra (\w+) De (\w+) \(CC-(\d{7}), tel\. (\d{3} \d{7})\)", new)
    assert m, new
    assert m[1].endswith("a"), "the surrogate of a female name is female"
    assert f"De {m[2]} vive in Via dei " in new
    assert re.search(r"Via dei \w+ \d\d, \d{5} \w+; \w+@example\.org\.$", new)
    kinds = {f.type for f in RULES.find(new, "it")}
    assert kinds == {f.type for f in found}, "surrogates are recognised as the same types"
    elsewhere, _ = deidentify(
        "Telefonare alla Sig.ra De Santis, cell. 347-1234567.", "it", RULES, "one key", "surrogates"
    )
    assert m[2] in elsewhere
    assert m[4].replace(" ", "-") in elsewhere, "the same number in another notation"


def test_tags_name_the_type() -> None:
    new, _ = deidentify("Il Sig. Ugo Foschi, nato il 4 marzo 1951.", "it", RULES, "k", "tags")
    assert new == "Il [NAME], nato il [DATE]."
    with pytest.raises(UserError, match="did you mean 'tags'"):
        deidentify("x", "it", RULES, "k", "tag")


@pytest.mark.parametrize("code", generator.LANGUAGES)
def test_no_personal_detail_survives_in_any_language(code: Any) -> None:
    for note in generator.notes(code, 40, seed=4):
        new, found = deidentify(note["text"], code, RULES, "k", "surrogates")
        assert "[DATE]" not in new
        for item in note["personal"]:
            assert note["text"][slice(*item["span"])] not in new
        script = {c for c in note["text"] if c.isalpha() and ord(c) > 0x250}
        assert not script or {ord(c) >> 8 for c in new if c.isalpha()} <= {
            ord(c) >> 8 for c in note["text"] if c.isalpha()
        }
        assert len(found) == len(note["personal"])


WRITTEN = {
    **dict.fromkeys(("it", "fr", "ar", "bg"), "%d %B %Y"),
    **dict.fromkeys(("es", "pt"), "%d de %B de %Y"),
    "en": "%B %d, %Y",
    "de": "%d. %B %Y",
    "he": "%d ב%B %Y",
    "ru": "%d %B %Y года",
    "uk": "%d %B %Y року",
}
DAYS = st.dates(date(1930, 1, 1), date(2049, 12, 31))


def in_words(code: Any, day: Any) -> Any:
    month = generator.language(code).formats["months"][day.month - 1]
    return WRITTEN[code].replace("%d", str(day.day)).replace("%B", month).replace("%Y", str(day.year))


@settings(max_examples=60, deadline=None)
@given(DAYS, DAYS, st.sampled_from(sorted(WRITTEN)), st.text(min_size=1, max_size=20))
def test_dates_move_together_in_every_notation(first: Any, second: Any, code: Any, key: Any) -> None:
    notations = [
        f"{first:%d/%m/%Y}", f"{second:%d/%m/%Y}", f"{first:%Y-%m-%d}", f"{first:%d.%m.%Y}", in_words(code, first),
    ]  # fmt: skip
    text = " ; ".join(notations)
    new, found = deidentify(text, code, RULES, key, "surrogates")
    assert len(found) == len(notations)
    one, two, iso, dotted, words = new.split(" ; ")
    moved = [date(int(y), int(m), int(d)) for d, m, y in (one.split("/"), two.split("/"))]
    assert moved[1] - moved[0] == second - first
    assert first - moved[0] >= timedelta(days=30)
    assert (first - moved[0]).days % 7 == 0
    assert iso == f"{moved[0]:%Y-%m-%d}"
    assert dotted == f"{moved[0]:%d.%m.%Y}"
    assert words == in_words(code, moved[0])


@pytest.mark.parametrize(
    ("code", "said", "shape"),
    [
        ("en", "2nd of March 2021", r"(?:1st|2nd|3rd|\d*[04-9]th|1[1-3]th|2[1-3](?:st|nd|rd)|31st) of \w+ 20\d\d"),
        ("fr", "1er mars 2020", r"(?:1er|(?!1 )\d+) \w+ 20\d\d"),
        ("it", "07/18/2023", r"(?:0\d|1[0-2])/\d\d/20\d\d"),
        ("de", "12.3.2021", r"[1-9]\d?\.[1-9]\d?\.20\d\d"),
        ("ar", "١٣/٠٥/٢٠٢٤", r"[٠-٩]{2}/[٠-٩]{2}/٢٠[٠-٩]{2}"),
        ("it", "12-14 maggio 2020", r"\d+-\d+ [a-z]+ 20\d\d"),
        ("it", "31/02/2020", r"\d\d/\d\d/20\d\d"),
    ],
)
def test_a_moved_date_keeps_its_notation(code: Any, said: Any, shape: Any) -> None:
    for key in "abcdefgh":
        new, found = deidentify(said, code, RULES, key, "surrogates")
        assert len(found) == 1
        assert re.fullmatch(shape, new), new
        assert new != said


def test_dates_of_one_patient_are_moved_by_the_same_time() -> None:
    def moved(text: Any) -> Any:
        return deidentify(text, "it", RULES, "k", "surrogates")[0][-10:]

    assert moved("Sig. Ugo Foschi, 01/02/2020") == moved("La visita del Sig. Foschi è il 01/02/2020")
    others = {moved(f"Sig. Ugo {name}, 01/02/2020") for name in ("Foschi", "Vanni", "Orsi", "Zanella", "Belli")}
    assert len(others) > 2


@settings(max_examples=120, deadline=None)
@given(st.text(alphabet="Sig. Dott.raADé12/-:+@,;() \n\u00a0׳دר״№ул", max_size=80), st.sampled_from(LANGUAGES))
def test_any_text_gives_disjoint_spans_in_order_and_can_be_replaced(text: Any, code: Any) -> None:
    found = RULES.find(text, code)
    assert all(0 <= f.start < f.end <= len(text) for f in found)
    assert all(a.end <= b.start for a, b in pairwise(found))
    tagged = replace(text, found, code, "k", "tags")
    kept = [
        text[a.end : b.start]
        for a, b in zip([Finding(0, 0, ""), *found], [*found, Finding(len(text), 0, "")], strict=True)
    ]
    assert "".join(kept) == re.sub("|".join(re.escape(f"[{f.type}]") for f in found) or "(?!)", "", tagged)
    replace(text, found, code, "k")


def test_overlapping_findings_are_merged() -> None:
    found = [Finding(3, 9, "NAME"), Finding(6, 14, "ID"), Finding(20, 22, "DATE")]
    assert replace("0123456789012345678901234", found, "it", "k", "tags") == "012[ID]456789[DATE]234"
    with pytest.raises(DataError, match="spans 3–99"):
        replace("short", [Finding(3, 99, "NAME")], "it", "k")


def test_offsets_are_adjusted_to_the_new_text() -> None:
    text = "Il Sig. Ugo Foschi ha febbre dal 4 marzo 2020 e tosse."
    at = {word: [text.index(word), text.index(word) + len(word)] for word in ("febbre", "tosse", "Sig. Ugo Foschi")}
    fever, cough, name = at.values()
    entities = [{"span": fever, "type": "SYMPTOM"}, {"start": cough[0], "end": cough[1], "label": "S"}]
    row = {"text": text, "id": 7, "start": fever[0], "end": fever[1], "h_start": cough[0], "h_end": cough[1]}
    row |= {"entities": entities, "spans": [[*cough, "S"]]}
    row |= {"personal": [{"span": name, "type": "NAME", "text": "Sig. Ugo Foschi"}]}
    for style in ("surrogates", "tags"):
        new, found = rewrite(row, "text", "it", RULES, "k", style)
        assert len(found) == 2
        said = new["text"]
        assert said[new["start"] : new["end"]] == said[slice(*new["entities"][0]["span"])] == "febbre"
        assert (
            said[new["h_start"] : new["h_end"]]
            == said[new["entities"][1]["start"] : new["entities"][1]["end"]]
            == "tosse"
        )
        assert said[slice(*new["spans"][0][:2])] == "tosse"
        assert new["spans"][0][2] == "S"
        name = said[slice(*new["personal"][0]["span"])]
        assert new["personal"][0]["text"] == name
        assert name == "[NAME]" if style == "tags" else name.startswith("Sig. ")
        assert "Foschi" not in json.dumps(new, ensure_ascii=False)
        assert new["id"] == 7


@pytest.mark.parametrize("code", generator.LANGUAGES)
def test_entities_of_generated_notes_keep_their_words(code: Any) -> None:
    for note in generator.notes(code, 20, seed=8):
        new, _ = rewrite(note, "text", code, RULES, "k", "surrogates")
        for old, moved in zip(note["entities"], new["entities"], strict=True):
            assert note["text"][slice(*old["span"])] == new["text"][slice(*moved["span"])]


@pytest.mark.parametrize("code", sorted(file.stem for file in FOLDER.glob("*.yaml")))
def test_every_way_to_write_a_month_is_found_and_moved(code: Any) -> None:
    """Hebrew month names end with a geresh, which a keyboard writes as an apostrophe: this raised a KeyError."""
    words = vocabulary(code)
    names = {form for table in (words.full_months, words.short_months) for month in table for form in month}
    for name in sorted({form for one in names for form in in_cases(one)}):
        for plain, written in (("", ""), ("׳", "'"), ("'", "’"), (".", "")):
            text = f"12 {name.replace(plain, written)} 2019" if plain else f"12 {name} 2019"
            new, _ = deidentify(text, code, Rules(), "key")
            assert new != text or not any(c.isalpha() for c in text)


def test_a_hebrew_month_keeps_its_apostrophe() -> None:
    for text in ("12 נוב' 2019", "12 נוב׳ 2019"):
        new, [found] = deidentify(text, "he", Rules(), "key")
        assert (found.start, found.end, found.type) == (0, len(text), "DATE")
        assert "[DATE]" not in new
        assert ("׳" if "'" in text else "'") not in new  # some months have no short form, and no apostrophe
