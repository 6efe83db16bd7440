"""Further occurrences of a name that was found: in any case, without accents, and with an error of recognition."""

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

from hansa.data.deidentification.details import holes
from hansa.data.deidentification.lexicon import UPPER, Vocabulary, vocabulary, without_case
from hansa.data.deidentification.names import is_eponym, stemmed
from hansa.data.deidentification.rules import Finding

WORD = re.compile(r"[^\W\d_]+")
# A token that may be a misread name: letters with a digit or sign inside.
TOKEN = re.compile(r"[^\W_](?:[^\W_]|[|!$](?=\w))*")
CAPITALISED = re.compile(rf"(?<![^\W_])[{UPPER}\d](?:[^\W_]|[|!$](?=\w)){{3,}}")
SHORTEST = 4  # letters of a word that is looked for elsewhere
MISREAD = 6  # letters of a word that is also found with one character wrong
LOOKALIKES = str.maketrans("01358|!$", "oiesbiis")


@lru_cache(maxsize=65536)
def plain(word: str) -> str:
    """The word in lower case, without accents, and with digits read as the letters they resemble."""
    bare = "".join(c for c in unicodedata.normalize("NFD", word.casefold()) if not unicodedata.combining(c))
    return bare.translate(LOOKALIKES)


def repeated(text: str, names: Iterable[str], language: str) -> list[Finding]:
    """Where words of the given names occur in the text: with another case, ending or accent, or misread."""
    words = vocabulary(language)
    wanted = {plain(w): w for name in names for w in WORD.findall(name) if _telling(w, words)}
    if not wanted:
        return []
    endings = words.raw.get("name_endings", 0)
    stems = {plain(stemmed(w)) for w in wanted.values()} if endings else set()
    long = [w for w in wanted if len(w) >= MISREAD] if words.cased else []
    shapes = {shape for w in long for shape in holes(w)}
    found = []
    token_pattern = CAPITALISED if words.cased and not without_case(text) else TOKEN
    for m in token_pattern.finditer(text):
        token = m[0]
        if len(token) < SHORTEST or token.isdigit():
            continue
        read = plain(token)
        hit = read in wanted or (endings and any(read.startswith(s) and len(read) - len(s) <= endings for s in stems))
        if not hit and len(read) >= MISREAD and shapes:
            hit = not shapes.isdisjoint(holes(read)) and token.casefold() not in words.stop
        if hit and not is_eponym(words, text, m.start(), m.end()):
            found.append(Finding(m.start(), m.end(), "NAME"))
    return found


def _telling(word: str, words: Vocabulary) -> bool:
    small = word.casefold()
    title = small in words.title_words
    return len(word) >= SHORTEST and small not in words.stop and small not in words.particles and not title
