"""`hansa check` on relations: it counts what a run would train on, without marking every pair in a copy of the text."""

import json
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hansa.config.file import parse
from hansa.core.errors import DataError
from hansa.core.seeds import stream
from hansa.data import examples
from hansa.data.rows import Row
from hansa.data.source import Source
from hansa.models.tokenizer import byte_tokenizer
from hansa.preview.annotation import SourceReader
from hansa.tasks import classify
from hansa.tasks.base import ANY_LENGTH, Vocabulary
from hansa.tasks.classify import Classify, marked_pairs

LABELS = ("NONE", "of")
TASK = Classify(LABELS, marked_pairs, "NONE")


def document(entities: int, words: int, seed: int = 0) -> dict[str, Any]:
    """A text of short words, some of which are entities; neighbours are related."""
    chosen = sorted(stream(seed).choice(words, entities, replace=False).tolist())
    spans = [{"span": [3 * place, 3 * place + 2], "type": "A"} for place in chosen]
    near = [i for i in range(entities - 1) if chosen[i + 1] - chosen[i] < 5]
    related = [{"head": i, "tail": i + 1, "type": "of"} for i in near]
    return {"text": "ab " * words, "entities": spans, "relations": related}


def write(file: Path, documents: list[dict[str, Any]]) -> Source:
    file.write_text("".join(json.dumps(one) + "\n" for one in documents))
    return Source(train=str(file))


def reader(source: Source, **data: Any) -> SourceReader:
    settings = {"valid": 0.0, "test": 0.0, "max_bad_rows": 0.5, "max_length": 60, **data}
    return SourceReader(
        parse(
            {
                "name": "x",
                "task": {"name": "relation", "labels": ["of"]},
                "tokenizer": {"kind": "bytes"},
                "data": settings,
                "silos": {"a": source.train},
            }
        )
    )


def run(source: Source, check: SourceReader) -> examples.Examples:
    """What a silo prepares for a run."""
    vocabulary = check.vocabulary
    encode = lambda some, s: check.task.encode(some, s, vocabulary)  # noqa: E731
    return examples.load([source], "train", check.federation.data, ["x"], encode, "f")


def test_check_and_run_agree_on_samples_and_on_what_is_left_out(tmp_path: Path) -> None:
    flawed = document(3, 9) | {"relations": [{"head": 0, "tail": 0, "type": "of"}]}
    unlisted = document(3, 9) | {"relations": [{"head": 0, "tail": 1, "type": "near"}]}
    documents = [document(n, 60, n) for n in (2, 5, 14)] + [flawed, unlisted]
    source = write(tmp_path / "rows.jsonl", documents)
    check = reader(source, max_bad_rows=1.0)
    held, found = run(source, check), check.read(source)
    assert found.count == len(held) > 50
    assert found.texts == 5
    assert found.problems == [f"train: {line}" for line in held.problems]
    assert any("derived" in line for line in found.problems), "some pairs are too far apart"


def test_many_derived_pairs_are_estimated_and_annotated_pairs_are_not(tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", [document(30, 100, seed) for seed in range(3)])
    check = reader(source)
    held, found = run(source, check), check.read(source)
    [line] = found.problems
    assert classify.ESTIMATED in line
    left_out = sum(int(line.split()[0]) for line in held.problems)
    assert len(held) + left_out == 3 * 30 * 29
    assert abs(found.count - len(held)) < 0.2 * len(held)
    assert abs(int(line.split()[1]) - left_out) < 0.2 * left_out
    assert int(line.split()[1]) + found.count == 3 * 30 * 29


def test_an_annotated_pair_that_does_not_fit_is_found_among_thousands(tmp_path: Path) -> None:
    one = document(60, 300)
    one["relations"].append({"head": 0, "tail": 59, "type": "of"})
    source = write(tmp_path / "rows.jsonl", [one])
    with pytest.raises(DataError, match=r"1 of 1 lines cannot be used, first .* too far apart"):
        reader(source).read(source)


def test_a_document_with_727_000_pairs_takes_little_memory() -> None:
    row = Row(document(853, 9000))  # marked in 27,000 characters each, they would be 20 GB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found, problems = TASK.examine([row], Source(train="x"), Vocabulary(byte_tokenizer(), ANY_LENGTH, LABELS))
    assert (found, problems) == (853 * 852, [])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kB"


def test_a_run_marks_pairs_a_few_at_a_time_whatever_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary(byte_tokenizer(), 40, LABELS)
    documents = [Row(document(n, 30, n)) for n in (4, 9, 2)]
    whole = list(TASK.encode(documents, Source(train="x"), vocabulary))
    kinds = Counter(type(one).__name__ for one in whole)
    assert kinds["Encoded"] > 20
    assert kinds["Unusable"] > 5
    for chunk, characters in ((1, 10**6), (7, 10**6), (1000, 100)):
        monkeypatch.setattr(classify, "CHUNK", chunk)
        monkeypatch.setattr(classify, "CHARACTERS", characters)
        assert list(TASK.encode(documents, Source(train="x"), vocabulary)) == whole
