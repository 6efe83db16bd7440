"""Rows of plain text, JSON Lines, CSV and TSV, Parquet and Arrow files."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
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
        found = pq.ParquetFile(file)
        yield from _batches(found.iter_batches(AT_ONCE), class_names(found.schema_arrow))
    except pa.ArrowInvalid as error:
        raise _unreadable(file, "parquet", error) from None


def arrow(file: Path, source: Source) -> Iterator[ParsedRow]:
    """A file in the Arrow streaming format, as Hugging Face datasets are stored."""
    import pyarrow as pa

    try:
        stream = pa.ipc.open_stream(pa.memory_map(str(file)))
        yield from _batches(iter(stream), class_names(stream.schema))
    except pa.ArrowInvalid as error:
        raise _unreadable(file, "arrow", error) from None


def class_names(schema: Any) -> dict[str, list[str]]:
    """Column → the names of the classes that its numbers stand for, as Hugging Face datasets store them in a schema."""
    stored = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    found = {}
    for column, kind in stored.get("info", {}).get("features", {}).items():
        inner = kind.get("feature", kind) if isinstance(kind, dict) else {}  # of a list, the kind of its elements
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel":
            found[column] = list(inner["names"])
    return found


def by_name(value: Any, names: Sequence[str]) -> Any:
    """A number of a class, or a list of them, by name; -1 and None, "no class", stay."""
    if isinstance(value, list):
        return [by_name(one, names) for one in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value


def _batches(batches: Iterator[Any], classes: dict[str, list[str]]) -> Iterator[ParsedRow]:
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, AT_ONCE):  # a row group may have millions of rows
            for row in batch.slice(start, AT_ONCE).to_pylist():
                number += 1
                yield number, row | {column: by_name(row[column], names) for column, names in classes.items()}, ""


def _unreadable(file: Path, kind: str, error: Exception) -> DataError:
    return DataError(f"{file}: not a readable {kind} file ({str(error).splitlines()[0]})")
