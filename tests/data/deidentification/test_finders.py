"""Unions of finders: lists, trained taggers, types that are left alone, whole documents, and other details."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hansa.cli.data import data as command
from hansa.core.errors import UserError
from hansa.data.corpora.identified_notes import LANGUAGES, identified_notes
from hansa.data.deidentification.finders import load
from hansa.data.deidentification.kinds import built_in, kind_of
from hansa.data.deidentification.measuring import measure
from hansa.runs.finder import FinderSettings, train_finder

BOTH = load("rules+lists")


def found(text: str, language: str, finder: Any = BOTH) -> dict[str, list[str]]:
    by_type: dict[str, list[str]] = {}
    for f in finder.find(text, language):
        by_type.setdefault(f.type, []).append(text[f.start : f.end])
    return by_type


@pytest.mark.parametrize(
    ("text", "language", "kind", "expected"),
    [
        ("Seen by DR. SMITH today.", "en", "NAME", "SMITH"),
        ("SMITH, JOHN - DOB:03/14/1969", "en", "NAME", "SMITH, JOHN"),
        ("SMITH, JOHN - DOB:03/14/1969", "en", "DATE", "03/14/1969"),
        ("Patient:\tQuillon Abbatrest\tAge:\t47", "en", "NAME", "Quillon Abbatrest"),
        ("Yesterday Maria Lopez called.", "en", "NAME", "Maria Lopez"),
        ("Her daughter Emily came along.", "en", "NAME", "Emily"),
        ("A man of 93 years was admitted.", "en", "AGE", "93"),
        ("He was transferred to Bristol General Hospital at night.", "en", "HOSPITAL", "Bristol General Hospital"),
        ("He works as a carpenter.", "en", "PROFESSION", "carpenter"),
        ("Diagnosed in 2014.", "en", "DATE", "2014"),
        ("Natural de Salamanca, casado.", "es", "TOWN", "Salamanca"),
        ("Ingresa en el Hospital Universitario La Paz.", "es", "HOSPITAL", "Hospital Universitario La Paz"),
        ("Domicilio: C/ Mayor 5, 2º B.\nTel. 600 111 222", "es", "ADDRESS", "C/ Mayor 5, 2º B"),
        ("Médico: Ana Ruiz NºCol: 28 28 70973.", "es", "ID", "28 28 70973"),
        ("Su madre Teresa Rodríguez refiere fiebre.", "es", "NAME", "Teresa Rodríguez"),
        ("Lo trasladan a Madrid, 28046 Madrid.", "es", "TOWN", "Madrid"),
    ],
)
def test_what_identifies_is_found(text: str, language: str, kind: str, expected: str) -> None:
    assert any(expected in words for words in found(text, language).get(kind, [])), found(text, language)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Parkinson's disease, no fever, ELISA negative, IgG 2.4.", "en"),
        ("A man of 54 years was admitted.", "en"),
        ("Enfermedad de Alzheimer, Hb 13,7 g/dl, PIO normal.", "es"),
        ("Insulin 12-8-14, Paracetamol 1-1-1.", "de"),
    ],
)
def test_clinical_words_are_left_alone(text: str, language: str) -> None:
    assert found(text, language) == {}


def test_types_can_be_left_alone() -> None:
    text = "Mr. John Smith, 93 years, works as a carpenter."
    assert {"NAME", "AGE", "PROFESSION"} <= set(found(text, "en"))
    assert set(found(text, "en", load("rules+lists", keep=["age", "PROFESSION"]))) == {"NAME"}
    with pytest.raises(UserError, match="'AGES' is not a type"):
        load("rules", keep=["AGES"])


def test_a_union_finds_what_a_member_finds() -> None:
    text = "Yesterday Maria Lopez called; see Dr. Okonjo."
    alone = [set(found(text, "en", load(spec)).get("NAME", [])) for spec in ("rules", "lists")]
    assert alone[0] != alone[1]
    united = " · ".join(found(text, "en")["NAME"])
    assert "Okonjo" in united
    assert "Maria Lopez" in united


def test_a_name_found_once_is_found_everywhere_and_misread() -> None:
    text = "Dr. Okonjo came. Later OKONJO left, and 0konjo returned."
    covered = " · ".join(found(text, "en", load("rules"))["NAME"])
    assert all(written in covered for written in ("Okonjo", "OKONJO", "0konjo"))
    assert found("Later Okonjo left.", "en", load("rules")) == {}, "the control: without the title there is nothing"


def test_rows_of_one_patient_and_lines_of_a_text_are_searched_together(tmp_path: Path) -> None:
    notes = ["Seen by Dr. Okonjo.", "Then Okonjo called.", "And Okonjo again."]
    rows = [{"text": t, "lang": "en", "patient": p} for t, p in zip(notes, ("7", "7", "8"), strict=True)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.txt").write_text("\n".join(notes))
    (tmp_path / "c.xyz").write_text("unknown")
    out = tmp_path / "out"
    result = CliRunner().invoke(
        command,
        ["deidentify", str(tmp_path), "--out", str(out), "--language", "en", "--with", "rules", "--style", "tags"],
    )
    assert result.exit_code == 0, result.output
    left = [json.loads(line)["text"] for line in (out / "a.jsonl").read_text().splitlines()]
    assert ["Okonjo" in text for text in left] == [False, False, True], "another patient's row is searched by itself"
    assert "Okonjo" not in (out / "b.txt.jsonl").read_text() if (out / "b.txt.jsonl").exists() else True
    assert "Okonjo" not in (out / "b.jsonl").read_text()
    assert "c.xyz" in result.output, "skipped files are named"


def test_the_preview_shows_details_in_context(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "Seen by Dr. Okonjo on 3 May 2020.", "lang": "en"}) + "\n")
    result = CliRunner().invoke(command, ["deidentify", str(tmp_path / "a.jsonl"), "--preview", "5"])
    assert "Seen by [[Dr. Okonjo]] on 3 May" in result.output
    assert "DATE" in result.output


def test_specs_that_execute_nothing() -> None:
    assert all(map(built_in, (None, "rules", "rules+lists")))
    assert not any(map(built_in, ("model:x", "rules+presidio", "a.py:B")))
    assert [kind_of(label) for label in ("B-PER", "I-LOC", "HOSP", "FECHAS", "O2")] == [
        "NAME", "TOWN", "HOSPITAL", "DATE", "O2",
    ]  # fmt: skip


def test_held_back_notes_share_no_sentence_with_training_notes() -> None:
    import yaml

    from hansa.data.corpora.identified_notes import FOLDER

    for code in LANGUAGES:
        raw = yaml.safe_load((FOLDER / f"{code}.yaml").read_text(encoding="utf-8"))
        assert len(raw["train"]) >= 25
        assert len(raw["held_back"]) >= 6
        assert not set(raw["train"]) & set(raw["held_back"])


def test_notes_annotate_what_they_say() -> None:
    for code in LANGUAGES:
        for held_back in (False, True):
            for note in identified_notes(code, 5, held_back=held_back):
                for item in note["personal"]:
                    words = note["text"][slice(*item["span"])]
                    assert words.strip() == words
                    assert words
                    assert item["type"] != "EMAIL" or "@" in words or "©" in words


def test_a_trained_finder_is_a_member(tmp_path: Path) -> None:
    """A few steps of training: it must load, be united with the rules, and keep to the contract; not be good."""
    rows = [{"text": "Seen by Okonjo.", "lang": "en", "personal": [{"span": [8, 14], "type": "PATIENT"}]}] * 20
    corpus = tmp_path / "own.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "finder"
    report = train_finder(folder, [corpus], "en", FinderSettings(("en",), notes=20, passes=1, vocabulary=400))
    assert set(report["leaks"]) == {"en"}
    united = load(f"rules+model:{folder}")
    assert "Okonjo" in " ".join(found("Seen by Dr. Okonjo.", "en", united)["NAME"])
    long = " ".join(note["text"] for note in identified_notes("en", 12))
    for f in load(f"model:{folder}").find(long, "en"):
        assert 0 <= f.start < f.end <= len(long)
    scores = measure(identified_notes("en", 5, held_back=True), united, "en")
    assert 0 <= scores["documents"]["leak_rate"] <= 1
    with pytest.raises(UserError, match="not empty"):
        train_finder(folder, [], "en", FinderSettings(("en",)))
    with pytest.raises(UserError, match="cannot be loaded"):
        load(f"model:{tmp_path / 'none'}").find("x", "en")
