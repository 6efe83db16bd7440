"""Where personal details can begin: words that introduce one, and digits. Both are found in one scan of the text.

Every pattern is tried only where it can match: the first letters of an introducing word tell which patterns have a word
that begins so, and the number of digits in a row tells which formats are possible. The findings do not depend on it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hansa.data.deidentification.lexicon import UPPER, Vocabulary, literal, spellings, trie

Places = Mapping[str, Sequence[int]]  # offsets by kind of anchor, ascending; a kind without places may be missing
OPENING = 3  # letters of a word that are compared
DIGITS = re.compile(r"\d+")
CODE_BEFORE = re.compile(rf"(?:[{UPPER}]{{2,5}}[- ]|(?<!\w)[a-z]{{2,5}}-)$")  # MRN-1234567
SIGNS = "+(*"  # before the first digit of a number
AFTER_DAY = " .ºesnrt"  # 3 May, 3. Mai, 3º, 1er, 1st, 2nd, 3rd, 4th
AFTER_DATE_PART = " ./-"


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


class NumberPlaces(NamedTuple):
    """Offsets where numbers begin, in ascending order, by the number of digits in a row and what follows them."""

    any: list[int]  # also at a sign or letters before the digits
    days: list[int]  # 1 or 2 digits, then a space or the beginning of an ordinal ending
    two_or_more: list[int]
    four: list[int]
    five: list[int]
    dates: list[int]  # 1, 2 or 4 digits, then a separator of dates


def number_places(text: str) -> NumberPlaces:
    """The offsets where a number may begin: at its digits, at a sign before them, or at letters joined to them."""
    found = NumberPlaces([], [], [], [], [], [])
    anywhere, days, two_or_more, four, five, dates = found
    for m in DIGITS.finditer("\n" + text + "\n"):  # so that every number has neighbours
        start, end = m.start() - 1, m.end() - 1
        before, after = m.string[start], m.string[end + 1]
        if before in SIGNS:
            anywhere.append(start - 1)
        elif before.isalpha():
            letters = start - 1
            while letters and text[letters - 1].isalpha():
                letters -= 1
            anywhere.append(letters)
        elif start > 1 and (text[start - 2].isupper() if before == " " else before == "-"):
            code = CODE_BEFORE.search(text, max(0, start - 7), start)
            if code:
                anywhere.append(code.start())
        anywhere.append(start)
        digits = end - start
        if digits > 1:
            two_or_more.append(start)
        if digits < 3:
            if after in AFTER_DAY:
                days.append(start)
            if after in AFTER_DATE_PART:
                dates.append(start)
        elif digits == 4:
            four.append(start)
            if after in AFTER_DATE_PART:
                dates.append(start)
        elif digits == 5:
            five.append(start)
    return found
