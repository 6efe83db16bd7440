"""Read the rows of a silo's files. The suffix of a file selects its reader.

`READERS` holds the readers by suffix. A plug-in file or an installed package adds a file format like this:

    @READERS.register(".xml")
    def notes(file: Path, source: Source) -> Iterator[ParsedRow]:
        for number, note in enumerate(ElementTree.parse(file).iter("note"), 1):
            yield number, {"text": note.text}, ""

A row that cannot be read is yielded as ``(number, None, reason)``; it is counted and reported with its file and number.
Two formats consist of two files each and have no suffix of their own: BRAT annotation (``FILE.ann`` beside
``FILE.txt``) and aligned texts (``aligned:`` in the federation file).
"""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeVar, cast

from hansa.core.errors import ConfigError, DataError, HansaError, place
from hansa.data.formats import tables
from hansa.data.formats.parallel import aligned, gettext_catalogue, tmx
from hansa.data.formats.standoff import brat, conll
from hansa.data.rows import NO_TEXT, OTHER_LANGUAGE, UNREADABLE, ParsedRow, PlacedRow, Problems, Row
from hansa.data.source import Source

Reader = Callable[[Path, Source], Iterator[ParsedRow]]
R = TypeVar("R", bound=Reader)
ANNOTATION = ".ann"  # of a BRAT document, beside its text
MESSAGES = "messages"  # the field of a conversation: a list of {role, content}
DAMAGE = (EOFError, OSError, zlib.error, csv.Error)


class ReaderRegistry:
    """Readers by the suffix of the files they read."""

    def __init__(self) -> None:
        self.entries: dict[str, Reader] = {}

    def register(self, *suffixes: str) -> Callable[[R], R]:
        """A decorator that registers a reader for file suffixes such as ``.xml``.

        Raises `ConfigError` if a suffix is not in lower case with a leading dot, or has a reader already.
        """

        def add(reader: R) -> R:
            """Register the reader for each suffix and return it; raises `ConfigError` if a suffix is not allowed."""
            for suffix in suffixes:
                if not re.fullmatch(r"\.[^.\sA-Z]+", suffix) or suffix in (".gz", ANNOTATION):
                    raise ConfigError(
                        f"'{suffix}' cannot be registered as a file suffix: it must be a dot followed by lower-case "
                        f"characters, such as '.xml', and neither .gz nor {ANNOTATION}"
                    )
                taken = self.entries.get(suffix)
                if taken is not None and _origin(taken) != _origin(reader):
                    raise ConfigError(
                        f"the reader for '{suffix}' files is registered twice, by {_origin(taken)} and by "
                        f"{_origin(reader)}: remove one of them"
                    )
                self.entries[suffix] = reader
            return reader

        return add

    @property
    def suffixes(self) -> tuple[str, ...]:
        """All suffixes that have a reader."""
        return tuple(self.entries)

    def reader(self, file: Path) -> Reader:
        """The reader of a file; raises `DataError` if its suffix has none."""
        suffix = suffix_of(file)
        if suffix not in self.entries:
            raise DataError(
                f"{file}: {suffix or 'a file without suffix'} is not readable; readable are "
                f"{', '.join(self.suffixes)}, also with .gz"
            )
        return self.entries[suffix]

    def plugin_of(self, file: Path) -> str:
        """Where the reader of a file comes from if it is not Hansa's own; else empty."""
        reader = self.entries.get(suffix_of(file))
        return "" if reader is None or _is_built_in(reader) else _origin(reader)


def _origin(reader: Reader) -> str:
    """Where a reader comes from; running its module again gives the same."""
    name = getattr(reader, "__qualname__", type(reader).__qualname__)
    return f"{reader.__module__}.{name}"


def _is_built_in(reader: Reader) -> bool:
    return reader.__module__.partition(".")[0] == "hansa"


READERS = ReaderRegistry()


def text_reader(parse: Callable[[TextIO, Source], Iterator[ParsedRow]]) -> Reader:
    """A reader that opens a UTF-8 text file, also a gzipped one, and parses its stream.

    A row with bytes that are not UTF-8 is reported as unreadable.
    """

    @wraps(parse)
    def read(file: Path, source: Source) -> Iterator[ParsedRow]:
        """The rows that the parser finds in a file; a row with invalid bytes has a reason in place of fields."""
        with open_text(file) as stream:
            for number, fields, reason in parse(stream, source):
                not_utf8 = fields is not None and _has_replacement(fields)
                yield (number, None, "not valid UTF-8") if not_utf8 else (number, fields, reason)

    return read


def open_text(file: Path) -> TextIO:
    """Open a UTF-8 text file, also a gzipped one. A byte that is not UTF-8 is read as U+FFFD."""
    binary = gzip.open(file, "rb") if file.name.endswith(".gz") else file.open("rb")  # noqa: SIM115 (the caller closes)
    return io.TextIOWrapper(cast(BinaryIO, binary), encoding="utf-8-sig", errors="replace", newline=None)


def _has_replacement(value: Any) -> bool:
    if isinstance(value, str):
        return "\ufffd" in value
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_has_replacement, inside))


READERS.register(".jsonl", ".json", ".ndjson")(text_reader(tables.json_lines))
READERS.register(".parquet")(tables.parquet)
READERS.register(".arrow")(tables.arrow)
READERS.register(".csv")(text_reader(tables.comma_separated))
READERS.register(".tsv")(text_reader(tables.tab_separated))
READERS.register(".txt")(text_reader(tables.plain_text))
READERS.register(".conll", ".iob", ".bio")(text_reader(conll))
READERS.register(".tmx")(text_reader(tmx))
READERS.register(".po")(text_reader(gettext_catalogue))


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def suffix_of(file: Path) -> str:
    """The suffix of a file in lower case, without a final ``.gz``."""
    return Path(file.name.removesuffix(".gz")).suffix.lower()


def data_files(path: Path) -> list[Path]:
    """The data files below a path, in a stable order; raises `DataError` if there is none."""
    if path.is_file():
        return [path]
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    found = sorted(p for p in path.rglob("*") if p.is_file() and (suffix_of(p) in READERS.entries or _lacks_text(p)))
    if (path / "dataset_info.json").exists():  # a Hugging Face dataset on disk keeps its rows in Arrow files
        found = [p for p in found if p.suffix == ".arrow"]
    if not found:
        raise DataError(
            f"{path}: no data files in this folder; readable are {', '.join(READERS.suffixes)}, also with .gz"
        )
    return found


def _lacks_text(file: Path) -> bool:
    """Whether a file is a BRAT annotation without the text it belongs to."""
    return file.suffix == ANNOTATION and not file.with_suffix(".txt").is_file()


def split_paths(source: Source, split: str) -> list[Path]:
    """The paths that a split is read from: one, or two whose lines are aligned."""
    sides = [source] if source.aligned is None else [source, source.aligned]
    return [Path(side.files().get(split, side.train)) for side in sides]


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_rows(source: Source, split: str, problems: Problems) -> Iterator[Row]:
    """The rows of a split's files that match ``where`` and have a text; ``problems`` counts rows that are unusable."""
    for where, fields, reason in _placed(source, split):
        problems.lines += 1
        if fields is None:
            problems.note(where, reason, UNREADABLE)
            continue
        if any(fields.get(key) != value and str(fields.get(key)) != str(value) for key, value in source.where.items()):
            continue
        row = Row(_with_standard_names(fields, source))
        row.place, row.names = where, tuple(map(str, fields))
        if source.text not in row and isinstance(row.get("tokens"), list):
            row[source.text] = " ".join(map(str, row["tokens"]))
        if source.text not in row and isinstance(row.get(MESSAGES), list):
            row[source.text] = conversation_text(row[MESSAGES])
        text = row.get(source.text)
        if text is None:
            words = f", and no '{source.tokens}' with a list of words" if _has_list(row) else ""
            problems.note(where, f"no field '{source.text}'{words} (fields: {_names(row.names)})", NO_TEXT)
        elif wrong := _wrong_language(row, source):
            problems.note(where, wrong, OTHER_LANGUAGE)
        elif not isinstance(text, str) or not text.strip():
            problems.note(where, f"field '{source.text}' is empty or not text", NO_TEXT)
        else:
            yield row


def _with_standard_names(fields: dict[str, Any], source: Source) -> dict[str, Any]:
    """The fields of a row with words and tags named ``tokens`` and ``tags``, whatever the file calls them."""
    named = {source.tokens: "tokens", source.tags: "tags"}
    if all(given == standard or given not in fields for given, standard in named.items()):
        return fields
    return {named.get(name, name): value for name, value in fields.items()}


def _has_list(row: Row) -> bool:
    return any(isinstance(value, list) for value in row.values())


def conversation_text(messages: list[Any]) -> str:
    """The texts of the messages of a conversation, one after another; messages without a text are left out."""
    texts = [message.get("content") for message in messages if isinstance(message, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _placed(source: Source, split: str) -> Iterator[PlacedRow]:
    """All rows of a split's files, each with its file and line."""
    path, *beside = split_paths(source, split)
    if beside:
        try:
            with open_text(path) as left, open_text(beside[0]) as right:
                yield from aligned(path, beside[0], (left, right), source)
        except DAMAGE as error:
            yield str(path), None, f"it or {beside[0]} ends early or is damaged ({error})"
        return
    for file in data_files(path):
        if suffix_of(file) == ANNOTATION:
            yield str(file), None, "it annotates a text that is not beside it"
        elif file.suffix == ".txt" and file.with_suffix(ANNOTATION).is_file():
            yield from brat(file)
        else:
            yield from _rows_of(file, source)


def _rows_of(file: Path, source: Source) -> Iterator[PlacedRow]:
    """The rows of one file; a file that ends early is reported like an unreadable row."""
    reader = READERS.reader(file)
    number = 0
    try:
        for number, fields, reason in reader(file, source):
            yield f"{file}:{number}", fields, reason
    except HansaError:
        raise
    except DAMAGE as error:
        yield f"{file}:{number + 1}", None, f"the file ends early or is damaged ({error})"
    except Exception as error:
        if _is_built_in(reader):
            raise
        raise DataError(
            f"{file}: the reader {_origin(reader)} failed after row {number}: {type(error).__name__} "
            f"({place(error)}); correct the reader or the file"
        ) from None


def _wrong_language(row: Row, source: Source) -> str:
    """Why a row's own language fields contradict the languages of the silo; empty if they do not."""
    sides = (("lang", source.language), ("src_lang", source.language), ("tgt_lang", source.target_language))
    for name, wanted in sides:
        seen = row.get(name)
        if seen is not None and seen != wanted and _is_code(wanted) and _is_code(seen):
            kind = "target language" if name == "tgt_lang" else "language"
            return f"its '{name}' is {seen}, but the silo's {kind} is {wanted}"
    return ""


def _is_code(language: Any) -> bool:
    return isinstance(language, str) and re.fullmatch(r"[a-z]{2,3}", language) is not None


def _names(named: tuple[str, ...]) -> str:
    """The names of a row's fields, or, if they look like text, their number."""
    return ", ".join(named) if named and all(n.isidentifier() and len(n) < 30 for n in named) else str(len(named))
