"""Readers, splits and the cache of tokenised samples."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest

from hansa.core.errors import ConfigError, DataError
from hansa.data import examples
from hansa.data.describe import describe
from hansa.data.examples import Encoded
from hansa.data.readers import READERS, open_text, text_reader
from hansa.data.rows import ParsedRow, Problems
from hansa.data.settings import Data
from hansa.data.source import Source
from hansa.data.splits import rows

WHOLE = Data(valid=0.0, test=0.0)
TEXTS = ["one fever", "two coughs", "drei Tage", "четыре дня"]


def read(path: Any, **source: Any) -> Any:
    problems = Problems()
    return list(rows(Source(train=str(path), **source), "train", WHOLE, problems)), problems


def write_parquet(path: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": TEXTS}), path)


def write_arrow(path: Any) -> None:
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
def test_every_format_gives_the_same_rows(tmp_path: Path, name: Any) -> None:
    WRITERS[name](tmp_path / name)
    found, problems = read(tmp_path / name)
    assert [row["text"] for row in found] == TEXTS
    assert problems.bad == 0
    assert [row["text"] for row in read(tmp_path)[0]] == TEXTS, "a folder reads like its files"


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_numbers_of_classes_in_a_hugging_face_dataset_are_read_by_name(tmp_path: Path, kind: str) -> None:
    import datasets

    features = datasets.Features(
        {
            "words": datasets.Sequence(datasets.Value("string")),
            "ner": datasets.Sequence(datasets.ClassLabel(names=["O", "B-Drug"])),
            "label": datasets.ClassLabel(names=["no", "yes"]),
        }
    )
    held = datasets.Dataset.from_list([{"words": ["take", "aspirin"], "ner": [0, 1], "label": 1}], features=features)
    if kind == "arrow":
        held.save_to_disk(str(tmp_path / "data"))
    else:
        held.to_parquet(str(tmp_path / "data"))
    found, problems = read(tmp_path / "data" if kind == "arrow" else _renamed(tmp_path), tokens="words", tags="ner")
    assert problems.bad == 0
    assert found == [{"tokens": ["take", "aspirin"], "tags": ["O", "B-Drug"], "label": "yes", "text": "take aspirin"}]


def _renamed(folder: Path) -> Path:
    return (folder / "data").rename(folder / "data.parquet")


def test_words_and_tags_have_the_names_that_the_settings_give_them(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"words": ["a", "b"], "iob": ["O", "O"]}\n')
    [row] = read(file, tokens="words", tags="iob")[0]
    assert row["tokens"] == ["a", "b"]
    assert row["tags"] == ["O", "O"]
    _, problems = read(file)
    assert "no field 'text', and no 'tokens' with a list of words (fields: words, iob)" in problems.first[0]


def test_unreadable_rows_are_counted_with_their_place(tmp_path: Path) -> None:
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
def test_damage_and_invalid_utf8_are_reported_in_every_text_format(tmp_path: Path, suffix: Any) -> None:
    cut, foreign, latin = (tmp_path / f"{name}.{suffix}{gz}" for name, gz in (("a", ".gz"), ("b", ".gz"), ("c", "")))
    cut.write_bytes(gzip.compress(b"text\n" * (suffix == "csv") + LINES.encode())[:-12])
    foreign.write_bytes(b"no gzip")
    latin.write_bytes('text\n{"text": "fièvre"}\n'.encode("latin-1"))
    for file, reason in ((cut, "ends early or is damaged"), (foreign, "is damaged"), (latin, "not valid UTF-8")):
        _, problems = read(file)
        assert reason in problems.first[-1], file


def test_unreadable_files_and_folders_are_rejected(tmp_path: Path) -> None:
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


def test_where_and_limit(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"text": f"t{i}", "lang": "fr" if i % 2 else "it"}) + "\n" for i in range(10)))
    assert len(read(file, where={"lang": "fr"})[0]) == 5
    assert len(read(file, limit=3)[0]) == 3


def test_splits_are_disjoint_and_complete(tmp_path: Path) -> None:
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


def test_samples_are_tokenised_again_only_if_the_content_changes(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(LINES, encoding="utf-8")
    calls = []

    def encode(some: Any, source: Any) -> Any:
        calls.append(len(some))
        return [Encoded([len(row["text"])]) for row in some]

    def load(fingerprint: str = "x") -> Any:
        return examples.load([Source(train=str(file))], "train", WHOLE, ["fr"], encode, fingerprint)

    first, again = load(), load()
    assert calls == [4]
    np.testing.assert_array_equal(first.ids, again.ids)
    file.write_text(LINES + LINES, encoding="utf-8")
    assert len(load()) == 8
    load("another tokenizer")
    assert calls == [4, 8, 8]


def test_several_sources_keep_their_groups(tmp_path: Path) -> None:
    for name in ("fr", "it"):
        (tmp_path / f"{name}.txt").write_text("a\nbb\n")
    sources = [Source(train=str(tmp_path / f"{n}.txt")) for n in ("fr", "it", "fr")]
    held = examples.load(
        sources, "train", WHOLE, ["fr", "it", "fr"], lambda some, s: [Encoded([1] * len(r["text"])) for r in some], "y"
    )
    assert held.counts() == {"fr": 4, "it": 2}
    assert [len(held[i]) for i in range(6)] == [1, 2, 1, 2, 1, 2]


# ── readers from outside ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the registry after the test."""
    monkeypatch.setattr(READERS, "entries", dict(READERS.entries))


def every_second(file: Path, source: Source) -> Iterator[ParsedRow]:
    with open_text(file) as stream:
        for number, line in enumerate(stream, 1):
            yield (number, {source.text: line.strip()}, "") if number % 2 else (number, None, "an even line")


@pytest.mark.usefixtures("readers")
def test_a_registered_reader_reads_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "a.half").write_text("one\ntwo\nthree\n")
    with pytest.raises(DataError, match=r"\.half is not readable; readable are \.jsonl"):
        read(tmp_path / "a.half")
    READERS.register(".half")(every_second)
    for file in (tmp_path / "a.half", tmp_path):
        found, problems = read(file)
        assert [(row["text"], row.place) for row in found] == [
            ("one", f"{tmp_path / 'a.half'}:1"),
            ("three", f"{tmp_path / 'a.half'}:3"),
        ]
        assert problems.first == [f"{tmp_path / 'a.half'}:2: an even line"]
    (tmp_path / "b.half.gz").write_bytes(gzip.compress(b"packed\n"))
    assert [row["text"] for row in read(tmp_path / "b.half.gz")[0]] == ["packed"]


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize("suffix", [".jsonl", ".half"])
def test_a_suffix_has_one_reader(suffix: str) -> None:
    READERS.register(".half")(every_second)
    READERS.register(".half")(every_second)  # the same module may run again

    def other(stream: TextIO, source: Source) -> Iterator[ParsedRow]:
        yield 1, {"text": "x"}, ""

    with pytest.raises(ConfigError, match=rf"the reader for '\{suffix}' files is registered twice, by .*other: remove"):
        READERS.register(suffix)(text_reader(other))


@pytest.mark.parametrize("suffix", ["xml", ".XML", ".a.b", "", ".gz", ".ann"])
def test_an_invalid_suffix_is_rejected(suffix: str) -> None:
    with pytest.raises(ConfigError, match="cannot be registered as a file suffix"):
        READERS.register(suffix)(every_second)


def failing(file: Path, source: Source) -> Iterator[ParsedRow]:
    yield 1, {"text": "one"}, ""
    raise ValueError("Maria Rossi")


def malformed(file: Path, source: Source) -> Iterator[ParsedRow]:
    yield {"text": "one"}  # type: ignore[misc]


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize(("reader", "rows_before"), [(failing, 1), (malformed, 0)])
def test_a_reader_that_fails_is_named_without_quoting_the_data(
    tmp_path: Path, reader: Callable[[Path, Source], Iterator[ParsedRow]], rows_before: int
) -> None:
    READERS.register(".half")(reader)
    (tmp_path / "a.half").touch()
    with pytest.raises(DataError) as error:
        read(tmp_path / "a.half")
    assert f"{reader.__name__} failed after row {rows_before}: ValueError" in str(error.value)
    assert "Maria" not in str(error.value)


@pytest.mark.usefixtures("readers")
def test_samples_are_cached_for_each_reader(tmp_path: Path) -> None:
    (tmp_path / "a.half").write_text("one\ntwo\n")

    def load() -> int:
        data = WHOLE.model_copy(update={"max_bad_rows": 0.5})
        source = Source(train=str(tmp_path / "a.half"))
        return len(examples.load([source], "train", data, ["x"], lambda some, s: [Encoded([1]) for _ in some], "z"))

    READERS.register(".half")(every_second)
    assert load() == 1
    del READERS.entries[".half"]

    @READERS.register(".half")
    def all_lines(file: Path, source: Source) -> Iterator[ParsedRow]:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            yield number, {"text": line}, ""

    assert load() == 2


def test_describe(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(
        '{"text": "a fever", "label": "x", "lang": "en"}\n{"text": "жар", "label": "y", "lang": "ru"}\nbad\n'
    )
    found = describe(file, "text", "label")
    assert found["samples"] == 2
    assert found["bad_rows"] == 1
    assert found["labels"] == {"x": 1, "y": 1}
    assert found["scripts"] == {"Latin": 1, "Cyrillic": 1}
