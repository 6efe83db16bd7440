"""Where personal details can begin: words that introduce one, and digits. Both are found in one scan of the text.

Every pattern is tried only where it can match: the first letters of an introducing word tell which patterns have a word
that begins so, and the number of digits in a row tells which formats are possible. The findings do not depend on it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hansa.data.deidentification.lexicon import UPPER, Vocabulary, literal, spellings, trie

Places = Mapping[str, Sequence[int]]  # offsets by kind of anchor, ascending; a kind without places may be missing
OPENING = 3  # letters of a word that are compared
DIGITS = re.compile(r"\d+")
CODE_BEFORE = re.compile(rf"(?:[{UPPER}]{{2,5}}[- ]|(?<!\w)[a-z]{{2,5}}-)$")  # MRN-1234567
SIGNS = "+(*"  # before the first digit of a number


def matches(pattern: re.Pattern[str], text: str, places: Sequence[int]) -> Iterator[re.Match[str]]:
    """The matches that begin at one of the given offsets, without overlaps."""
    match, past = pattern.match, 0
    for place in places:
        if place >= past and (m := match(text, place)):
            past = m.end()
            yield m


def opening(form: str) -> str:
    """The letters and digits with which every text that `literal` matches begins; at most `OPENING`."""
    length = 0
    while length < min(len(form), OPENING) and form[length].isalnum():
        length += 1
    return form[:length]


class Anchors:
    """The introducing words of one language by kind; a kind is whatever one pattern looks for."""

    def __init__(self, words: Vocabulary, anchors: Iterable[str], kinds: dict[str, Iterable[str]]) -> None:
        """``anchors``: all introducing words. ``kinds``: those with which the pattern of each kind may begin."""
        openings = {kind: {opening(form) for form in spellings(some)} for kind, some in kinds.items()}
        # Hebrew and Arabic attach letters to the front of a word, so its first letters say nothing
        self.all = bool(words.prefixes)
        self.kinds = tuple(kinds)
        self.by_opening: dict[str, tuple[str, ...]] = {}
        for kind, some in openings.items():
            for one in some:
                if not any(one[:cut] in some for cut in range(len(one))):
                    self.by_opening[one] = (*self.by_opening.get(one, ()), kind)
        start = rf"{words.prefixes}(?={trie([literal(form) for form in spellings(anchors)])})\w"
        # One separator is read before each word. It begins the pattern, because a set of characters is searched fast.
        self.pattern = re.compile(rf"[\W\d](?={start})")

    def places(self, text: str) -> Places:
        """The offsets at which the pattern of each kind can match, in ascending order."""
        starts = [m.start() for m in self.pattern.finditer("\n" + text)]
        if self.all:
            return dict.fromkeys(self.kinds, starts)
        found: dict[str, list[int]] = defaultdict(list)
        kinds_of = self.by_opening.get
        for start in starts:
            for end in range(start, start + OPENING + 1):
                for kind in kinds_of(text[start:end], ()):
                    found[kind].append(start)
        return found


@dataclass(frozen=True)
class NumberPlaces:
    """Offsets where numbers begin, in ascending order, by the number of digits in a row."""

    any: list[int] = field(default_factory=list)  # also at a sign or letters before the digits
    one_or_two: list[int] = field(default_factory=list)
    two_or_more: list[int] = field(default_factory=list)
    four: list[int] = field(default_factory=list)
    five: list[int] = field(default_factory=list)
    dates: list[int] = field(default_factory=list)  # 1, 2 or 4 digits before a separator of dates


def number_places(text: str) -> NumberPlaces:
    """The offsets where a number may begin: at its digits, at a sign before them, or at letters joined to them."""
    found = NumberPlaces()
    anywhere = found.any
    for m in DIGITS.finditer(text):
        start, end = m.span()
        before = text[start - 1] if start else ""
        if before in SIGNS and before:
            anywhere.append(start - 1)
        elif before in ("-", " "):
            code = CODE_BEFORE.search(text, max(0, start - 7), start) if text[max(0, start - 2)].isalpha() else None
            if code:
                anywhere.append(code.start())
        elif before.isalpha():
            letters = start - 1
            while letters and text[letters - 1].isalpha():
                letters -= 1
            anywhere.append(letters)
        anywhere.append(start)
        digits = end - start
        if digits <= 2:
            found.one_or_two.append(start)
        if digits >= 2:
            found.two_or_more.append(start)
        if digits == 4:
            found.four.append(start)
        elif digits == 5:
            found.five.append(start)
        if digits in (1, 2, 4) and text[end : end + 1] in (" ", ".", "/", "-"):
            found.dates.append(start)
    return found
