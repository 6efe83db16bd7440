"""Read the text of office formats: DOCX, RTF, e-mail messages, tables in CSV, and the members of zip files."""

import csv
import io
import zipfile
from collections.abc import Iterator
from email import message_from_bytes, policy
from typing import Any, cast

from hansa.data.importing.markup import html_text, needed
from hansa.data.importing.tally import Tally

LARGEST = 1 << 26  # bytes of a document that is held in memory as a whole
RATIO = 200  # a member of a zip file that unpacks to more than this multiple of its size is not read


def docx_text(data: bytes) -> str:
    """The paragraphs and tables of a Word document in their order; raises `ValueError` if it is damaged."""
    docx = needed("docx")
    try:
        document = docx.Document(io.BytesIO(data))
    except (KeyError, zipfile.BadZipFile, docx.opc.exceptions.PackageNotFoundError) as error:
        raise ValueError("not a readable Word document") from error
    lines = []
    for block in document.iter_inner_content():
        if hasattr(block, "rows"):
            lines += [" | ".join(dict.fromkeys(cell.text.strip() for cell in row.cells)) for row in block.rows]
        else:
            lines.append(block.text)
    return "\n\n".join(line for line in lines if line.strip())


def rtf_text(data: bytes) -> str:
    """The text of an RTF document."""
    made = needed("striprtf.striprtf").rtf_to_text(data.decode("latin-1"), errors="replace")
    return str(made)


def email_text(data: bytes) -> str:
    """Subject and body of an e-mail; its addresses and attachments are left out."""
    message = message_from_bytes(data, policy=policy.default)
    body = message.get_body(("plain", "html"))
    text = ""
    if body is not None:
        try:
            text = str(body.get_content())
        except (LookupError, UnicodeDecodeError):
            text = (body.get_payload(decode=True) or b"").decode("utf-8", "replace")  # type: ignore[union-attr]
        if body.get_content_type() == "text/html":
            text = html_text(text)
    return f"{message.get('subject', '') or ''}\n\n{text}".strip()


def table_texts(lines: Iterator[str], column: str, place: str, tally: Tally) -> Iterator[tuple[int, str]]:
    """(line, text) of each row of a CSV or TSV table whose header names the column; others are noted and skipped."""
    csv.field_size_limit(LARGEST)
    head = next(lines, "")
    delimiter = max(",;\t|", key=head.count)
    reader = csv.reader(_with(head, lines), delimiter=delimiter)
    names = next(reader, [])
    if column not in names:
        shown = ", ".join(names[:8]) if all(len(name) < 40 for name in names) else f"{len(names)} columns"
        tally.note("files", f"no column '{column}' (name it with --field)", place, detail=shown)
        return
    at = names.index(column)
    try:
        for row in reader:
            if len(row) > at:
                yield reader.line_num, row[at]
            elif row:
                tally.note("records", "fewer columns than the header", f"{place}:{reader.line_num}")
    except csv.Error as error:
        tally.note("records", "not a readable table", f"{place}:{reader.line_num}", detail=str(error))


def _with(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def zip_members(stream: Any, place: str, tally: Tally) -> Iterator[tuple[str, io.BufferedReader]]:
    """(name, stream) of each file in a zip; folders and hidden files are skipped, bombs and locked files are noted."""
    try:
        archive = zipfile.ZipFile(stream)
    except zipfile.BadZipFile:
        tally.note("files", "a damaged zip file", place)
        return
    with archive:
        for member in sorted(archive.infolist(), key=lambda m: m.filename):
            name = f"{place}!{member.filename}"
            if member.is_dir() or any(part.startswith((".", "__MACOSX")) for part in member.filename.split("/")):
                continue
            if member.flag_bits & 1:
                tally.note("files", "a zip member with a password", name)
            elif member.file_size > RATIO * max(1, member.compress_size):
                tally.note("files", f"a zip member that unpacks to more than {RATIO} times its size", name)
            else:
                with archive.open(member) as opened:
                    yield name, io.BufferedReader(cast(io.RawIOBase, opened))
