"""The import as a whole: languages, counts, workers, output files, errors."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hansa.core.errors import DataError, UserError
from hansa.data.corpora import clinical_notes as generator
from hansa.data.importing import Settings, import_text, read_key
from hansa.data.importing.sentences import WINDOW, other_language, splitter
from tests.data.importing.texts import ONE, TWO, again, italian, reasons, run, texts


def test_a_document_in_another_language_is_dropped_by_default(tmp_path: Path) -> None:
    english = "The patient was admitted to hospital with chest pain and shortness of breath."
    report, splits = run(tmp_path, {"a.txt": f"{ONE} {TWO}", "b.txt": english})
    assert english not in texts(splits)
    [place] = reasons(report)["in another language"]["places"]
    assert "b.txt (en" in place
    assert report["documents"] == {"read": 2, "kept": 1}
    _, kept = again(tmp_path / "in", tmp_path / "all", keep_other_languages=True)
    assert english in texts(kept)


@pytest.mark.parametrize("language", generator.LANGUAGES)
def test_no_document_is_wrongly_detected_as_another_language(language: Any) -> None:
    notes = [note["text"] for note in generator.notes(language, 60, seed=4)]
    assert [other_language(text, language) for text in notes] == [""] * 60
    other = "de" if language != "de" else "fr"
    assert all(other_language(text, other) for text in notes)


def test_a_language_without_splitter_rules_uses_general_rules(tmp_path: Path) -> None:
    report, splits = run(tmp_path, {"a.txt": f"{ONE} {TWO}"}, "xx")
    assert sorted(texts(splits)) == sorted([ONE, TWO])
    assert "no rules for 'xx'" in report["notes"][0]
    assert "no document was checked" in report["notes"][1]


def test_every_dropped_document_is_counted(tmp_path: Path) -> None:
    content = {f"{n}.txt": text for n, text in enumerate([*italian(60), *italian(10), "12345 678 90. 1.", "ok.", ""])}
    report, splits = run(tmp_path, content)
    lost = sum(one["count"] for one in report["dropped"]["documents"])
    assert report["documents"]["read"] == 72
    assert report["documents"]["kept"] + lost == 72
    dropped = sum(one["count"] for one in report["dropped"]["sentences"])
    assert report["sentences"]["kept"] == len(texts(splits)) == report["sentences"]["read"] - dropped
    assert reasons(report)["near-duplicate of an earlier document"]["count"] == 10


def test_unsuitable_sentences_are_counted_by_reason(tmp_path: Path) -> None:
    many = "parola " * 200
    report, splits = run(tmp_path, {"a.txt": f"Sì.\n\n{ONE}\n\n+39 011 555 1234 / 22-10-2020 (12.5).\n\n{many}fine.\n"})
    assert texts(splits) == [ONE]
    expected = {"too short": 1, "too long": 1, "too few letters": 1}
    assert {reason: one["count"] for reason, one in reasons(report).items()} == expected


@pytest.mark.parametrize("language", ["it", "en", "ru"])
def test_windows_do_not_change_the_sentences_of_a_long_paragraph(language: Any) -> None:
    from sentencex import segment

    text = " ".join(note["text"] for note in generator.notes(language, 40, seed=2))
    assert len(text) > 5 * WINDOW
    assert splitter(language)(text) == [sentence.strip() for sentence in segment(language, text)]


def test_any_number_of_workers_gives_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {f"{n}.jsonl": "".join(json.dumps({"text": t}) + "\n" for t in italian(400, seed=n)) for n in range(2)}
    monkeypatch.setattr("hansa.data.importing.BATCH", 20_000)
    one, _ = run(tmp_path, content)
    two, _ = again(tmp_path / "in", tmp_path / "two", workers=2)
    for side in ("train", "valid", "test"):
        assert (tmp_path / f"two/it.{side}.jsonl").read_bytes() == (tmp_path / f"out/it.{side}.jsonl").read_bytes()
    assert {k: v for k, v in one.items() if "second" not in k} == {k: v for k, v in two.items() if "second" not in k}


def test_gzipped_output_has_the_same_lines(tmp_path: Path) -> None:
    run(tmp_path, {"a.txt": f"{ONE} {TWO}"})
    import_text([tmp_path / "in"], tmp_path / "packed", Settings("it", memory=2, gzip=True))
    for side in ("train", "valid", "test"):
        packed = (tmp_path / f"packed/it.{side}.jsonl.gz").read_bytes()
        assert gzip.decompress(packed) == (tmp_path / f"out/it.{side}.jsonl").read_bytes()


@pytest.mark.parametrize("existed", [False, True])
def test_an_interrupted_import_leaves_nothing(tmp_path: Path, existed: Any) -> None:
    (tmp_path / "a.txt").write_text(ONE)
    out = tmp_path / "out"
    if existed:
        out.mkdir()

    def interrupt(done: Any, total: Any) -> None:
        assert list(out.iterdir()), "drafts were being written"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_text([tmp_path / "a.txt"], out, Settings("it", memory=2), interrupt)
    assert out.exists() == existed
    assert not existed or not list(out.iterdir())


def test_progress_ends_at_the_size_of_the_input(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("\n".join(italian(700, seed=ord(name))))
    steps = []
    import_text(
        [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "out", Settings("it", memory=2), lambda *s: steps.append(s)
    )
    total = sum((tmp_path / f"{name}.txt").stat().st_size for name in "ab")
    assert steps[-1] == (total, total)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def test_invalid_settings_are_rejected_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(ONE)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "key").write_text(" \n")
    source, out = [tmp_path / "a.txt"], tmp_path / "out"
    for settings_, out_, match in (
        (Settings("it"), tmp_path / "full", "not empty"),
        (Settings("it"), tmp_path / "a.txt", "this is a file"),
        (Settings("it", kind="htm"), out, "did you mean 'html'"),
        (Settings("it", documents="line"), out, "did you mean 'lines'"),
        (Settings("../it"), out, "not a language code"),
        (Settings("it", valid=0.5, test=0.5), out, "leave no training data"),
        (Settings("it", deidentify="rules"), out, "--key-file"),
    ):
        with pytest.raises(UserError, match=match):
            import_text(source, out_, settings_)
    with pytest.raises(UserError, match="is inside"):
        import_text([tmp_path], out, Settings("it"))
    with pytest.raises(DataError, match="no such file"):
        import_text([tmp_path / "no"], out, Settings("it"))
    for name in ("key", "no-key"):
        with pytest.raises(UserError, match="contains a secret"):
            read_key(tmp_path / name)
    assert not out.exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(
        UserError, match=r"'sentencex', which is not installed; install it with: pip install 'hansa\[prep"
    ):
        run(tmp_path, {"a.txt": ONE})
    assert not (tmp_path / "out").exists()


def test_personal_details_are_replaced_before_anything_else(tmp_path: Path) -> None:
    said = "Contattare la sig.ra Giulia Ferraro al numero 079 3978799 oppure a giulia.ferraro12@example.com."
    report, splits = run(tmp_path, {"a.txt": said}, deidentify="rules", key="secret", style="tags")
    assert report["personal_details_replaced"] >= 1
    assert not any("3978799" in text for text in texts(splits))
    _, plain = again(tmp_path / "in", tmp_path / "plain")
    assert any("3978799" in text for text in texts(plain))


def test_the_command_prints_a_report_and_one_line_errors(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"{ONE} {TWO}")
    command = [sys.executable, "-m", "hansa", "data", "import", str(tmp_path / "a.txt"), "--language", "it"]
    command += ["--out", str(tmp_path / "out"), "--memory", "2", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads((tmp_path / "out/report.json").read_text())
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert len(refused.stderr.strip().splitlines()) == 1
