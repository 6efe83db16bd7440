"""Find files, open them (also gzipped ones), detect their kind, and decode them block by block.

At most one block is in memory, so files of any size can be read, even if they consist of a single line.
"""

import codecs
import gzip
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hansa.data.importing.encodings import detect
from hansa.data.importing.tally import Tally

BLOCK = 1 << 18
LOOK = 1 << 13  # bytes that are examined to detect the kind of a file
KINDS = ("text", "pdf", "html", "xml", "json", "wiki", "csv", "cda", "hl7", "rtf", "docx", "email", "zip")
BY_SUFFIX = {".html": "html", ".htm": "html", ".xhtml": "html", ".xml": "xml", ".nxml": "xml"}
BY_SUFFIX |= {".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "csv", ".tab": "csv"}
BY_SUFFIX |= {".hl7": "hl7", ".eml": "email", ".cda": "cda"}
# Files that are not read, by their first bytes: what they are, and what to do.
REFUSED = {
    b"%PDF-": "a PDF (extract its text first, for example with pdftotext, and import it with --kind pdf)",
    b"\xd0\xcf\x11\xe0": "an old Office or Outlook file (save it as .docx, .txt or .eml first)",
    b"\x7fELF": "a program",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GIF8": "an image",
    b"SQLite format 3": "an SQLite database (export its text as CSV first)",
    b"PAR1": "a Parquet file (name it in a federation file instead)",
    b"Rar!": "a RAR archive (unpack it first)",
    b"7z\xbc\xaf": "a 7z archive (unpack it first)",
    b"BZh": "a bzip2 file (unpack it first)",
    b"\xfd7zXZ": "an xz file (unpack it first)",
    b"\x28\xb5\x2f\xfd": "a Zstandard file (unpack it first)",
}
ZIPPED = {".docx": "docx", ".zip": "zip"}
BY_CONTENT = (
    ("wiki", re.compile(rb"\s*<doc id=")),
    ("html", re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!doctype html|<html\b)", re.I)),
    ("cda", re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?(?:<\?[^>]*>\s*)*<(?:\w+:)?ClinicalDocument\b")),
    ("hl7", re.compile(rb"\x0b?MSH\|")),
    ("xml", re.compile(rb"\s*<(?:\?xml|!DOCTYPE|article\b|Pubmed|pmc-)")),
    ("json", re.compile(rb"\s*(?:\[\s*)?\{\s*\"")),
)
WIDE = {b"\xff\xfe\x00\x00": "utf-32", b"\x00\x00\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
Stream = Any  # a buffered reader: a file or a GzipFile


class Meter:
    """Counts the bytes read from disk (compressed bytes, for gzipped files), for the progress bar."""

    def __init__(self) -> None:
        self._finished = 0
        self._open: BinaryIO | None = None

    def start(self, raw: BinaryIO) -> None:
        """Begin to count a file that was opened."""
        self._open = raw

    def finish(self, size: int) -> None:
        """Count the whole size of a file that was read."""
        self._finished += size
        self._open = None

    @property
    def done(self) -> int:
        """The number of bytes read so far."""
        return self._finished + (self._open.tell() if self._open else 0)


def walk(paths: list[Path]) -> Iterator[Path]:
    """All files below the paths in a stable order, without hidden ones; unreadable folders are yielded to be reported.

    The names of one folder at a time are in memory. Links to folders are not followed, because they may form cycles.
    """
    for path in paths:
        if path.is_dir():
            yield from _below(path)
        else:
            yield path


def _below(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except OSError:
        yield folder
        return
    for path in (folder / name for name in names):
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)
        else:
            yield path


def size_of(path: Path) -> int:
    """The size of a file in bytes; 0 if it is not a file."""
    return path.stat().st_size if path.is_file() else 0


@contextmanager
def opened(path: Path, meter: Meter) -> Iterator[Stream]:
    """A binary stream of a file, decompressed if it is gzipped."""
    with path.open("rb") as raw:
        meter.start(raw)
        if raw.peek(2)[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=raw) as stream:
                yield stream
        else:
            yield raw


def kind_of(path: str, head: bytes) -> str:
    """The kind of a file, by its first bytes and its suffix; "" if it is not read (`refusal` says why)."""
    suffix = Path(path.lower().removesuffix(".gz")).suffix
    if head.startswith(b"PK\x03\x04"):
        return ZIPPED.get(suffix, "")
    if head.startswith(b"{\\rtf"):
        return "rtf"
    if refusal(path, head):
        return ""
    found = next((kind for kind, pattern in BY_CONTENT if pattern.match(head.removeprefix(b"\xef\xbb\xbf"))), "")
    if found in ("cda", "hl7"):
        return found
    if suffix in BY_SUFFIX:
        return BY_SUFFIX[suffix]
    if suffix != ".txt" and found:
        return found
    return "wiki" if head.startswith(b"<doc id=") else "pdf" if b"\x0c" in head else "text"


def refusal(path: str, head: bytes) -> str:
    """Why a file is not read; "" if it is."""
    known = next((what for mark, what in REFUSED.items() if head.startswith(mark)), "")
    if known:
        return known
    if head.startswith(b"PK\x03\x04"):
        suffix = Path(path.lower()).suffix
        return "" if suffix in ZIPPED else f"a {suffix or 'zip'} file (save it as .docx, .csv or text first)"
    return "binary, not text" if b"\x00" in head and not wide(head) else ""


def wide(head: bytes) -> str:
    """The encoding that a byte-order mark or an escape sequence announces, or ""."""
    if b"\x1b$B" in head or b"\x1b$@" in head:
        return "iso2022_jp"
    return next((name for mark, name in WIDE.items() if head.startswith(mark)), "")


def decoded(stream: Stream, language: str, place: str, tally: Tally) -> Iterator[tuple[int, str]]:
    """(number of the first line, text) of each block; a block ends between paragraphs, else lines, else words.

    Lines that are not UTF-8 are decoded with the encoding that is detected on the first of them, and counted.
    """
    head = stream.peek(LOOK)
    if name := wide(head):
        yield from _wide(stream, name)
        return
    line, rest, encoding = 1, b"", _Encoding(language)
    while True:
        block, damage = _filled(stream)
        whole = rest + block
        cut = _cut(whole) if len(block) >= BLOCK else len(whole)
        rest = whole[cut:]
        if cut:
            yield line, _text(whole[:cut].removeprefix(b"\xef\xbb\xbf"), place, line, encoding, tally)
            line += whole.count(b"\n", 0, cut)
        if damage:  # raised after yielding what was read before the damage
            raise damage
        if len(block) < BLOCK:
            return


def _filled(stream: Stream) -> tuple[bytes, Exception | None]:
    """A block, shorter only at the end, and the error that ended it; small reads lose little data before an error."""
    parts, size = [], 0
    try:
        while size < BLOCK and (part := stream.read1(BLOCK - size)):
            parts.append(part)
            size += len(part)
    except (EOFError, OSError, zlib.error) as error:
        return b"".join(parts), error
    return b"".join(parts), None


def _wide(stream: Stream, encoding: str) -> Iterator[tuple[int, str]]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    line, rest = 1, ""
    while True:
        block, damage = _filled(stream)
        whole = rest + decoder.decode(block, final=len(block) < BLOCK)
        cut = whole.rfind("\n") + 1 if len(block) >= BLOCK else 0
        text, rest = whole[: cut or None], whole[cut or len(whole) :]
        yield line, text.replace("\r\n", "\n")
        line += text.count("\n")
        if damage:
            raise damage
        if len(block) < BLOCK:
            return


def _cut(block: bytes) -> int:
    """Where to end a block: in its second half, as late as possible, preferably between paragraphs."""
    half = len(block) // 2
    for mark in (b"\n\n", b"\n", b". ", b" "):
        at = block.rfind(mark, half)
        if at >= 0:
            return at + len(mark)
    end = len(block)
    while end > max(0, len(block) - 4) and block[end - 1] & 0xC0 == 0x80:  # do not split a character
        end -= 1
    return end - 1 if end and block[end - 1] >= 0xC0 else len(block)


def _text(block: bytes, place: str, line: int, encoding: "_Encoding", tally: Tally) -> str:
    try:
        return block.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        parts = block.split(b"\n")
        foreign = [n for n, part in enumerate(parts) if not _is_utf8(part)]
        name = encoding.of(b"\n".join(parts[n] for n in foreign))
        for n in foreign:
            tally.note("lines", "not UTF-8: the encoding was detected", f"{place}:{line + n}", detail=name)
        some = set(foreign)
        made = (p.decode(name if n in some else "utf-8", "replace") for n, p in enumerate(parts))
        return "\n".join(made).replace("\r\n", "\n")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@dataclass
class _Encoding:
    """The encoding of the parts of a file that are not UTF-8, detected on the first of them."""

    language: str
    name: str = ""

    def of(self, sample: bytes) -> str:
        """The name of the encoding; the first call detects it from ``sample``, later calls repeat the result."""
        self.name = self.name or detect(sample, self.language)
        return self.name
