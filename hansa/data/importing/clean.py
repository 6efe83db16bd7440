"""Clean text: one Unicode form, no control characters, no markup, paragraphs instead of wrapped lines.

Most text needs few of these steps. Each step therefore first checks, with a fast scan, whether it applies.
"""

import html
import re
import unicodedata
from collections import Counter

LINE = 40  # a shorter line was not wrapped: it is a heading or an item, and is not joined with the next line
LOWER = "a-zß-öø-ÿāăąćčďđēėęěğīįıłńňōőřśşšťūůűźżžа-яёђѓєѕіїјљњћќўџґα-ωά-ώ"
INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufffd]"
)
LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
SPACES = re.compile("[\t\x1f\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
TAG = re.compile(r"</?[A-Za-z][^<>\n]{0,300}>|<!--.{0,2000}?-->", re.S)
WIKI = re.compile(r"\{\{[^{}]{0,500}\}\}|\[\[(?:[^\[\]|]{0,200}\|)?([^\[\]|]{0,200})\]\]|'''?")
CITATION = re.compile(r" ?\[[\d,;\s\u2013-]{1,40}\]")
BULLETS = "*•‣▪"  # and hyphens; a list item becomes a paragraph
LISTED = re.compile(rf"\n[{BULLETS}-] +")
LOOSE_END = re.compile(r"\n(?<=[ -]\n)")
HYPHEN = re.compile(rf"-\n(?=[{LOWER}])(?<=[^\W\d_]-\n)")
WRAPPED = re.compile(
    rf"\n(?=\S)(?:(?<=[^\n]{{{LINE}}}[^\n.!?…:;。！？।]\n)|(?=[{LOWER}])(?<=[^\n.!?…:;]\n))"  # noqa: RUF001
)
BOILERPLATE = re.compile(
    r"\n[ ]*(?:[-=_*~#.•·|+ ]{2,}"
    r"|[-–—\[( ]*(?:(?:page|pag\.?|pagina|página|seite|стр\.?|страница|p\.)[ ]?)?\d{1,4}"
    r"(?:[ ]?(?:/|of|di|de|von|sur|из|от)[ ]?\d{1,4})?[-–—\]) ]*"
    r"|(?:https?://|www\.)\S+"
    r"|(?:©|\(c\)|copyright\b)[^\n]{0,200}"
    r")[ ]*(?=\n)",
    re.I,
)
RIGHTS = (
    "rights reserved",
    "diritti riservati",
    "droits réservés",
    "Rechte vorbehalten",
    "derechos reservados",
    "direitos reservados",
    "права защищены",
    "права запазени",
    "права захищені",
)
RIGHTS_LINE = re.compile(rf"\n[^\n]{{0,100}}(?:{'|'.join(RIGHTS)})[^\n]{{0,100}}(?=\n)", re.I)
EDGE = 2  # lines at the top and bottom of a page that may be running heads or page numbers


def clean(text: str, kind: str, citations: bool) -> str:
    """The text as paragraphs separated by blank lines, without line ends inside a paragraph.

    ``kind`` "pdf" also removes running heads; ``citations`` keeps brackets such as [12, 13].
    """
    if kind == "pdf":
        text = _without_running_heads(text)
    text = _without_markup(text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if not text.replace("\n", " ").isprintable():  # much faster than searching for the characters below
        text = SPACES.sub(" ", LINE_ENDS.sub("\n", INVISIBLE.sub("", text)))
    if not citations and "[" in text:
        text = CITATION.sub("", text)
    if "\n" in text:
        text = _paragraphs(text)
    while "  " in text:
        text = text.replace("  ", " ")
    return text


def _without_markup(text: str) -> str:
    if "&" in text and ";" in text:
        text = html.unescape(text)
    if "<" in text:
        text = TAG.sub(" ", text)
    if any(mark[0] in text and mark in text for mark in ("{{", "[[", "''")):  # one character is faster to find
        text = WIKI.sub(lambda found: found.group(1) or "", text)
    return text


def _paragraphs(text: str) -> str:
    loose = LOOSE_END.search(text)
    if loose:
        text = re.sub(r"[ ]+\n", "\n", text)
    text = BOILERPLATE.sub("\n", f"\n{text}\n")
    if any(words in text for words in RIGHTS):
        text = RIGHTS_LINE.sub("\n", text)
    if loose:
        text = HYPHEN.sub("", text)
    if "\n- " in text or any(mark in text for mark in BULLETS):  # faster than a pattern
        text = LISTED.sub("\n\n", text)
    text = WRAPPED.sub(" ", text)
    while "\n\n" in text:  # ten times as fast as a regular expression
        text = text.replace("\n\n", "\n")
    return text.replace("\n", "\n\n")


def _without_running_heads(text: str) -> str:
    """Remove lines that are repeated at the edges of several pages, ignoring numbers, and join the pages."""
    pages = [[line for line in page.split("\n") if line.strip()] for page in text.split("\f")]
    seen = Counter(shape for page in pages for shape in {_shape(line) for line in page[:EDGE] + page[-EDGE:]})
    often = max(3, len(pages) * 2 // 5)
    kept = []
    for page in text.split("\f"):
        lines = page.strip("\n").split("\n")
        filled = [n for n, line in enumerate(lines) if line.strip()]
        edge = {n for n in filled[:EDGE] + filled[-EDGE:] if seen[_shape(lines[n])] >= often}
        body = [line for n, line in enumerate(lines) if n not in edge]
        kept.append("\n".join(body).strip("\n"))
    return "\n".join(page for page in kept if page)


def _shape(line: str) -> str:
    return re.sub(r"\d+", "0", line.strip().lower())
