"""Samples are prepared chunk by chunk: they equal those prepared in memory, survive crashes, need bounded memory."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.core.errors import DataError
from hansa.data import chunks, sample_files
from hansa.data.examples import Encoded, Examples, Unusable, load, note_sample
from hansa.data.rows import BAD_ANNOTATION, Problems, Row
from hansa.data.settings import Data
from hansa.data.source import Part, Source
from hansa.data.splits import rows

ALLOWED = Data(valid=0.2, test=0.2, max_bad_rows=1.0)


def encode(some: list[Row], source: Source) -> Iterator[Encoded | Unusable]:
    """Windows of three letters; every third row is one sample of its own, and rows with an x cannot be used."""
    for number, row in enumerate(some):
        text = row[source.text]
        if "x" in text:
            yield Unusable(row.place, "it has an x", derived="xx" in text, kind=BAD_ANNOTATION)
            continue
        letters = [ord(letter) for letter in text]
        if len(text) % 3 == 0:
            yield Encoded(letters, len(text), text=text)
            continue
        for start in range(0, len(letters), 3):
            piece = letters[start : start + 3]
            yield Encoded(piece, start, [2 * x for x in piece], text[start:], row=number)


def in_memory(source: Source, split: str, data: Data, unit: str = "") -> tuple[dict[str, list[int]], bytes, Problems]:
    """The same, simply: all rows in a list, one after the other, and lists of all values."""
    problems = Problems()
    found: dict[str, list[int]] = {name: [] for name in ("ids", "labels", "tags", "units", "rows")}
    found |= {"offsets": [0], "text_offsets": [0]}
    texts, number = b"", 0
    for row in list(rows(source, split, data, problems)):
        if unit and not isinstance(row.get(unit), str):
            problems.note(row.place, f"field '{unit}' (named by 'privacy.field') is missing, empty or not a name")
            continue
        for sample in encode([row], source):
            if isinstance(sample, Unusable):
                note_sample(problems, sample)
                continue
            if unit:
                found["units"].append(hash(row[unit]))
            found["rows"].append(2 * len(found["labels"]) + 1 if sample.row is None else 2 * number)
            found["ids"] += sample.ids
            found["tags"] += sample.tags
            found["labels"].append(sample.label)
            texts += sample.text.encode()
            found["offsets"].append(len(found["ids"]))
            found["text_offsets"].append(len(texts))
        number += 1
    return found, texts, problems


def check(held: Examples, oracle: tuple[dict[str, list[int]], bytes, Problems]) -> None:
    found, texts, problems = oracle
    for name in ("ids", "offsets", "labels", "tags", "rows"):
        assert getattr(held, name).tolist() == found[name], name
    assert len(set(zip(held.units.tolist(), found["units"], strict=True))) == len(set(found["units"])), "one to one"
    assert held.texts.offsets.tolist() == found["text_offsets"]
    assert held.texts.bytes.tobytes() == texts
    assert held.lengths.tolist() == np.diff(found["offsets"]).tolist()
    assert held.rows_behind() == len(set(found["rows"]))
    assert sorted(held.released_problems) == sorted(problems.released())
    assert [line.partition(",")[0] for line in held.problems] == [line.partition(",")[0] for line in problems.summary()]


lines = st.one_of(
    st.fixed_dictionaries(
        {"text": st.text("abcdéx ", max_size=8)},
        optional={"who": st.sampled_from(["p", "q", "", None]), "label": st.sampled_from(["k", "l"])},
    ).map(json.dumps),
    st.sampled_from(["not JSON", "{}", "", '{"text": 7}']),
)
sources = st.fixed_dictionaries(
    {},
    optional={
        "limit": st.integers(0, 5),
        "where": st.just({"label": "k"}),
        "part": st.builds(Part, name=st.just("s"), number=st.integers(0, 1), of=st.just(2), skew=st.just(0.5)),
    },
)


@given(st.lists(lines, max_size=25), sources, st.sampled_from(["train", "valid"]), st.sampled_from([1, 2, 7, 2000]))
@settings(deadline=None, max_examples=150)
def test_chunks_of_any_size_give_what_a_list_of_all_rows_gives(
    corpus: list[str], settings: dict[str, Any], split: str, size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setenv("HANSA_CACHE", folder)
        patch.setattr(chunks, "ROWS", size)
        patch.setattr(sample_files, "HELD", size)
        file = Path(folder) / "rows.jsonl"
        file.write_text("\n".join(corpus))
        source = Source(train=str(file), **settings)
        check(load([source], split, ALLOWED, ["g"], encode, "f"), in_memory(source, split, ALLOWED))


@given(st.lists(st.tuples(st.text("abcx", min_size=1, max_size=5), st.sampled_from(["p", "q", None])), max_size=20))
@settings(deadline=None)
def test_units_stay_apart_in_chunks_of_two_rows(corpus: list[tuple[str, str | None]]) -> None:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setenv("HANSA_CACHE", folder)
        patch.setattr(chunks, "ROWS", 2)
        file = Path(folder) / "rows.jsonl"
        file.write_text("\n".join(json.dumps({"text": text, "who": who}) for text, who in corpus))
        source = Source(train=str(file))
        oracle = in_memory(source, "train", ALLOWED, "who")
        kept = list(rows(source, "train", ALLOWED, Problems()))
        if kept and all(row["who"] is None for row in kept):
            with pytest.raises(DataError, match="no row has the field 'who'"):
                load([source], "train", ALLOWED, ["g"], encode, "f", "who")
            return
        check(load([source], "train", ALLOWED, ["g"], encode, "f", "who"), oracle)


def corpus(folder: Path, name: str, count: int) -> Source:
    file = folder / f"{name}.txt"
    file.write_text("".join(f"{name} line {i % 13} x\n"[: 4 + i % 9] + "\n" for i in range(count)))
    return Source(train=str(file))


def test_several_sources_are_joined_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    given = [corpus(tmp_path, name, count) for name, count in (("a", 40), ("b", 7), ("cc", 25))]
    parts = [load([source], "train", ALLOWED, ["x"], encode, "f") for source in given]
    held = load(given, "train", ALLOWED, ["it", "fr", "it"], encode, "f")
    assert held.groups == ("it", "fr")
    assert held.counts() == {"it": len(parts[0]) + len(parts[2]), "fr": len(parts[1])}
    samples = [part[i].tolist() for part in parts for i in range(len(part))]
    assert [held[i].tolist() for i in range(len(held))] == samples
    assert [held.texts[i] for i in range(len(held))] == [p.texts[i] for p in parts for i in range(len(p))]
    assert held.labels.tolist() == [x for part in parts for x in part.labels.tolist()]
    assert held.tags.tolist() == [x for part in parts for x in part.tags.tolist()]
    assert held.group.tolist() == [g for g, part in zip((0, 1, 0), parts, strict=True) for _ in range(len(part))]
    assert held.rows_behind() == sum(part.rows_behind() for part in parts), "rows of two sources are never one"
    assert held.problems == tuple(line for part in parts for line in part.problems)
    assert isinstance(held.ids.base, np.memmap), "nothing is copied into memory"


def test_a_crash_in_the_middle_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(chunks, "ROWS", 5)
    monkeypatch.setattr(sample_files, "HELD", 5)
    source, seen = corpus(tmp_path, "a", 60), list[int]()

    def failing(some: list[Row], source: Source) -> Iterator[Encoded | Unusable]:
        seen.append(len(some))
        if len(seen) == 4:
            raise RuntimeError("in the middle")
        return encode(some, source)

    with pytest.raises(RuntimeError, match="in the middle"):
        load([source], "train", ALLOWED, ["g"], failing, "f")
    assert list((tmp_path / "cache" / "examples").iterdir()) == []
    with pytest.raises(DataError, match="cannot be used"):
        load([source], "train", ALLOWED.model_copy(update={"max_bad_rows": 0.0}), ["g"], encode, "f")
    assert list((tmp_path / "cache" / "examples").iterdir()) == []
    check(load([source], "train", ALLOWED, ["g"], encode, "f"), in_memory(source, "train", ALLOWED))


KILLED = """
import os, sys
from hansa.data.examples import load
from hansa.data.settings import Data
from hansa.data.source import Source

source, data = Source(train=sys.argv[1]), Data(valid=0.2, test=0.2, max_bad_rows=1.0)
load([source], "train", data, ["g"], lambda some, s: os._exit(9), "f")  # without any cleaning up
"""


def test_a_killed_process_leaves_a_draft_that_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    source = corpus(tmp_path, "a", 60)
    assert subprocess.run([sys.executable, "-c", KILLED, source.train]).returncode == 9
    [draft] = (tmp_path / "cache" / "examples").iterdir()
    check(load([source], "train", ALLOWED, ["g"], encode, "f"), in_memory(source, "train", ALLOWED))
    assert draft.exists(), "it might be of a process that still works"
    old = time.time() - 2 * sample_files.ABANDONED
    for path in (*draft.iterdir(), draft):
        os.utime(path, (old, old))
    load([source], "train", ALLOWED, ["g"], encode, "another")
    assert not draft.exists()


def test_another_process_that_is_faster_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    source, faster = corpus(tmp_path, "a", 60), list[Examples]()

    def slow(some: list[Row], source: Source) -> Iterator[Encoded | Unusable]:
        if not faster:
            faster.append(load([source], "train", ALLOWED, ["g"], encode, "f"))
        return encode(some, source)

    held = load([source], "train", ALLOWED, ["g"], slow, "f")
    oracle = in_memory(source, "train", ALLOWED)
    check(held, oracle)
    check(faster[0], oracle)
    assert len(list((tmp_path / "cache" / "examples").iterdir())) == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans())))
def test_problems_counted_in_parts_are_those_of_one_count(noted: list[tuple[int, bool, bool]]) -> None:
    whole, part, total = Problems(), Problems(), Problems()
    for number, (kind, derived, cut) in enumerate(noted):
        for problems in (whole, part):
            problems.lines += 1
            note_sample(
                problems, Unusable(f"file:{number}", f"reason {'abcd'[kind]} {number}", derived, f"k{kind % 2}")
            )
        if cut:
            total.add(part.take())
    total.add(part.take())
    assert total == whole
    assert list(total.kinds.items()) == list(whole.kinds.items())
    assert list(total.found.items()) == list(whole.found.items())
    assert part == Problems()


MEMORY = """
import sys
from pathlib import Path
from hansa.data.examples import Encoded, load
from hansa.data.settings import Data
from hansa.data.source import Source

kept, peak = [], 0

def encode(some, source):
    global peak
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = max(peak, *(int(line.split()[1]) for line in lines if line.startswith("RssAnon")))
    if sys.argv[2] == "kept":
        kept.extend(some)
    for number, row in enumerate(some):
        yield Encoded(list(range(len(row["text"]))), row=number)

for rows in map(int, sys.argv[3:]):
    file = Path(sys.argv[1]) / f"{rows}.txt"
    with file.open("w") as stream:
        stream.writelines(f"line {i} of many\\n" for i in range(rows))
    held = load([Source(train=str(file))], "train", Data(), ["x"], encode, "f")
    assert held.rows_behind() == len(held) == sum(held.counts().values())
    print(peak)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
@pytest.mark.parametrize("keep", ["streamed", "kept"])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, keep: str) -> None:
    environment = os.environ | {"HANSA_CACHE": str(tmp_path / "cache")}
    rows = ("20000", "200000") if keep == "streamed" else ("5000", "60000")
    command = [sys.executable, "-c", MEMORY, str(tmp_path), keep, *rows]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    few, many = (int(line) / 1024 for line in done.stdout.split())  # MB
    if keep == "streamed":
        assert many - few < 8.0
    else:
        assert many - few > 16.0, "the control: rows that are kept show in the memory"
