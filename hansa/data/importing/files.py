"""Find the files, open them (also gzip), tell what kind they are, and turn bytes into text a block at a time.

Nothing here holds more than one block: a file of any size, even of one single line, passes through.
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
LOOK = 1 << 13  # how many bytes tell the kind of a file
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
Stream = Any  # a buffered reader; the two kinds at hand differ in type, not in use
CODE_PAGES = {
    "cp1250": ("cs", "hr", "hu", "pl", "ro", "sk", "sl"),
    "cp1251": ("be", "bg", "mk", "ru", "sr", "uk"),
    "cp1253": ("el",),
    "cp1254": ("tr",),
    "cp1255": ("he", "yi"),
    "cp1256": ("ar", "fa", "ur"),
}


class Meter:
    """How many bytes of the input have been read, for the progress bar: as they lie on the disk, packed or not."""

    def __init__(self) -> None:
        self._finished = 0
        self._open: BinaryIO | None = None

    def start(self, raw: BinaryIO) -> None:
        self._open = raw

    def finish(self, size: int) -> None:
        self._finished += size
        self._open = None

    @property
    def done(self) -> int:
        return self._finished + (self._open.tell() if self._open else 0)


def walk(paths: list[Path]) -> Iterator[Path]:
    """All files below the paths in a stable order, hidden ones aside; what cannot be read comes too, to be reported.

    One folder's names are held at a time, for folders of millions of notes. Links to folders are not followed: they
    may lead back.
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
    return path.stat().st_size if path.is_file() else 0


@contextmanager
def opened(path: Path, meter: Meter) -> Iterator[Stream]:
    with path.open("rb") as raw:
        meter.start(raw)
        if raw.peek(2)[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=raw) as stream:
                yield stream
        else:
            yield raw


def kind_of(path: Path, head: bytes) -> str:
    """By the suffix, and where that says nothing by the first bytes; "" for what is not text."""
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
    """(number of the first line, text) block by block; a block ends between paragraphs, else lines, else words.

    A line that is not UTF-8 is read in the code page usual for the language, and counted.
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
        if damage:  # only now: what came before the damage still counts
            raise damage
        if len(block) < BLOCK:
            return


def _filled(stream: Stream) -> tuple[bytes, Exception | None]:
    """A block, shorter only at the end; small reads, because one that meets damage loses what it had read."""
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
    """Where to end a block: as late as possible, at the best kind of place in its second half."""
    half = len(block) // 2
    for mark in (b"\n\n", b"\n", b". ", b" "):
        at = block.rfind(mark, half)
        if at >= 0:
            return at + len(mark)
    end = len(block)
    while end > max(0, len(block) - 4) and block[end - 1] & 0xC0 == 0x80:  # not inside a character
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
        tally.note("lines", "not UTF-8: read in the code page of the language", place, detail=page)
        try:
            return line.decode(page)
        except UnicodeDecodeError:
            return line.decode("latin-1")
