"""Read rows out of whatever a silo has: JSON Lines, Parquet, CSV, text, CoNLL, BRAT, TMX, gettext, aligned texts, a
Hugging Face dataset, a folder.

A line that cannot be read is never dropped in silence: it is counted and reported with its file and line.
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, TextIO

from hansa.core.errors import DataError
from hansa.data.clients import mine
from hansa.data.formats.parallel import aligned, catalogue, tmx
from hansa.data.formats.standoff import Parsed, brat, columns
from hansa.data.settings import Data
from hansa.data.source import Source

ANNOTATION = ".ann"  # BRAT's, beside a text
COLUMNS = (".conll", ".iob", ".bio")  # one token and its tag per line
MEMORIES = (".tmx", ".po")  # translations, whose fields are named by their languages
SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet", ".arrow", ".csv", ".tsv", ".txt", *COLUMNS, *MEMORIES)


class Row(dict[str, Any]):
    """A sample as it was read, and where it stands."""

    place: str = ""


NUMBER = re.compile(r"\d+")
MOST_REASONS = 4  # said of a file; more are counted


@dataclass
class Problems:
    """What could not be read: how many lines, and the first few with place and reason."""

    lines: int = 0
    broken: int = 0
    kinds: Counter[str] = field(default_factory=Counter)  # reasons, alike but for their numbers
    met: dict[str, str] = field(default_factory=dict)  # kind → where it was met first, and the reason
    implied: Counter[str] = field(default_factory=Counter)  # samples nobody annotated that were left out, by reason

    def note(self, place: str, reason: str) -> None:
        self.broken += 1
        kind = NUMBER.sub("0", reason)
        self.met.setdefault(kind, f"{place}: {reason}")
        self.kinds[kind] += 1

    @property
    def first(self) -> list[str]:
        """Of each kind, where it was met first."""
        return list(self.met.values())[:MOST_REASONS]

    def summary(self) -> list[str]:
        """What a silo says about it."""
        said = [f"{self.broken} of {self.lines} lines left out, {self._why}"] if self.broken else []
        return said + [f"{count} samples that nobody annotated left out: {why}" for why, count in self.implied.items()]

    def check(self, allowed: float, what: str) -> None:
        if self.broken > allowed * max(1, self.lines):
            share = self.broken / max(1, self.lines)
            remedy = f"mend them, or raise data.max_bad_rows above {share:.3g} to go on without them"
            if self.broken >= self.lines:
                remedy = "look at the file, and name its fields with 'text:', 'label:' … (or --text, --label …)"
            raise DataError(f"{what}: {self.broken} of {self.lines} lines cannot be used, {self._why}; {remedy}")

    @property
    def _why(self) -> str:
        """The commonest reasons, each with how often and where first."""
        told = [
            f"{f'{count} of them ' if len(self.kinds) > 1 else ''}first {self.met[kind]}"
            for kind, count in self.kinds.most_common(MOST_REASONS)
        ]
        rest = len(self.kinds) - len(told)
        return "; ".join(told) + (f"; and {rest} other reasons" if rest else "")


def rows(source: Source, split: str, data: Data, problems: Problems) -> Iterator[Row]:
    """The rows of one split. Without files of their own, valid and test are cut from the training file by a hash of
    the text, so the cut is stable and equal texts never stand on both sides."""
    cut_from_train = split not in source.files()
    taken = 0
    if split == "train" and source.limit == 0:
        return
    readable = _readable(split, source, problems)
    if data.deidentify is not None:
        from hansa.data.deidentification.reading import without_personal_details

        readable = without_personal_details(readable, source, data.deidentify, problems)
    for row in readable:
        if (split == "train" or cut_from_train) and _side(row[source.text], source, data) != split:
            continue
        if source.part is not None and not mine(source.part, row[source.text], str(row.get(source.label)), split):
            continue
        taken += 1
        yield row
        if split == "train" and source.limit is not None and taken >= source.limit:
            return


def _side(text: str, source: Source, data: Data) -> str:
    point = int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big") / 2**64
    test = data.test if source.test is None else 0.0
    valid = data.valid if source.valid is None else 0.0
    return "test" if point < test else "valid" if point < test + valid else "train"


def _readable(split: str, source: Source, problems: Problems) -> Iterator[Row]:
    """Rows that match ``where`` and have a text; the others are noted or skipped."""
    for place, row, reason in _numbered(split, source):
        problems.lines += 1
        if row is None:
            problems.note(place, reason)
            continue
        if any(row.get(key) != value and str(row.get(key)) != str(value) for key, value in source.where.items()):
            continue
        row = Row(row)
        row.place = place
        if source.text not in row and isinstance(row.get("tokens"), list):
            row[source.text] = " ".join(map(str, row["tokens"]))
        text = row.get(source.text)
        if text is None:
            problems.note(place, f"no field '{source.text}' (fields: {_names(row)})")
        elif wrong := _wrong_language(row, source):
            problems.note(place, wrong)
        elif not isinstance(text, str) or not text.strip():
            problems.note(place, f"field '{source.text}' is empty or not text")
        else:
            yield row


def _wrong_language(row: Row, source: Source) -> str:
    """Which side says of itself that it is in another language than the silo's; empty if none does."""
    sides = (("lang", source.language), ("src_lang", source.language), ("tgt_lang", source.target_language))
    for name, wanted in sides:
        said = row.get(name)
        if said is not None and said != wanted and _is_code(wanted) and _is_code(said):
            kind = "target language" if name == "tgt_lang" else "language"
            return f"its '{name}' is {said}, but the silo's {kind} is {wanted}"
    return ""


Numbered = Iterator[tuple[str, dict[str, Any] | None, str]]  # place, row (or None), reason


def files(path: Path) -> list[Path]:
    """The data files below a path, in a stable order."""
    if path.is_file():
        return [path]
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    found = sorted(p for p in path.rglob("*") if p.is_file() and (_suffix(p) in SUFFIXES or _orphan(p)))
    if (path / "dataset_info.json").exists():  # a Hugging Face dataset on disk keeps its rows in Arrow files
        found = [p for p in found if p.suffix == ".arrow"]
    if not found:
        raise DataError(f"{path}: no data files in this folder; readable are {', '.join(SUFFIXES)}, also with .gz")
    return found


def _orphan(file: Path) -> bool:
    return file.suffix == ANNOTATION and not file.with_suffix(".txt").is_file()


def origins(source: Source, split: str) -> list[Path]:
    """The paths that a split is read from: one, or two that are aligned."""
    sides = [source] if source.aligned is None else [source, source.aligned]
    return [Path(side.files().get(split, side.train)) for side in sides]


def _numbered(split: str, source: Source) -> Numbered:
    path, *beside = origins(source, split)
    if beside:
        try:
            with _open(path) as left, _open(beside[0]) as right:
                yield from aligned(path, beside[0], (left, right), source)
        except (EOFError, OSError, zlib.error) as error:
            yield str(path), None, f"it or {beside[0]} ends early or is damaged ({error})"
        return
    for file in files(path):
        suffix = _suffix(file)
        if suffix == ANNOTATION:
            yield str(file), None, "it annotates a text that is not beside it"
        elif suffix in (".parquet", ".arrow"):
            yield from _arrow(file)
        elif file.with_suffix(".ann").is_file():
            yield from brat(file)
        elif suffix in SUFFIXES:
            yield from _lines(file, suffix, source)
        else:
            raise DataError(f"{file}: this kind of file is not readable; readable are {', '.join(SUFFIXES)}")


def _lines(file: Path, suffix: str, source: Source) -> Numbered:
    """Text files of all kinds: a line that is not UTF-8, and a file that breaks off, are reported like broken lines."""
    number = 0
    try:
        with _open(file) as stream:
            if suffix in (".csv", ".tsv"):
                rows = _csv(stream, "\t" if suffix == ".tsv" else ",", source.text.isdigit())
            elif suffix in MEMORIES:
                rows = tmx(stream.buffer, source) if suffix == ".tmx" else catalogue(stream.read(), source)
            elif suffix in COLUMNS:
                rows = columns(stream)
            else:
                rows = _plain(stream) if suffix == ".txt" else _json_lines(stream)
            for number, row, reason in rows:
                not_utf8 = row is not None and _has_replacement(row)
                yield (f"{file}:{number}", None, "not valid UTF-8") if not_utf8 else (f"{file}:{number}", row, reason)
    except (EOFError, OSError, zlib.error, csv.Error) as error:
        yield f"{file}:{number + 1}", None, f"the file ends early or is damaged ({error})"


def _is_code(language: Any) -> bool:
    return isinstance(language, str) and re.fullmatch(r"[a-z]{2,3}", language) is not None


def _names(row: Row) -> str:
    """The names of a row's fields; of a table without a header they would be text, and text is not told."""
    named = [str(name) for name in row]
    return ", ".join(named) if named and all(n.isidentifier() and len(n) < 30 for n in named) else str(len(named))


def _has_replacement(value: Any) -> bool:
    if isinstance(value, str):
        return "\ufffd" in value
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_has_replacement, inside))


def _suffix(file: Path) -> str:
    return Path(file.name.removesuffix(".gz")).suffix.lower()


def _open(file: Path) -> TextIO:
    binary = gzip.open(file, "rb") if file.name.endswith(".gz") else file.open("rb")  # noqa: SIM115 (the caller closes)
    # A byte that is not UTF-8 becomes U+FFFD; such a line is reported by the caller that minds.
    return io.TextIOWrapper(binary, encoding="utf-8-sig", errors="replace", newline=None)


def _plain(stream: TextIO) -> Parsed:
    for number, line in enumerate(stream, 1):
        if line.strip():
            yield number, {"text": line.strip()}, ""


def _json_lines(stream: TextIO) -> Parsed:
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            yield number, None, f"not valid JSON ({error.msg})"
            continue
        yield (number, row, "") if isinstance(row, dict) else (number, None, "not a JSON object")


def _csv(stream: TextIO, delimiter: str, by_number: bool) -> Parsed:
    """A table; without a header its columns have numbers (`text: 1`), and quotes are text."""
    if by_number:
        for number, cells in enumerate(csv.reader(stream, delimiter=delimiter, quoting=csv.QUOTE_NONE), 1):
            yield number, {str(i): cell for i, cell in enumerate(cells, 1)}, ""
        return
    reader = csv.DictReader(stream, delimiter=delimiter)
    for row in reader:
        if None in row or None in row.values():
            yield reader.line_num, None, "the number of fields differs from the header's"
        else:
            yield reader.line_num, dict(row), ""


def _arrow(file: Path) -> Numbered:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if file.suffix == ".parquet":
            batches = pq.ParquetFile(file).iter_batches()
        else:
            batches = iter(pa.ipc.open_stream(pa.memory_map(str(file))))
        number = 0
        for batch in batches:
            for row in batch.to_pylist():
                number += 1
                yield f"{file}:{number}", row, ""
    except pa.ArrowInvalid as error:
        raise DataError(f"{file}: not a readable {file.suffix[1:]} file ({str(error).splitlines()[0]})") from None
