"""Find relatives: "his mother", «su hermano». They are frequent and rarely identify, so a user switches them on.

The words come from ``kin`` of `languages/LANG.yaml`, which also introduce names, and from ``relatives``: ``more`` words
and forms (an asterisk stands for up to three letters), and ``unclear`` words, which mean a relative only after one of
the ``possessives`` («su mujer» is a wife, «mujer» may be any woman). The possessive is no part of the finding.
"""

import re
from collections.abc import Iterator
from functools import cache

from hansa.data.deidentification.lexicon import LETTER, Vocabulary, vocabulary
from hansa.data.deidentification.rules import Finding

ENDING = rf"{LETTER}{{0,3}}"


def relatives(text: str, language: str) -> Iterator[Finding]:
    """The relatives in a text, in order, of type RELATIVE; raises `UserError` if the language has no rules."""
    for m in _pattern(vocabulary(language).code).finditer(text):
        yield Finding(*m.span(m.lastgroup or 0), "RELATIVE")


def kin_words(words: Vocabulary) -> list[str]:
    """The words of ``kin`` that mean a relative without a possessive, too."""
    return _clear(words, words.words("kin"))


def _clear(words: Vocabulary, some: list[str]) -> list[str]:
    unclear = set(words.words("relatives", "unclear"))
    return [word for word in some if word not in unclear]


@cache
def _pattern(code: str) -> re.Pattern[str]:
    words = vocabulary(code)
    unclear = words.words("relatives", "unclear")
    clear = _clear(words, [*words.words("kin"), *words.words("relatives", "more")])
    after = rf"{_any(words.words('relatives', 'possessives'))} (?P<unclear>{_any(unclear)})"
    return re.compile(rf"(?<!\w)(?:{after}|{words.prefixes}(?P<clear>{_any(clear)}))(?!\w)", re.I)


def _any(forms: list[str]) -> str:
    """A pattern for any of the words, longest first."""
    ordered = sorted(set(forms), key=lambda form: (-len(form), form))
    return f"(?:{'|'.join(re.escape(form).replace(re.escape('*'), ENDING) for form in ordered)})" if forms else "(?!)"
