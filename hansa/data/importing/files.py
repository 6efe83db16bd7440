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
from pathlib import Path
from typing import Any, BinaryIO

from hansa.data.importing.tally import Tally, primary_language

BLOCK = 1 << 18
LOOK = 1 << 13  # bytes that are examined to detect the kind of a file
KINDS = ("text", "pdf", "html", "xml", "json", "wiki")
BY_SUFFIX = {".html": "html", ".htm": "html", ".xhtml": "html", ".xml": "xml", ".nxml": "xml"}
BY_SUFFIX |= {".json": "json", ".jsonl": "json", ".ndjson": "json"}
BY_CONTENT = (
    ("wiki", re.compile(rb"\s*<doc id=")),
    ("html", re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!doctype html|<html\b)", re.I)),
    ("xml", re.compile(rb"\s*<(?:\?xml|!DOCTYPE|article\b|Pubmed|pmc-)")),
    ("json", re.compile(rb"\s*(?:\[\s*)?\{\s*\"")),
)
WIDE = {b"\xff\xfe\x00\x00": "utf-32", b"\x00\x00\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
Stream = Any  # a buffered reader: a file or a GzipFile
CODE_PAGES = {
    "cp1250": ("cs", "hr", "hu", "pl", "ro", "sk", "sl"),
    "cp1251": ("be", "bg", "mk", "ru", "sr", "uk"),
    "cp1253": ("el",),
    "cp1254": ("tr",),
    "cp1255": ("he", "yi"),
    "cp1256": ("ar", "fa", "ur"),
}


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


def kind_of(path: Path, head: bytes) -> str:
    """The kind of a file, by its suffix or else by its first bytes; "" if it is not text."""
    if b"\x00" in head and not wide(head):
        return ""
    if head.startswith((b"%PDF-", b"{\\rtf")):
        return ""
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix in BY_SUFFIX:
        return BY_SUFFIX[suffix]
    if suffix != ".txt":
        for kind, pattern in BY_CONTENT:
            if pattern.match(head.removeprefix(b"\xef\xbb\xbf")):
                return kind
    return "wiki" if head.startswith(b"<doc id=") else "pdf" if b"\x0c" in head else "text"


def wide(head: bytes) -> str:
    """The encoding that a byte-order mark announces, or ""."""
    return next((name for mark, name in WIDE.items() if head.startswith(mark)), "")


def decoded(stream: Stream, language: str, place: str, tally: Tally) -> Iterator[tuple[int, str]]:
    """(number of the first line, text) of each block; a block ends between paragraphs, else lines, else words.

    A line that is not UTF-8 is decoded with the usual code page of the language, and counted.
    """
    head = stream.peek(LOOK)
    if name := wide(head):
        yield from _wide(stream, name)
        return
    line, rest = 1, b""
    while True:
        block, damage = _filled(stream)
        whole = rest + block
        cut = _cut(whole) if len(block) >= BLOCK else len(whole)
        rest = whole[cut:]
        if cut:
            yield line, _text(whole[:cut].removeprefix(b"\xef\xbb\xbf"), language, place, line, tally)
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


def _text(block: bytes, language: str, place: str, line: int, tally: Tally) -> str:
    try:
        return block.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        parts = (_foreign(part, language, f"{place}:{line + n}", tally) for n, part in enumerate(block.split(b"\n")))
        return "\n".join(parts).replace("\r\n", "\n")


def _foreign(line: bytes, language: str, place: str, tally: Tally) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        page = next(
            (name for name, languages in CODE_PAGES.items() if primary_language(language) in languages), "cp1252"
        )
        tally.note("lines", "not UTF-8: decoded with the code page of the language", place, detail=page)
        try:
            return line.decode(page)
        except UnicodeDecodeError:
            return line.decode("latin-1")
