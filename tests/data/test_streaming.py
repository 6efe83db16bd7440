"""Every reader streams: the memory of reading a file does not grow with its rows."""

import csv
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.data.describe import _spread
from hansa.data.readers import read_rows
from hansa.data.rows import Problems
from hansa.data.source import Source

FEW, MANY = 2000, 12_000
TEXT = "fever and cough of patient "


def texts(count: int) -> list[str]:
    return [f"{TEXT}{i}" for i in range(count)]


def as_jsonl(file: Path, count: int) -> None:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(count)))


def as_csv(file: Path, count: int) -> None:
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([["text"], *([text] for text in texts(count))])


def as_txt(file: Path, count: int) -> None:
    file.write_text("\n".join(texts(count)))


def as_conll(file: Path, count: int) -> None:
    file.write_text("".join(f"fever B-Sign\nof O\n{i} O\n\n" for i in range(count)))


def as_tmx(file: Path, count: int) -> None:
    sides = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'
    units = (f"<tu>{sides.format('en', text)}{sides.format('fr', text)}</tu>" for text in texts(count))
    file.write_text(f"<tmx><body>{''.join(units)}</body></tmx>")


def as_parquet(file: Path, count: int) -> None:
    pq.write_table(pa.table({"text": texts(count)}), file, row_group_size=count)


def as_arrow(file: Path, count: int) -> None:
    [batch] = pa.table({"text": texts(count)}).to_batches()
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)


WRITERS: dict[str, Callable[[Path, int], None]] = {
    ".jsonl": as_jsonl,
    ".csv": as_csv,
    ".txt": as_txt,
    ".conll": as_conll,
    ".tmx": as_tmx,
    ".parquet": as_parquet,
    ".arrow": as_arrow,
}


def peak(file: Path, count: int, keep: bool = False) -> int:
    """The most bytes that reading a file of so many rows takes; every row is read, in its order."""
    WRITERS[file.suffix](file, count)
    source, problems, seen, kept = Source(train=str(file), language="en", target_language="fr"), Problems(), 0, []
    tracemalloc.start()
    for number, row in enumerate(read_rows(source, "train", problems)):
        seen += str(number) in row["text"]
        if keep:
            kept.append(row)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (seen, problems.bad) == (count, 0)
    return found


@pytest.mark.parametrize("suffix", WRITERS)
def test_the_memory_of_a_reader_does_not_grow_with_the_rows(tmp_path: Path, suffix: str) -> None:
    peak(tmp_path / f"first{suffix}", 10)  # what is imported and compiled on first use
    few = peak(tmp_path / f"few{suffix}", FEW)
    assert peak(tmp_path / f"many{suffix}", MANY) < 1.2 * few + 50_000


def test_rows_that_are_kept_show_in_this_measure(tmp_path: Path) -> None:
    few = peak(tmp_path / "few.txt", FEW, keep=True)
    assert peak(tmp_path / "many.txt", MANY, keep=True) > 4 * few


@given(st.lists(st.integers(0, 50), min_size=1))
def test_percentiles_of_counts_are_those_of_numpy(values: list[int]) -> None:
    low, middle, high = np.percentile(values, [5, 50, 95])
    expected = {"mean": np.mean(values), "p5": low, "median": middle, "p95": high}
    assert _spread(Counter(values)) == {name: round(float(value), 1) for name, value in expected.items()}
