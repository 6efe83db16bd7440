"""De-identification of files and of rows, with the built-in rules or another finder."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hansa.cli.data import data as command
from hansa.core.errors import UserError
from hansa.data.cache import cache_folder
from hansa.data.corpora import clinical_notes as generator
from hansa.data.deidentification.deidentify import Deidentifier, Finding, deidentify, load
from hansa.data.deidentification.keys import KEY_NAME
from hansa.data.rows import Problems
from hansa.data.settings import Data
from hansa.data.source import Source
from hansa.data.splits import rows

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


def test_another_finder_is_loaded_by_name(tmp_path: Path) -> None:
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
        f"{file}:Needy": "cannot be instantiated without arguments",
        f"{file}:Engin": "there is no 'Engin'",
        f"{tmp_path}/no.py:Engine": "there is no file",
        "no_such_package:X": "cannot be imported",
        "presidio_analyzer_not_there:X": r"pip install 'hansa\[presidio\]'",
        "rule": "neither 'rules' nor 'lists'",
    }.items():
        with pytest.raises(UserError, match=message):
            load(spec)


def test_a_finder_that_fails_is_named_with_the_language(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "class Bad:\n    def find(self, text, language):\n        raise ValueError('no model')"
    )
    with pytest.raises(UserError, match=r"bad.py:Bad' failed on a text in language 'it': ValueError \(bad.py:3\)"):
        load(f"{tmp_path}/bad.py:Bad").find("Ugo", "it")


def test_fields_that_are_copied_unchanged_are_named(tmp_path: Path) -> None:
    file = tmp_path / "it.jsonl"
    file.write_text(
        json.dumps({"text": "Il paziente sta bene.", "lang": "it", "patient": "Mario Rossi", "age": 5}) + "\n"
    )
    report = json.loads(run(file, "--out", tmp_path / "out", "--format", "json").stdout)
    assert report["copied_fields"] == {"patient": 1}
    assert "unread: the fields patient" in run(file, "--out", tmp_path / "out").stdout.replace("\n", " ")


def test_scores_on_tokens_use_the_text_joined_from_them(tmp_path: Path) -> None:
    row = {"text": "Visto dal   dott. Rossi", "tokens": ["Visto", "dal", "dott.", "Rossi"], "lang": "it"}
    (tmp_path / "it.jsonl").write_text(json.dumps(row | {"tags": ["O", "O", "O", "B-NAME"]}) + "\n")
    scores = json.loads(run(tmp_path / "it.jsonl", "--measure", "--format", "json").stdout)
    assert scores["languages"]["it"]["overall"]["recall"] == 1.0


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(command, ["deidentify", *map(str, arguments)])


def test_the_command_writes_files_and_never_prints_its_key(tmp_path: Path) -> None:
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
    assert not (out / KEY_NAME).exists(), "the key never lies beside the text"
    key = cache_folder() / KEY_NAME
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_text().strip() not in result.output
    written = (out / "it.jsonl").read_text(encoding="utf-8")
    assert run(file, "--out", out).exit_code == 0
    assert (out / "it.jsonl").read_text(encoding="utf-8") == written, "the key is created once"
    (tmp_path / "other-key").write_text("another secret")
    assert run(file, "--out", tmp_path / "other", "--key-file", tmp_path / "other-key").exit_code == 0
    assert (tmp_path / "other" / "it.jsonl").read_text(encoding="utf-8") != written
    (out / "key").write_text("a secret")
    assert "lies in the output folder" in str(run(file, "--out", out, "--key-file", out / "key").exception)
    assert run(file, "--out", tmp_path / "third", "--key-file", key).exit_code == 0
    assert (tmp_path / "third" / "it.jsonl").read_text(encoding="utf-8") == written
    assert not (tmp_path / "third" / KEY_NAME).exists()


def test_the_command_rejects_invalid_arguments(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "Sig. Ugo Foschi"}\n')
    for arguments, message in (
        ([file, "--out", tmp_path / "o"], "no 'lang'; name its language"),
        ([file, "--out", tmp_path, "--language", "it"], "would overwrite it"),
        ([file, "--language", "it"], "say where to write"),
        ([file, "--out", tmp_path / "o", "--language", "it", "--key-file", tmp_path / "no"], "no such key file"),
        ([file, "--measure", "--language", "it"], "no row can be scored"),
        ([file, "--out", tmp_path / "o", "--style", "stars"], "style 'stars' is not known"),
    ):
        result = run(*arguments)
        assert isinstance(result.exception, UserError), result.output
        assert message in str(result.exception)
    assert file.read_text() == '{"text": "Sig. Ugo Foschi"}\n'
    assert not (tmp_path / "o" / "a.jsonl").exists()
    assert not (tmp_path / "o" / "a.jsonl.part").exists()


def test_scores_on_annotated_files(tmp_path: Path) -> None:
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


# ── while a silo reads its data ────────────────────────────────────────────────────────────────────────────────────


def test_rows_are_deidentified_while_they_are_read(tmp_path: Path) -> None:
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
            assert note["text"][slice(*before["span"])] == row["text"][slice(*after["span"])], "offsets are adjusted"
    again = list(rows(source, "train", plain.model_copy(update={"deidentify": "rules"}), Problems()))
    assert read == again, "the key is kept between runs"
    untouched = list(rows(source, "train", plain, Problems()))
    assert [r["text"] for r in untouched] == [n["text"] for n in notes]


def test_answers_second_texts_and_messages_are_deidentified_too(tmp_path: Path) -> None:
    """A task trains on these fields beside the text: what stands there would be learned."""
    note = next(n for n in generator.notes("it", 30, seed=5) if n["personal"])
    details = [note["text"][slice(*detail["span"])] for detail in note["personal"]]
    turns = [{"role": role, "content": note["text"]} for role in ("user", "assistant")]
    found = [
        {"text": "Domanda", "target": note["text"], "second": note["text"]},
        {"messages": turns, "lang": "it"},
    ]
    file = tmp_path / "it.jsonl"
    file.write_text("".join(json.dumps(n, ensure_ascii=False) + "\n" for n in found), encoding="utf-8")
    source = Source(train=str(file), language="it")
    plain = Data(valid=0.0, test=0.0)
    assert all(d in str(row) for row in rows(source, "train", plain, Problems()) for d in details)
    problems = Problems()
    read = list(rows(source, "train", plain.model_copy(update={"deidentify": "rules"}), problems))
    assert not problems.bad
    assert len(read) == 2
    assert not [d for row in read for d in details if d in str(row)]
    assert read[0]["target"] == read[0]["second"] == read[1]["messages"][1]["content"], "with the same surrogates"
    assert [m["role"] for m in read[1]["messages"]] == ["user", "assistant"]


def test_tokenised_rows_are_reported_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"tokens": ["Mr", "Smith"], "tags": ["O", "O"], "lang": "en"}))
    problems = Problems()
    data = Data(valid=0.0, test=0.0, deidentify="rules")
    assert list(rows(Source(train=str(file)), "train", data, problems)) == []
    assert "split into tokens" in problems.first[0]


FAILING = """
class Fragile:
    def find(self, text, language):
        if "borkelmund" in text:
            raise KeyError(text)
        return []
"""


def test_a_row_on_which_the_finder_fails_is_left_out_and_not_quoted(tmp_path: Path) -> None:
    """Without the `except` in `deidentified`, the first such row ends the reading, and its text is in the error."""
    (tmp_path / "fragile.py").write_text(FAILING)
    texts = ["Febbre da ieri", "borkelmund tossisce", "Tossisce ancora"]
    file = tmp_path / "notes.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    source, problems = Source(train=str(file), language="it"), Problems()
    data = Data(valid=0.0, test=0.0, deidentify=f"{tmp_path}/fragile.py:Fragile")
    assert [row["text"] for row in rows(source, "train", data, problems)] == [texts[0], texts[2]]
    assert problems.bad == 1
    assert "borkelmund" not in " ".join(problems.summary())
    finder = load(f"{tmp_path}/fragile.py:Fragile")
    with pytest.raises(KeyError, match="borkelmund"):  # the control: the finder's own error has the text
        finder.members[0].finder.find(texts[1], "it")  # type: ignore[attr-defined]


def test_a_row_in_a_language_without_rules_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "notes.jsonl"
    lines = [{"text": "Il paziente tossisce"}, {"text": "qaStaH nuq", "lang": "tlh"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    problems = Problems()
    source, data = Source(train=str(file)), Data(valid=0.0, test=0.0, deidentify="rules")
    found = list(rows(source.model_copy(update={"language": "it"}), "train", data, problems))
    assert [row["text"] for row in found] == ["Il paziente tossisce"]
    assert problems.bad == 1
