"""Duplicates and splits: no sentence twice, no sentence in two splits, also if the tables are full."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.data.importing.duplicates import Fingerprints, NearDuplicates, signatures
from hansa.data.importing.sentences import splitter
from tests.data.importing.texts import again, italian, reasons, run, texts


def test_no_sentence_is_in_two_splits_or_repeated(tmp_path: Path) -> None:
    notes = italian(600)
    mixed = "".join(json.dumps({"text": t if n % 9 else t.upper()}) + "\n" for n, t in enumerate(notes))
    report, splits = run(tmp_path, {"a.jsonl": mixed}, valid=0.2, test=0.3)
    said = ["".join("0" if c.isdigit() else c for c in text.lower()) for text in texts(splits)]
    assert len(said) == len(set(said))
    raw = [s for text in notes for s in splitter("it")(text)]
    assert len(set(raw)) < len(raw), "the input contains duplicates"
    owners = [{row["doc"] for row in side} for side in splits.values()]
    assert not owners[0] & (owners[1] | owners[2])
    assert report["splits"]["test"]["documents"] == pytest.approx(180, abs=50)
    assert report["splits"]["valid"]["documents"] == pytest.approx(120, abs=40)


def test_the_split_of_a_document_depends_on_its_content_alone(tmp_path: Path) -> None:
    notes = italian(80)
    _, splits = run(tmp_path, {f"{n:03}.txt": text for n, text in enumerate(notes)}, test=0.4)
    (tmp_path / "other").mkdir()
    _, turned = run(tmp_path / "other", {f"{n:03}.txt": text for n, text in enumerate(reversed(notes))}, test=0.4)

    def split_of(found: Any) -> Any:
        return {row["doc"]: side for side, rows in found.items() for row in rows}

    first, second = split_of(splits), split_of(turned)
    assert len(first) > 70
    assert all(second[doc] == side for doc, side in first.items() if doc in second)


def test_near_duplicates_are_dropped_and_other_documents_are_kept(tmp_path: Path) -> None:
    long = " ".join(italian(6))
    changed = long.replace(long.split()[20], "sostituito", 1)
    report, _ = run(tmp_path, {"a.txt": long, "b.txt": changed, "c.txt": " ".join(italian(6, seed=8))})
    assert reasons(report)["near-duplicate of an earlier document"]["places"] == [str(tmp_path / "in/b.txt")]
    off, _ = again(tmp_path / "in", tmp_path / "off", near=0.0)
    assert off["documents"]["kept"] == 3, "with near=0 the changed sentence of the second document is kept"


@given(st.integers(0, 60), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_near_duplicates_by_the_true_jaccard_similarity(changed: Any, seed: Any) -> None:
    rng = np.random.default_rng(seed)
    words = [f"w{n}" for n in rng.integers(0, 10**9, 120)]
    other = [f"v{n}" if n < changed else word for n, word in enumerate(words)]
    marks = signatures([" ".join(words).encode(), " ".join(other).encode()], "it")
    near = NearDuplicates(0.1, 0.8)
    assert not near.seen(marks.marks[0], marks.bands[0].tolist())
    common = 118 - changed
    similarity = common / (2 * 118 - common)
    found = near.seen(marks.marks[1], marks.bands[1].tolist())
    if similarity > 0.97:
        assert found
    if similarity < 0.55:
        assert not found


@given(st.lists(st.lists(st.integers(1, 300), max_size=40), max_size=8))
def test_the_table_of_fingerprints_is_a_set(batches: Any) -> None:
    table, seen = Fingerprints(0.003), set()  # 393 slots: small enough for collisions
    for batch in batches:
        prints = np.array([n * 0x9E3779B97F4A7C15 % 2**64 for n in batch], np.uint64)
        expected = [n not in seen and n not in batch[:i] for i, n in enumerate(batch)]
        assert table.fresh(prints).tolist() == expected
        seen.update(batch)
    assert table.count == len(seen)
    assert not table.full


def test_a_full_table_is_reported_and_the_splits_stay_disjoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hansa.data.importing import writing

    monkeypatch.setattr(writing, "Fingerprints", lambda megabytes: Fingerprints(0.01))
    monkeypatch.setattr("hansa.data.importing.BATCH", 4000)
    content = "".join(json.dumps({"text": text}) + "\n" for text in italian(600))
    report, splits = run(tmp_path, {"a.jsonl": content}, valid=0.2, test=0.3)
    assert any("table of sentences was full" in note for note in report["notes"])
    assert (
        reasons(report)["assigned to valid or test after the table of sentences was full (raise --memory)"]["count"]
        > 10
    )
    held_out = {row["text"].lower() for side in ("valid", "test") for row in splits[side]}
    assert held_out
    assert not held_out & {row["text"].lower() for row in splits["train"]}
