"""Parallel text: every format gives the same pairs, and every problem is reported with its place."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hansa.config.file import parse
from hansa.core.errors import ConfigError, DataError
from hansa.data.rows import Problems
from hansa.data.settings import Data
from hansa.data.source import Source
from hansa.data.splits import rows

PAIRS = [("Guten Tag", "Good day"), ("Datei öffnen", "Open file"), ('Er sagte "ja"', 'He said "yes"')]
WHOLE = Data(valid=0.0, test=0.0)
LANGUAGES: dict[str, Any] = {"language": "de", "target_language": "en"}

TMX = """<?xml version="1.0" encoding="UTF-8"?>
<tmx version="1.4"><header/><body>
{}
</body></tmx>"""
UNIT = '<tu><tuv xml:lang="de-DE"><seg>{}</seg></tuv><tuv xml:lang="EN"><seg>{}</seg></tuv></tu>'

CATALOGUE = """msgid ""
msgstr "Language: de\\nContent-Type: text/plain; charset=UTF-8\\n"

msgid "Good day"
msgstr "Guten Tag"

#, fuzzy
msgid "Close file"
msgstr "Datei öffnen"

msgid "Not translated"
msgstr ""

msgid "Open file"
msgid_plural "Open files"
msgstr[0] "Datei öffnen"
msgstr[1] "Dateien öffnen"
"""


def aligned(file: Path, translations: Path) -> Source:
    return Source.model_validate({"train": str(file), "aligned": str(translations)})


def read(source: Any, problems: Any = None) -> Any:
    problems = problems or Problems()
    found = [(row[source.text], row[source.target]) for row in rows(source, "train", WHOLE, problems)]
    return found, problems


def test_every_format_gives_the_same_pairs(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"src": s, "tgt": t}) + "\n" for s, t in PAIRS))
    with gzip.open(tmp_path / "a.de.gz", "wt", encoding="utf-8") as stream:
        stream.writelines(s + "\n" for s, _ in PAIRS)
    (tmp_path / "a.en").write_text("".join(t + "\n" for _, t in PAIRS))
    (tmp_path / "plain.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS))
    (tmp_path / "a.tmx").write_text(TMX.format("\n".join(UNIT.format(s, t) for s, t in PAIRS)))
    sources = {
        "jsonl": Source(train=str(tmp_path / "a.jsonl"), text="src", target="tgt"),
        "aligned": aligned(tmp_path / "a.de.gz", tmp_path / "a.en"),
        "tsv": Source.model_validate({"train": str(tmp_path / "plain.tsv"), "text": 1, "target": 2}),
        "tmx": Source(train=str(tmp_path / "a.tmx"), **LANGUAGES),
    }
    for name, source in sources.items():
        found, problems = read(source)
        assert found == PAIRS, name
        assert problems.bad == 0


def test_a_catalogue_is_read_in_both_directions(tmp_path: Path) -> None:
    file = tmp_path / "de.po"
    file.write_text(CATALOGUE)
    found, problems = read(Source(train=str(file), **LANGUAGES))
    assert found == [("Guten Tag", "Good day"), ("Datei öffnen", "Open file"), ("Dateien öffnen", "Open files")]
    backwards, _ = read(Source(train=str(file), language="en", target_language="de"))
    assert backwards == [(t, s) for s, t in found]
    assert problems.bad == 0, "fuzzy and untranslated entries are not counted as bad"
    _, wrong = read(Source(train=str(file), language="fr", target_language="en"))
    assert wrong.first == [f"{file}:1: the catalogue's language is 'de', but the silo translates fr to en"]


def test_files_of_unequal_length_are_rejected_with_both_counts(tmp_path: Path) -> None:
    (tmp_path / "a.de").write_text("eins\nzwei\ndrei\n")
    (tmp_path / "a.en").write_text("one\ntwo\n")
    for left, right, counts in (("a.de", "a.en", ("3", "2")), ("a.en", "a.de", ("2", "3"))):
        source = aligned(tmp_path / left, tmp_path / right)
        with pytest.raises(DataError, match=f"has {counts[0]} lines, but .* has {counts[1]}: line n of the one"):
            read(source)


def test_empty_texts_and_missing_languages_are_counted_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "a.de").write_text("eins\n\ndrei\n")
    (tmp_path / "a.en").write_text("one\ntwo\nthree\n")
    found, problems = read(aligned(tmp_path / "a.de", tmp_path / "a.en"))
    assert len(found) == 2
    assert problems.first == [f"{tmp_path / 'a.de'}:2: field 'text' is empty or not text"]
    (tmp_path / "a.tmx").write_text(TMX.format(UNIT.format("Guten Tag", "Good day")))
    _, problems = read(Source(train=str(tmp_path / "a.tmx"), language="de", target_language="fr"))
    assert problems.first == [f"{tmp_path / 'a.tmx'}:1: it has no text in 'fr' (only in EN, de-DE)"]
    (tmp_path / "b.tmx").write_text("<tmx><body><tu>")
    _, problems = read(Source(train=str(tmp_path / "b.tmx"), **LANGUAGES))
    assert "not valid XML" in problems.first[0]


def test_rows_with_another_language_code_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"text": "Bonjour", "target": "Hello", "src_lang": "de", "tgt_lang": "fr"}) + "\n")
    _, problems = read(Source(train=str(file), **LANGUAGES))
    assert problems.first == [f"{file}:1: its 'tgt_lang' is fr, but the silo's target language is en"]


def test_an_aligned_split_needs_both_files(tmp_path: Path) -> None:
    silo = {"train": "a.de", "valid": "b.de", "aligned": "a.en"}
    with pytest.raises(
        ConfigError, match=r"'valid' is given for one language only: name both 'valid' and 'aligned\.valid'"
    ):
        parse({"silos": {"a": silo}})


def test_scores_of_translation_are_grouped_by_silo_and_others_by_language() -> None:
    assert Source(train="x", language="de").group("lyon") == "de"
    assert Source(train="x", **LANGUAGES).group("news") == "news"
    assert Source(train="x", domain="php", **LANGUAGES).group("news") == "php"
    assert Source(train="x").group("lyon") == "lyon"
