"""Tell names that a label introduces from names in running text: the former are far easier to find.

A name is *labelled* if, on its line, nothing but spaces, an opening quote or titles stand between it and

- a label with a colon: one to five words that begin the line, or follow a full stop, comma, colon, semicolon, bar,
  tabulator, closing bracket or digit, and then a colon («Edad: 50. Remitido por: Dra. Ana Ruiz»), or
- a header field: a tabulator, an equals sign or a bar after a word that the language's rules list as a label or role of
  people («Patient<TAB>Smith, John»).

All other names are in running text, such as the one in «Report: a man of 60 years, seen by Dr. Smith».
"""
# ruff: noqa: RUF001 (signs of several scripts are intended)

import re
from functools import cache

from hansa.data.deidentification.lexicon import LETTER, one_of, vocabulary
from hansa.data.deidentification.names import AFTER_TITLE, titles

LONGEST = 160  # characters before a name that are examined
WORD = rf"{LETTER}[\w'’׳״ºª/()-]*"


def is_labelled(text: str, start: int, language: str) -> bool:
    """Whether the name that begins at ``start`` is labelled; raises `UserError` if the language has no rules."""
    line = max(text.rfind("\n", 0, start) + 1, start - LONGEST)
    return _label(vocabulary(language).code).search(text[line:start]) is not None


@cache
def _label(code: str) -> re.Pattern[str]:
    words = vocabulary(code)
    known = one_of([*words.words("name_labels"), *words.words("person_labels"), *words.words("roles")])
    between = rf"[ \t\"“«„'‘]*(?:{titles(words)}{AFTER_TITLE})*$"
    return re.compile(rf"(?:(?:^|[.,:;|\t)\d\ufeff]) *{WORD}(?: {WORD}){{0,4}} ?:|(?<!\w){known} ?[\t=|]){between}")
