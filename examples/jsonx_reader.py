"""A reader as a plug-in: files with another suffix.

A ``.jsonx`` file is a sequence of JSON objects. Each begins with ``{`` at the start of a line and may go over several
lines; lines that begin with ``//`` are comments:

    // ward 3
    {"text": "fever and cough",
     "label": "acute"}

A reader yields, for each row, a number, its fields and an empty string; or a number, None and the reason why the row
cannot be read. Hansa counts unreadable rows and reports them with file and number (``data.max_bad_rows``).

In a federation file:

    plugins: [examples/jsonx_reader.py]
    silos: {lyon: {train: lyon.jsonx}, turin: {train: turin.jsonx}}
"""

import json
from collections.abc import Iterator
from pathlib import Path

from hansa.data.readers import READERS, open_text
from hansa.data.rows import ParsedRow
from hansa.data.source import Source


@READERS.register(".jsonx")
def jsonx(file: Path, source: Source) -> Iterator[ParsedRow]:
    """The objects of a file, numbered by the line on which each begins."""
    begin, lines = 0, list[str]()
    with open_text(file) as stream:
        for number, line in enumerate(stream, 1):
            if line.startswith("{"):
                if lines:
                    yield _row(begin, lines)
                begin, lines = number, [line]
            elif not line.startswith("//") and (lines or line.strip()):
                begin = begin or number
                lines.append(line)
    if lines:
        yield _row(begin, lines)


def _row(number: int, lines: list[str]) -> ParsedRow:
    """An object from its lines, or the reason why they are none."""
    try:
        fields = json.loads("".join(lines))
    except json.JSONDecodeError as error:
        return number, None, f"not a JSON object ({error.msg})"
    return (number, fields, "") if isinstance(fields, dict) else (number, None, "not a JSON object")
