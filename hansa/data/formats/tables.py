"""Rows of plain text, JSON Lines, CSV and TSV, Parquet and Arrow files."""

import csv
import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from hansa.core.errors import DataError
from hansa.data.formats.standoff import conll, looks_tagged
from hansa.data.rows import ParsedRow
from hansa.data.source import Source

AT_ONCE = 1000  # rows of a Parquet or Arrow file that are turned into Python objects together
LOOK = 20  # lines that are examined to see whether a file has tags in its last column


def _peeked(stream: TextIO) -> tuple[bool, Iterator[str]]:
    """Whether the first lines are tokens with tags, and all lines."""
    first = list(islice(stream, LOOK))
    return looks_tagged(first), chain(first, stream)


def plain_text(stream: TextIO, source: Source) -> Iterator[ParsedRow]:
    """One row for each line that is not blank, with the line as its ``text``; CoNLL columns are read as such."""
    tagged, lines = _peeked(stream)
    if tagged:
        yield from conll(lines, source)
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, {"text": line.strip()}, ""


def json_lines(stream: TextIO, source: Source) -> Iterator[ParsedRow]:
    """One JSON object per line."""
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            yield number, None, f"not valid JSON ({error.msg})"
            continue
        yield (number, row, "") if isinstance(row, dict) else (number, None, "not a JSON object")


def comma_separated(stream: TextIO, source: Source) -> Iterator[ParsedRow]:
    """A CSV file; see `_table`."""
    return _table(stream, ",", source)


def tab_separated(stream: TextIO, source: Source) -> Iterator[ParsedRow]:
    """A TSV file, see `_table`; CoNLL columns are read as such."""
    tagged, lines = _peeked(stream)
    return conll(lines, source) if tagged else _table(lines, "\t", source)


def _table(stream: Iterable[str], delimiter: str, source: Source) -> Iterator[ParsedRow]:
    """A table whose first line names the columns.

    If the text column is given as a number (``text: 1``), the table has no header: columns are numbered from 1, and
    quotation marks are part of the text.
    """
    if source.text.isdigit():
        for number, cells in enumerate(csv.reader(stream, delimiter=delimiter, quoting=csv.QUOTE_NONE), 1):
            yield number, {str(i): cell for i, cell in enumerate(cells, 1)}, ""
        return
    reader = csv.DictReader(stream, delimiter=delimiter)
    for row in reader:
        if None in row or None in row.values():
            yield reader.line_num, None, "the number of fields differs from the header's"
        else:
            yield reader.line_num, dict(row), ""


def parquet(file: Path, source: Source) -> Iterator[ParsedRow]:
    """A Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        yield from _batches(pq.ParquetFile(file).iter_batches(AT_ONCE))
    except pa.ArrowInvalid as error:
        raise _unreadable(file, "parquet", error) from None


def arrow(file: Path, source: Source) -> Iterator[ParsedRow]:
    """A file in the Arrow streaming format, as Hugging Face datasets are stored."""
    import pyarrow as pa

    try:
        yield from _batches(iter(pa.ipc.open_stream(pa.memory_map(str(file)))))
    except pa.ArrowInvalid as error:
        raise _unreadable(file, "arrow", error) from None


def _batches(batches: Iterator[Any]) -> Iterator[ParsedRow]:
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, AT_ONCE):  # a row group may have millions of rows
            for row in batch.slice(start, AT_ONCE).to_pylist():
                number += 1
                yield number, row, ""


def _unreadable(file: Path, kind: str, error: Exception) -> DataError:
    return DataError(f"{file}: not a readable {kind} file ({str(error).splitlines()[0]})")
