"""Ways in which documents disguise words: every function rewrites a piece of text and keeps what it says."""

import html
import re
import unicodedata
from collections.abc import Callable
from typing import Any

LETTERS = re.compile(r"(?<=[^\W\d_]{2})(?=[^\W\d_]{2})")


def _inside(sign: str) -> Callable[[str], str]:
    """Puts a sign into the middle of every fifth pair of letters."""

    def rewrite(text: str) -> str:
        places = [m.start() for m in LETTERS.finditer(text)][::5]
        for place in reversed(places):
            text = text[:place] + sign + text[place:]
        return text

    return rewrite


def _entities(text: str) -> str:
    return "".join(f"&#{ord(c)};" if c.isalpha() and not c.isascii() else html.escape(c, False) for c in text)


def _every_third_space(sign: str) -> Callable[[str], str]:
    def rewrite(text: str) -> str:
        seen = iter(range(len(text)))
        return re.sub(" ", lambda m: sign if next(seen) % 3 == 0 else " ", text)

    return rewrite


def _hyphenated(text: str) -> str:
    places = [m.start() for m in LETTERS.finditer(text) if text[m.start()].islower()][::9]
    for place in reversed(places):
        text = text[:place] + "-\n" + text[place:]
    return text


def _wide(text: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" and c.isalnum() else c for c in text)


def _mathematical(text: str) -> str:
    """Letters of the ASCII alphabet in bold mathematical type."""
    small, large = 0x1D41A - ord("a"), 0x1D400 - ord("A")
    return "".join(chr(ord(c) + (small if c.islower() else large)) if c.isascii() and c.isalpha() else c for c in text)


REWRITINGS: dict[str, Callable[[str], str]] = {
    "decomposed": lambda text: unicodedata.normalize("NFD", text),
    "composed": lambda text: unicodedata.normalize("NFC", text),
    "full width": _wide,
    "entities": _entities,
    "soft hyphens": _inside("\xad"),
    "zero-width spaces": _inside("\u200b"),
    "joiners": _inside("\u2060"),
    "direction marks": _inside("\u200e"),
    "tags inside words": _inside("<b></b>"),
    "comments": _inside("<i>"),
    "tabs": lambda text: text.replace(" ", "\t"),
    "double spaces": lambda text: text.replace(" ", "  "),
    "hard spaces": lambda text: text.replace(" ", "\xa0"),
    "thin spaces": lambda text: text.replace(" ", "\u2009"),
    "wrapped lines": _every_third_space("\n"),
    "wrapped lines of Windows": _every_third_space("\r\n"),
    "hyphenation": _hyphenated,
    "hexadecimal entities": lambda text: re.sub(r"[^\W\d_]{3}", lambda m: f"&#x{ord(m[0][0]):x};{m[0][1:]}", text),
    "byte order marks": _inside("\ufeff"),
    "tags with attributes": _inside('<span class="x" id="y"></span>'),
    "mathematical letters": _mathematical,
    "ligatures": lambda text: text.replace("fi", "ﬁ").replace("fl", "ﬂ").replace("ff", "ﬀ"),
    "line separators": _every_third_space("\u2028"),
    "form feeds": _every_third_space("\x0c"),
    "trailing spaces": lambda text: text.replace("\n", "   \r\n"),
    "indented lines": _every_third_space("\n    "),
    "acute accents as apostrophes": lambda text: text.replace("'", "\u00b4"),
}


def rewritten(note: dict[str, Any], rewrite: Callable[[str], str]) -> dict[str, Any]:
    """A note with its text rewritten piece by piece, and the spans where the details are then."""
    text, personal, position = "", [], 0
    for item in sorted(note["personal"], key=lambda p: p["span"]):
        start, end = item["span"]
        text += rewrite(note["text"][position:start])
        detail = rewrite(note["text"][start:end])
        personal.append({"span": [len(text), len(text) + len(detail)], "type": item["type"]})
        text, position = text + detail, end
    return {**note, "text": text + rewrite(note["text"][position:]), "personal": personal}
