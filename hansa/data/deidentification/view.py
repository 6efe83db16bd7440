r"""A cleaned view of a text, for finding personal details: the finder reads the view, and findings point into the text.

Documents hide words behind their notation: ``M&uuml;ller``, ``Mu\u0308ller``, ``Mül<b>ler</b>``, a soft hyphen, a
name that is broken at the end of a line. The view has plain words, as `hansa data import` writes them; `View.back`
gives the span of the original text that belongs to a span of the view.
"""

import html
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from hansa.data.deidentification.lexicon import LOWER, UPPER

ENTITY = r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"
INLINE = r"</?(?:b|i|u|em|strong|span|font|mark|small|big|sup|sub|a|wbr)(?:\s[^<>]{0,300})?/?>|<!--[^>]{0,2000}-->"
TAG = r"</?[A-Za-z][^<>\n]{0,300}>"
INVISIBLE = (
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u0640\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]+"
)
WIDE_SPACE = "\t\x0b\x0c\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
BROKEN = r"(?<=[^\W\d_])[-\xad\u2010]+[ \t]*\r?\n[ \t]*(?=[^\W\d_])"  # a word that goes on in the next line
# The end of a line inside a paragraph. A line that begins with a label, a bullet or a number begins something new.
LINE_END = r"[ \t]*\r?\n[ \t]*"
GOES_ON = r'(?=[\w(+„“"«№])(?!\d{1,2}[.)] )'
LABEL = rf"[{UPPER}][^\n:.,;\d]{{1,30}}:(?!\w)"
SHORT = "|".join(rf"(?<=[\s-]{LOWER * n})" for n in (1, 2, 3))  # a title or a preposition is never the end
WRAP = rf"(?-i:(?<=[^\s!?…]){LINE_END}{GOES_ON}(?!{LABEL})|(?:{SHORT}){LINE_END}{GOES_ON})"
# Letters that are written with other code points: full width, ligatures, presentation forms, mathematical letters.
FORMS = "[\uff01-\uff5e\ufb00-\ufb06\ufb1d-\ufdff\ufe70-\ufefc\U0001d400-\U0001d7ff]+"
MARKED = "[^\\W\\d_][\u0300-\u036f\u0653-\u0655]+"
HIDDEN = re.compile(
    f"(?P<entity>{ENTITY})|(?P<inline>{INLINE})|(?P<tag>{TAG})|(?P<broken>{BROKEN})|(?P<invisible>{INVISIBLE})"
    f"|(?P<wrap>{WRAP})|(?P<space>[ {WIDE_SPACE}]{{2,}}|[{WIDE_SPACE}])|(?P<form>{FORMS}|{MARKED})",
    re.I,
)
MAYBE = re.compile(
    f"[&<\n{WIDE_SPACE}\x00-\x08\x0e-\x1b\x7f-\x9f\xad\u0300-\u036f\u0653-\u0655\u0640\u061c]"
    "|  |[\u1680-\uffff\U0001d400-\U0001d7ff]"
)
# Where `HIDDEN` may match; far fewer places than characters. A combining mark belongs to the letter before it.
CANDIDATE = re.compile(
    f"(?P<mark>[\u0300-\u036f\u0653-\u0655])|[&<]|[-\xad\u2010]+[ \t]*\r?\n|[ \t]*\r?\n"
    f"|[ {WIDE_SPACE}]{{2,}}|[{WIDE_SPACE}]|{INVISIBLE}|{FORMS}"
)
PASSES = 3  # an entity may hide a tag, and a tag a soft hyphen


@dataclass(frozen=True)
class _Pass:
    """One rewriting of a text: its unchanged pieces, by where they begin in the new and in the old text."""

    new: list[int]
    old: list[int]
    lengths: list[int]

    def start(self, at: int) -> int:
        """The old offset of a character of the new text."""
        piece = bisect_right(self.new, at) - 1
        inside = at - self.new[piece]
        if inside < self.lengths[piece] or piece + 1 == len(self.new):
            return self.old[piece] + inside
        return self.old[piece] + self.lengths[piece]  # in a replacement: where it begins

    def end(self, at: int) -> int:
        """The old offset after the character before ``at`` of the new text."""
        piece = bisect_right(self.new, at - 1) - 1
        inside = at - self.new[piece]
        if inside <= self.lengths[piece] or piece + 1 == len(self.new):
            return self.old[piece] + inside
        return self.old[piece + 1]  # in a replacement: where it ends


@dataclass(frozen=True)
class View:
    """The cleaned text, and how its spans map to the original."""

    text: str
    passes: tuple[_Pass, ...] = ()

    def back(self, start: int, end: int) -> tuple[int, int]:
        """The span of the original text from which a non-empty span of the view was made."""
        for one in reversed(self.passes):
            start, end = one.start(start), one.end(end)
        return start, end


def cleaned(text: str) -> View:
    """The view of a text; the text itself if there is nothing to clean."""
    passes: list[_Pass] = []
    for _ in range(PASSES):
        if not MAYBE.search(text):
            break
        made = _once(text)
        if made is None:
            break
        text, one = made
        passes.append(one)
    return View(text, tuple(passes))


def _once(text: str) -> tuple[str, _Pass] | None:
    parts: list[str] = []
    pieces: list[tuple[int, int]] = []  # old start and length of the unchanged pieces
    sizes: list[int] = []  # of a piece and the replacement after it
    position = 0
    for m in _hidden(text):
        new = _plain(m)
        if new == m[0]:
            continue
        parts += [text[position : m.start()], new]
        pieces.append((position, m.start() - position))
        sizes.append(m.start() - position + len(new))
        position = m.end()
    if not pieces:
        return None
    pieces.append((position, len(text) - position))
    parts.append(text[position:])
    starts = [0, *accumulate(sizes)]
    return "".join(parts), _Pass(starts, [p[0] for p in pieces], [p[1] for p in pieces])


def _hidden(text: str) -> Iterator[re.Match[str]]:
    """The matches of `HIDDEN`, from left to right."""
    past, match = 0, HIDDEN.match
    for candidate in CANDIDATE.finditer(text):
        start, end = candidate.span()
        start -= candidate.lastgroup is not None
        while start < end:
            m = match(text, start) if start >= past else None
            if m:
                yield m
                past = m.end()
            start = max(start + 1, past)


def _plain(m: re.Match[str]) -> str:
    kind = m.lastgroup
    if kind == "entity":
        return html.unescape(m[0])
    if kind in ("inline", "invisible"):
        return ""
    if kind == "broken":  # Ros-/si, but García-/López
        follows = m.string[m.end()]
        return "" if follows.islower() or not follows.isupper() or "\xad" in m[0] else "-"
    if kind == "form":
        return unicodedata.normalize("NFKC", m[0])
    return " "


# Misread characters: a digit in a word (Wa1ker, 5utton), a letter in a number (498S896, 20l7).
MISREAD_WORD = re.compile(
    r"(?<![^\W_])(?=[^\W_]*[^\W\d_]{2})[^\W\d_]*[01358][^\W\d_]+(?![^\W_])|(?<![^\W_])[^\W\d_]{3,}[018](?![^\W_])"
    r"|(?<![^\W_])[^\W\d_]{2,}4[^\W\d_]{2,}(?![^\W_])"  # Ferr4nte
)
MISREAD_NUMBER = re.compile(
    r"(?<![^\W_])\d+[lIOoSB]\d+(?![^\W_])|(?<=[\d)] )[lIOSB]\d{2,}(?![^\W_])|(?<![^\W_])\d{3,}[lIOoSB](?![^\W_])"
    r"|(?<=\d )\d[lIOoSB](?![^\W_])"
    r"|(?<![^\W_])(?:[lIOoSB]\d|\d[lIOoSB])(?=[./-][\dlIOoSB]{1,2}[./-])|(?<=[./-])(?:[lIOoSB]\d|\d[lIOoSB])(?=[./-]\d)"
    r"|(?<![^\W_])(?:19|2[0O])[\dlIOoSB]{2}(?![^\W_])"  # 2O2S
    r"|(?<![^\W_])(?:[lIO]\d|[0-3][lIOoSB])"  # l1 mai 2015, 2O de mayo de 2022
    r"(?=\.? (?:[^\W\d_]{1,3} )?[^\W\d_]{3,12}\.?,? (?:[^\W\d_]{1,3} )?[12]\d{3})"
    r"|(?<![^\W_])(?:O\d|\d[lIOoSB])(?= \d{2,3} \d\d)|(?<![^\W_])O\d{2,4}(?=[ /-]\d{3})"  # O1 51 34, O773/756519
)
MIXED = re.compile(r"\d[^\W\d_]|[^\W\d_]\d")  # a token of letters and digits
AS_LETTER = str.maketrans("013458", "oleasb")
AS_CAPITAL = str.maketrans("013458", "OIEASB")
AS_DIGIT = str.maketrans("lIOoSB", "110058")


def repaired(text: str) -> str:
    """The text with the errors of optical character recognition that can be told from the token alone corrected.

    Every character stays one character, so offsets do not change.
    """
    parts: list[str] = []
    past = 0
    for mixed in MIXED.finditer(text):
        start, end = mixed.span()
        if start < past:
            continue
        while start > past and text[start - 1].isalnum():
            start -= 1
        while end < len(text) and text[end].isalnum():
            end += 1
        number, word = MISREAD_NUMBER.match(text, start), MISREAD_WORD.match(text, start)
        new = number[0].translate(AS_DIGIT) if number else _as_word(word) if word else ""
        if new:
            parts += [text[past:start], new]
            past = start + len(new)
        else:
            parts.append(text[past:end])
            past = end
    return "".join([*parts, text[past:]]) if parts else text


def _as_word(m: re.Match[str]) -> str:
    word = m[0]
    if not any(c.islower() for c in word) and any(c.isupper() for c in word):
        return word  # B27, CD34
    if word[0].isdigit() and len(word) < 5:
        return word  # 1mg, 3er
    first = word[0].translate(AS_CAPITAL) if word[0].isdigit() else word[0]
    return first + word[1:].translate(AS_LETTER)
