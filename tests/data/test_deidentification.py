"""De-identification: what is found, what is left alone, what takes its place, and how it is measured."""
# ruff: noqa: RUF001 (texts in nine scripts and languages)

import json
import re
import stat
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hansa.cli.data import data as command
from hansa.core.errors import DataError, UserError
from hansa.core.seeds import stream
from hansa.data.corpora import clinical_notes as generator
from hansa.data.deidentification import files as whole
from hansa.data.deidentification.deidentify import (
    Deidentifier,
    Finding,
    Rules,
    deidentify,
    load,
    measure,
    replace,
    rewrite,
)
from hansa.data.deidentification.lexicon import FOLDER, vocabulary

RULES = Rules()
LANGUAGES = sorted(path.stem for path in FOLDER.glob("*.yaml"))

TEXTS = yaml.safe_load((Path(__file__).parent / "deidentify_texts.yaml").read_text(encoding="utf-8"))


def held_out(code, note, number):
    """The note with every personal detail exchanged for one the generator does not know."""
    rng = stream(5, "held out", code, number)
    months = generator.language(code).formats["months"]
    keys = {"NAME": "names", "DATE": "dates", "PHONE": "phones", "ID": "ids", "ADDRESS": "addresses"}
    text, personal, position = "", [], 0
    for item in sorted(note["personal"], key=lambda p: p["span"]):
        start, end = item["span"]
        said = note["text"][start:end]
        if item["type"] in keys:
            choices = TEXTS["held_out"][code][keys[item["type"]]]
            said = choices[int(rng.integers(len(choices)))].replace("{m}", months[int(rng.integers(12))])
            said = re.sub("#", lambda _: str(rng.integers(1, 9)), said)
        text += note["text"][position:start]
        personal.append({"span": [len(text), len(text) + len(said)], "type": item["type"]})
        text, position = text + said, end
    return {"text": text + note["text"][position:], "personal": personal}


def unmarked(marked):
    text, personal = "", []
    for piece in re.split("(‹[^›]*›)", marked):
        if piece.startswith("‹"):
            personal.append((len(text), len(text) + len(piece) - 2))
            piece = piece[1:-1]
        text += piece
    return text, personal


@pytest.mark.parametrize("code", LANGUAGES)
def test_sentences_written_by_hand(code):
    for marked in TEXTS["sentences"][code]:
        text, personal = unmarked(marked)
        found = RULES.find(text, code)
        covered = {place for f in found for place in range(f.start, f.end)}
        missed = [
            text[s:e]
            for s, e in personal
            if not covered >= set(range(s, e)) - {i for i, c in enumerate(text) if c == "."}
        ]
        wrong = [text[f.start : f.end] for f in found if not any(f.start < e and f.end > s for s, e in personal)]
        assert (missed, wrong) == ([], []), [text[f.start : f.end] for f in found]


@pytest.mark.parametrize("code", LANGUAGES)
def test_clinical_content_is_left_alone(code):
    text = TEXTS["clinical"][code]
    assert [text[f.start : f.end] for f in RULES.find(text, code)] == []


@pytest.mark.parametrize("code", generator.LANGUAGES)
def test_recall_and_precision_on_the_generators_gold(code):
    found = measure(generator.notes(code, 150, seed=21), RULES, code)
    assert found["overall"]["recall"] >= 0.98
    assert found["overall"]["character_recall"] >= 0.98
    assert found["overall"]["precision"] >= 0.95
    assert set(found["types"]) == {"NAME", "DATE", "PHONE", "EMAIL", "ID", "ADDRESS"}


@pytest.mark.parametrize("code", generator.LANGUAGES)
def test_recall_on_people_places_and_formats_never_seen(code):
    rows = [held_out(code, note, i) for i, note in enumerate(generator.notes(code, 100, seed=22))]
    found = measure(rows, RULES, code)["overall"]
    assert found["recall"] >= 0.95
    assert found["precision"] >= 0.95


@pytest.mark.parametrize("code", generator.LANGUAGES)
def test_the_rules_list_no_person_and_no_place(code):
    said = generator.language(code)
    known = {*said.people["female"], *said.people["male"], *said.people["family"], *said.places["cities"]}
    listed = set(re.findall(r"[\w'’׳״-]+", (FOLDER / f"{code}.yaml").read_text(encoding="utf-8")))
    named = slice(-1) if code == "en" else slice(1, None)  # the other word is "Street"
    streets = {word for street in said.places["streets"] for word in street.split()[named] if word[0].isupper()}
    streets -= set(vocabulary(code).words("address", "suffixes"))  # "Park" names a road and is a kind of road
    assert not (known | streets) & listed


class Nothing:
    def find(self, text, language):
        return []


class Everything:
    def find(self, text, language):
        return [Finding(0, len(text), "NAME")]


def test_a_finder_that_finds_nothing_or_everything_is_seen_through():
    rows = list(generator.notes("it", 20))
    nothing, everything = measure(rows, Nothing(), "it")["overall"], measure(rows, Everything(), "it")["overall"]
    assert nothing["recall"] == nothing["character_recall"] == 0
    assert nothing["precision"] is None
    assert everything["recall"] == everything["precision"] == 1
    assert everything["character_precision"] < 0.3
    assert everything["exact_recall"] == 0


def test_measure_counts_by_hand():
    class Half:
        def find(self, text, language):
            return [Finding(0, 4, "NAME"), Finding(6, 8, "DATE"), Finding(9, 10, "ID")]

    row = {"text": "abcdefghij", "personal": [{"span": [0, 4], "type": "NAME"}, {"span": [5, 9], "type": "DATE"}]}
    found = measure([row], Half(), "it")
    assert found["overall"]["character_recall"] == 6 / 8
    assert found["overall"]["character_precision"] == 6 / 7
    assert found["overall"]["recall"] == 1 / 2, "a date covered by half is not found"
    assert found["overall"]["precision"] == 2 / 3
    assert found["overall"]["exact_recall"] == 1 / 2
    assert found["types"]["DATE"]["recall"] == 0
    assert found["types"]["ID"]["recall"] is None


NOTE = (
    "La Sig.ra Carla De Santis (CC-1234567, tel. 347 1234567) è nata il 4 marzo 1951, vista il 05/03/2021 e il "
    "19/03/2021 dal Dott. Ivo Zanella. De Santis vive in Via dei Mille 12, 56127 Pisa; c.desantis@posta.example."
)


def test_surrogates_are_consistent_keyed_and_of_the_same_kind():
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
    assert m[1].endswith("a"), "a woman keeps a woman's name"
    assert f"De {m[2]} vive in Via dei " in new
    assert re.search(r"Via dei \w+ \d\d, \d{5} \w+; \w+@example\.org\.$", new)
    kinds = {f.type for f in RULES.find(new, "it")}
    assert kinds == {f.type for f in found}, "what was made up has the shape of what it replaces"
    elsewhere, _ = deidentify(
        "Telefonare alla Sig.ra De Santis, cell. 347-1234567.", "it", RULES, "one key", "surrogates"
    )
    assert m[2] in elsewhere
    assert m[4].replace(" ", "-") in elsewhere, "the same number in another notation"


def test_tags_name_the_kind():
    new, _ = deidentify("Il Sig. Ugo Foschi, nato il 4 marzo 1951.", "it", RULES, "k", "tags")
    assert new == "Il [NAME], nato il [DATE]."
    with pytest.raises(UserError, match="did you mean 'tags'"):
        deidentify("x", "it", RULES, "k", "tag")


@pytest.mark.parametrize("code", generator.LANGUAGES)
def test_no_personal_detail_survives_in_any_language(code):
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


def in_words(code, day):
    month = generator.language(code).formats["months"][day.month - 1]
    return WRITTEN[code].replace("%d", str(day.day)).replace("%B", month).replace("%Y", str(day.year))


@settings(max_examples=60, deadline=None)
@given(DAYS, DAYS, st.sampled_from(sorted(WRITTEN)), st.text(min_size=1, max_size=20))
def test_dates_move_together_in_every_notation(first, second, code, key):
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
def test_a_moved_date_is_written_as_dates_are(code, said, shape):
    for key in "abcdefgh":
        new, found = deidentify(said, code, RULES, key, "surrogates")
        assert len(found) == 1
        assert re.fullmatch(shape, new), new
        assert new != said


def test_one_patients_documents_move_together_and_anothers_do_not():
    def moved(text):
        return deidentify(text, "it", RULES, "k", "surrogates")[0][-10:]

    assert moved("Sig. Ugo Foschi, 01/02/2020") == moved("La visita del Sig. Foschi è il 01/02/2020")
    others = {moved(f"Sig. Ugo {name}, 01/02/2020") for name in ("Foschi", "Vanni", "Orsi", "Zanella", "Belli")}
    assert len(others) > 2


@settings(max_examples=120, deadline=None)
@given(st.text(alphabet="Sig. Dott.raADé12/-:+@,;() \n\u00a0׳دר״№ул", max_size=80), st.sampled_from(LANGUAGES))
def test_any_text_gives_disjoint_spans_in_order_and_can_be_replaced(text, code):
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


def test_overlapping_findings_are_covered_whole():
    found = [Finding(3, 9, "NAME"), Finding(6, 14, "ID"), Finding(20, 22, "DATE")]
    assert replace("0123456789012345678901234", found, "it", "k", "tags") == "012[ID]456789[DATE]234"
    with pytest.raises(DataError, match="spans 3–99"):
        replace("short", [Finding(3, 99, "NAME")], "it", "k")


def test_offsets_move_with_the_text():
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
def test_the_generators_entities_still_point_at_their_words(code):
    for note in generator.notes(code, 20, seed=8):
        new, _ = rewrite(note, "text", code, RULES, "k", "surrogates")
        for old, moved in zip(note["entities"], new["entities"], strict=True):
            assert note["text"][slice(*old["span"])] == new["text"][slice(*moved["span"])]


FINDERS = """
from dataclasses import dataclass

@dataclass
class Result:
    start: int
    end: int
    entity_type: str

class Engine:
    def analyze(self, text, language):
        return [Result(0, 3, "PERSON"), Result(4, 8, "CRYPTO")]

class Useless:
    pass

class Needy:
    def __init__(self, x): pass
"""


def test_another_finder_is_plugged_in_by_name(tmp_path):
    file = tmp_path / "finders.py"
    file.write_text(FINDERS)
    engine = load(f"{file}:Engine")
    assert engine.find("Ugo 1234", "it") == [Finding(0, 3, "NAME"), Finding(4, 8, "CRYPTO")]
    new, _ = deidentify("Ugo 1234", "it", engine, "k", "surrogates")
    assert re.fullmatch(r"[A-Z]\w+ \d{4}", new)
    assert new != "Ugo 1234"
    assert isinstance(load("hansa.data.deidentification.rules:Rules"), Deidentifier)
    for spec, message in {
        f"{file}:Useless": "neither find",
        f"{file}:Needy": "cannot be made without arguments",
        f"{file}:Engin": "there is no 'Engin'",
        f"{tmp_path}/no.py:Engine": "there is no file",
        "no_such_package:X": "cannot be imported",
        "presidio_analyzer_not_there:X": "pip install presidio-analyzer",
        "rule": "neither 'rules' nor 'module:Class'",
    }.items():
        with pytest.raises(UserError, match=message):
            load(spec)


def test_a_finder_that_fails_is_named_with_the_language(tmp_path):
    (tmp_path / "bad.py").write_text(
        "class Bad:\n    def find(self, text, language):\n        raise ValueError('no model')"
    )
    with pytest.raises(UserError, match=r"bad.py:Bad' failed on a text in language 'it': no model"):
        load(f"{tmp_path}/bad.py:Bad").find("Ugo", "it")


def test_fields_that_nobody_looks_into_are_named(tmp_path):
    file = tmp_path / "it.jsonl"
    file.write_text(
        json.dumps({"text": "Il paziente sta bene.", "lang": "it", "patient": "Mario Rossi", "age": 5}) + "\n"
    )
    report = json.loads(run(file, "--out", tmp_path / "out", "--format", "json").stdout)
    assert report["copied_fields"] == {"patient": 1}
    assert "unread: the fields patient" in run(file, "--out", tmp_path / "out").stdout.replace("\n", " ")


def test_gold_of_tokens_lies_in_the_text_that_the_tokens_make(tmp_path):
    row = {"text": "Visto dal   dott. Rossi", "tokens": ["Visto", "dal", "dott.", "Rossi"], "lang": "it"}
    (tmp_path / "it.jsonl").write_text(json.dumps(row | {"tags": ["O", "O", "O", "B-NAME"]}) + "\n")
    scores = json.loads(run(tmp_path / "it.jsonl", "--measure", "--format", "json").stdout)
    assert scores["languages"]["it"]["overall"]["recall"] == 1.0


def test_a_language_without_rules_is_refused_by_name():
    with pytest.raises(UserError, match="language 'xx' has no rules"):
        RULES.find("text", "xx")
    assert vocabulary("pt-BR") is not None


def run(*arguments):
    return CliRunner().invoke(command, ["deidentify", *map(str, arguments)])


def test_the_command_writes_files_and_keeps_its_key_to_itself(tmp_path):
    file, out = tmp_path / "it.jsonl", tmp_path / "out"
    notes = list(generator.notes("it", 10))
    file.write_text("".join(json.dumps(n) + "\n" for n in notes) + "{broken\n", encoding="utf-8")
    result = run(file, "--out", out, "--format", "json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert report["texts"] == 10
    assert report["bad_rows"] == 1
    assert "it.jsonl:11: not valid JSON" in report["first_problems"][0]
    assert report["replaced"]["NAME"] > 0
    key = out / whole.KEY_NAME
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_text().strip() not in result.output
    written = (out / "it.jsonl").read_text(encoding="utf-8")
    assert run(file, "--out", out).exit_code == 0
    assert (out / "it.jsonl").read_text(encoding="utf-8") == written, "the key is made once"
    assert run(file, "--out", tmp_path / "other").exit_code == 0
    assert (tmp_path / "other" / "it.jsonl").read_text(encoding="utf-8") != written
    assert run(file, "--out", tmp_path / "third", "--key-file", key).exit_code == 0
    assert (tmp_path / "third" / "it.jsonl").read_text(encoding="utf-8") == written
    assert not (tmp_path / "third" / whole.KEY_NAME).exists()


def test_the_command_refuses_what_it_cannot_do(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "Sig. Ugo Foschi"}\n')
    for arguments, message in (
        ([file, "--out", tmp_path / "o"], "no 'lang'; say the language"),
        ([file, "--out", tmp_path, "--language", "it"], "would overwrite it"),
        ([file, "--language", "it"], "say where to write"),
        ([file, "--out", tmp_path / "o", "--language", "it", "--key-file", tmp_path / "no"], "no such key file"),
        ([file, "--measure", "--language", "it"], "no row can be measured"),
        ([file, "--out", tmp_path / "o", "--style", "stars"], "style 'stars' is not known"),
    ):
        result = run(*arguments)
        assert isinstance(result.exception, UserError), result.output
        assert message in str(result.exception)
    assert file.read_text() == '{"text": "Sig. Ugo Foschi"}\n'
    assert not (tmp_path / "o" / "a.jsonl").exists()
    assert not (tmp_path / "o" / "a.jsonl.part").exists()


def test_measuring_on_ones_own_annotation(tmp_path):
    spans, tags, columns = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.conll"))
    good = {"text": "Sig. Ugo Foschi, 04/03/2020", "lang": "it"}
    personal = [{"span": [0, 15], "type": "NAME"}, {"span": [17, 27], "type": "DATE"}]
    bad = [[{"span": [3, 99], "type": "NAME"}], [{"span": [5, 2], "type": "NAME"}]]
    spans.write_text("".join(json.dumps({**good, "personal": p}) + "\n" for p in (personal, *bad)))
    words, bio = ["Sig.", "Ugo", "Foschi", "il", "04/03/2020"], ["B-NAME", "I-NAME", "I-NAME", "O", "B-DATE"]
    rows = [{"tokens": words, "tags": bio, "lang": "it"}, {"tokens": words, "tags": bio[1:], "lang": "it"}]
    tags.write_text("".join(json.dumps(r) + "\n" for r in rows))
    columns.write_text("".join(f"{w} {t}\n" for w, t in zip(words, bio, strict=True)) + "\n")
    for file, broken in ((spans, 2), (tags, 1), (columns, 0)):
        result = json.loads(run(file, "--measure", "--language", "it", "--format", "json").stdout)
        assert result["bad_rows"] == broken, result
        assert result["languages"]["it"]["overall"]["exact_recall"] == 1.0
        assert result["texts"] == {"it": 1}
    shown = run(spans, "--measure", "--language", "it").stdout
    assert "it NAME" in shown
    assert "2 rows could not be used" in shown


# ── while a silo reads ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_silo_replaces_personal_details_before_anything_reads_the_text(tmp_path):
    from hansa.data.rows import Problems
    from hansa.data.splits import rows
    from hansa.data.settings import Data
    from hansa.data.source import Source

    notes = list(generator.notes("it", 30, seed=5))
    file = tmp_path / "it.jsonl"
    file.write_text("".join(json.dumps(n, ensure_ascii=False) + "\n" for n in notes), encoding="utf-8")
    source = Source(train=str(file), language="it")
    plain = Data(valid=0.0, test=0.0)
    read = list(rows(source, "train", plain.model_copy(update={"deidentify": "rules"}), Problems()))
    assert len(read) == len(notes)
    for row, note in zip(read, notes, strict=True):
        for detail in note["personal"]:
            assert note["text"][slice(*detail["span"])] not in row["text"]
        for before, after in zip(note["entities"], row["entities"], strict=True):
            assert note["text"][slice(*before["span"])] == row["text"][slice(*after["span"])], "offsets moved along"
    again = list(rows(source, "train", plain.model_copy(update={"deidentify": "rules"}), Problems()))
    assert read == again, "the key is kept"
    untouched = list(rows(source, "train", plain, Problems()))
    assert [r["text"] for r in untouched] == [n["text"] for n in notes]


def test_texts_cut_into_tokens_are_reported_not_let_through(tmp_path):
    from hansa.data.rows import Problems
    from hansa.data.splits import rows
    from hansa.data.settings import Data
    from hansa.data.source import Source

    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"tokens": ["Mr", "Smith"], "tags": ["O", "O"], "lang": "en"}))
    problems = Problems()
    data = Data(valid=0.0, test=0.0, deidentify="rules")
    assert list(rows(Source(train=str(file)), "train", data, problems)) == []
    assert "cut into tokens" in problems.first[0]
