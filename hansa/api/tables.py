"""Data in memory: Hugging Face datasets, pandas and polars data frames, Arrow tables, and lists.

A run reads files. Tables in memory are written to JSON Lines files in the run directory (``inputs/``), so that worker
processes can read them and the run can be resumed.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from hansa.core.errors import DataError
from hansa.data.formats.tables import by_name

CHUNK = 1000  # rows that are held as Python objects at a time
LIBRARIES = ("datasets", "pandas", "polars", "pyarrow")
KINDS = "a Hugging Face dataset, a pandas or polars data frame, an Arrow table, a list of dicts or texts, or a path"

Row = Mapping[str, Any]


def is_table(value: object) -> bool:
    """Whether a value holds rows."""
    library = type(value).__module__.partition(".")[0]
    return isinstance(value, list | tuple) or (library in LIBRARIES and not isinstance(value, Mapping))


def columns(table: Any) -> list[str] | None:
    """The names of a table's columns; None for a list, whose rows may differ."""
    if isinstance(table, list | tuple):
        return None
    found = getattr(table, "column_names", None) or getattr(table, "columns", None)
    return None if found is None else [str(name) for name in found]


def length(table: Any) -> int | None:
    """The number of rows; None if that is not known before they are read."""
    rows = getattr(table, "num_rows", None)
    return rows if isinstance(rows, int) else len(table) if hasattr(table, "__len__") else None


def rows(table: Any, what: str) -> Iterator[Row]:
    """The rows of a table; ``what`` names it in errors.

    Raises `DataError` for a list with something else than dicts or texts.
    """
    for number, row in enumerate(_rows(table), 1):
        if isinstance(row, str):
            yield {"text": row}
        elif isinstance(row, Mapping):
            yield row
        else:
            raise DataError(f"{what}: row {number} is a {type(row).__name__}; give dicts by column name, or texts")


def _rows(table: Any) -> Iterable[Any]:
    library = type(table).__module__.partition(".")[0]
    if library == "pandas":
        return (row for i in range(0, len(table), CHUNK) for row in table.iloc[i : i + CHUNK].to_dict("records"))
    if library == "polars":
        table = table.to_arrow()
        library = "pyarrow"
    if library == "pyarrow":
        return (row for batch in table.to_batches(CHUNK) for row in batch.to_pylist())
    if library == "datasets":
        return _dataset_rows(table)
    return table  # type: ignore[no-any-return]


def _dataset_rows(dataset: Any) -> Iterator[Row]:
    """The rows of a Hugging Face dataset, with the names of its class labels instead of their numbers."""
    names = {column: found for column, kind in (dataset.features or {}).items() if (found := _label_names(kind))}
    for row in dataset:
        yield {key: by_name(value, names[key]) if key in names else value for key, value in row.items()}


def _label_names(kind: Any) -> Sequence[str]:
    """The names of a column of class labels, or of lists of them."""
    names = getattr(getattr(kind, "feature", kind), "names", None)
    return names if isinstance(names, list) else []


def write(table: Any, file: Path, what: str) -> None:
    """Write a table as JSON Lines. If the file exists, raise `DataError` unless its rows are the same."""
    if not file.exists():
        draft = file.with_name(f".{file.name}.draft")
        with draft.open("w", encoding="utf-8") as stream:
            stream.writelines(_lines(table, what))
        draft.replace(file)
        return
    digest = sha256()
    for line in _lines(table, what):
        digest.update(line.encode())
    with file.open("rb") as written:
        before = file_digest(written, "sha256")
    if digest.digest() != before.digest():
        raise DataError(
            f"{what}: its rows have changed since the run began; put them back, or begin anew in another folder"
        )


def _lines(table: Any, what: str) -> Iterator[str]:
    for row in rows(table, what):
        plain = {str(key): _plain(value) for key, value in row.items()}
        yield json.dumps(plain, ensure_ascii=False, default=_other) + "\n"


def _plain(value: Any) -> Any:
    """A missing value as null: pandas has NaN and NaT in its place."""
    missing = (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in ("NaTType", "NAType")
    return None if missing else value


def _other(value: Any) -> Any:
    """What JSON does not know: numbers and arrays of numpy as plain ones, dates and everything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
