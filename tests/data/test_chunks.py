"""Chunks of rows: their size, reading ahead, the cores of the tokenizer, and what the operator is told."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hansa.data import chunks
from hansa.data.chunks import PARALLEL, Progress, all_cores, prefetched
from hansa.data.settings import Data
from hansa.data.source import Source

WHOLE = Data(valid=0.0, test=0.0)


def test_a_chunk_ends_after_so_many_rows_or_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "ROWS", 4)
    monkeypatch.setattr(chunks, "CHARACTERS", 10)
    file = tmp_path / "a.txt"
    file.write_text("\n".join(["a", "b", "c", "d", "e", "f" * 9, "g" * 30, "h"]))
    found = [len(chunk.rows) for chunk in chunks.chunks(Source(train=str(file)), "train", WHOLE)]
    assert found == [4, 2, 1, 1, 0], "the last one is for what was left out after the last row"


def test_what_was_left_out_is_told_with_its_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "ROWS", 1)
    file = tmp_path / "a.jsonl"
    file.write_text('bad\n{"text": "a"}\n{"text": "b"}\nbad\nbad\n')
    found = [
        (len(c.rows), c.problems.lines, c.problems.bad) for c in chunks.chunks(Source(train=str(file)), "train", WHOLE)
    ]
    assert found == [(1, 2, 1), (1, 1, 0), (0, 2, 2)]


def test_the_next_item_is_read_while_the_caller_works_on_this_one() -> None:
    reads: list[int] = []
    second = threading.Event()

    def items() -> Iterator[int]:
        for number in (1, 2, 3):
            reads.append(number)
            if number == 2:
                second.set()
            yield number

    coming = prefetched(items())
    assert next(coming) == 1
    assert second.wait(10), "nobody has asked for the second one yet"
    assert list(coming) == [2, 3]
    assert reads == [1, 2, 3]


def test_an_error_of_the_reader_reaches_the_caller_and_closing_ends_the_thread() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("damaged")

    coming = prefetched(failing())
    assert next(coming) == 1
    with pytest.raises(ValueError, match="damaged"):
        next(coming)
    unfinished = prefetched(iter(range(1, 1000)))
    assert next(unfinished) == 1
    unfinished.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hansa-reader")]


@pytest.mark.parametrize("before", [None, "false"])
def test_all_cores_are_used_inside_only(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PARALLEL, raising=False)
    if before is not None:
        monkeypatch.setenv(PARALLEL, before)
    with suppress(RuntimeError), all_cores():
        assert os.environ[PARALLEL] == "true"
        raise RuntimeError
    assert os.environ.get(PARALLEL) == before


def test_long_preparation_tells_how_far_it_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.INFO, "hansa.data"):
        progress = Progress("notes.txt (train)")
        progress.tell(10)
        assert not caplog.messages, "short preparation is silent"
        monkeypatch.setattr(chunks, "TOLD_EVERY", 0.0)
        progress.tell(2_000_000)
    [line] = caplog.messages
    assert line.startswith("preparing notes.txt (train): 2,000,000 rows so far, ")
