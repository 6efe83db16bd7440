"""Find names of people: after a title or label, by a patronymic or initials; then all their other occurrences."""
# ruff: noqa: RUF001 (letters of several scripts are intended)

import re
from collections.abc import Iterable, Iterator
from functools import cache

from hansa.data.deidentification.anchors import Places, matches
from hansa.data.deidentification.lexicon import (
    CAPITAL,
    INITIAL,
    LETTER,
    LOWER,
    UNCASED,
    UPPER,
    Vocabulary,
    grouped,
    literal,
    one_of,
    spellings,
    vocabulary,
)

Span = tuple[int, int]
WORD = re.compile(rf"{LETTER}[\w'’׳״\u064b-\u0652]*")
AFTER_EPONYM = " -'’"
AFTER_TITLE = r"(?:(?<=[.ªº/׳'״]) ?| +)"
NAME_ENDS = re.compile(r" *(?:[,;(/\n]|$| - | – |\d| geb| DOB| born| aged)")  # after the name that follows a label


class Names:
    """The name patterns of one language."""

    def __init__(self, words: Vocabulary) -> None:
        self.words = words
        self.title = re.compile(rf"{words.prefixes}(?P<title>(?:{titles(words)}{AFTER_TITLE})+)")
        self.one_title = re.compile(titles(words) + AFTER_TITLE)
        self.label = re.compile(rf"{words.prefixes}{one_of(words.words('name_labels'))} ?: *")
        people = words.words("person_labels")
        self.person = re.compile(rf"{words.prefixes}{one_of(people)} ?: *") if people else None
        roles = words.words("roles")
        self.role = re.compile(rf"{one_of(roles, cases=not words.raw.get('roles_lower_only'))}(?: ?:)? (?={CAPITAL})")
        kin = words.words("kin")
        self.kin = re.compile(rf"{words.prefixes}{one_of(kin)},? (?={CAPITAL})") if kin and words.cased else None
        # where case says nothing, a name ends before what the person does: "dr smith phoned"
        self.verbs = frozenset(words.words("person_verbs") if not words.cased and words.raw.get("cased", True) else ())
        self.particles = rf"(?:{one_of(words.particles)} )*"
        self.with_particle = re.compile(rf"(?<!\w)(?:{one_of(words.particles)} )+{CAPITAL}")  # De Luca
        self.word = re.compile(rf"(?:{INITIAL}|{CAPITAL})" if words.cased else UNCASED)
        self.next = re.compile(rf" {self.particles}(?P<word>{self.word.pattern})")
        self.first = re.compile(rf"{self.particles}(?P<word>{self.word.pattern})")
        self.not_after = re.compile(rf"(?:{one_of(words.words('not_after'))}|\d) $")
        self.patronymic = words.raw.get("patronymic") and re.compile(
            rf"[{UPPER}](?<!\w[{UPPER}]){LOWER}+{words.raw['patronymic']}(?!\w)"
        )
        self.initials = words.raw.get("initials") and re.compile(rf"[{UPPER}](?<![\w.][{UPPER}])\. ?[{UPPER}]\.")
        after = [t for group in ("female", "male", "any") for t in words.words("titles_after", group)]
        self.title_after = re.compile(rf" {one_of(after)}") if after else None
        self.word_before = re.compile(rf"(?:(?:{CAPITAL}) {self.particles}){{0,2}}(?:{CAPITAL})$")

    def anchors(self) -> dict[str, Iterable[str]]:
        """The words at which the patterns of this class begin, by the kind under which `find` expects their places."""
        keys = {"name label": "name_labels", "person": "person_labels", "role": "roles", "kin": "kin"}
        return {"title": title_forms(self.words)} | {kind: self.words.words(key) for kind, key in keys.items()}

    def find(self, text: str, anchors: Places) -> Iterator[Span]:
        """The spans of names; ``anchors`` are the places of words that may introduce one, see `anchors`."""
        spans = self._introduced(text, anchors)
        if not spans:
            return
        yield from _joined(text, spans + self._repeated(text, spans))

    def _introduced(self, text: str, anchors: Places) -> list[Span]:
        spans = []
        for m in matches(self.title, text, anchors.get("title", ())):
            start = m.start("title")
            first = self.one_title.match(text, start)
            single = first is not None and sum(c.isalpha() for c in first[0]) < 2
            if first and single and self.not_after.search(text, max(0, m.start() - 20), m.start()):
                start = first.end()  # "vitamin D. Dr. Reed"
            end, count = self._sequence(text, m.end())
            if count and start < m.end():
                spans.append((start, end))
        for m in matches(self.label, text, anchors.get("name label", ())):
            end, count = self._sequence(text, m.end())
            if count:
                spans.append((m.end(), end))
        spans += self._by_person(text, anchors)
        if self.words.cased:
            spans += self._by_role(text, anchors)
        spans += self._by_patronymic(text) + self._by_initials(text) + self._before_title(text)
        return _outermost(spans)

    def _by_person(self, text: str, anchors: Places) -> list[Span]:
        """«Patient: John Smith»: at least two words and then the end, because other text may follow the label too."""
        spans = []
        for m in matches(self.person, text, anchors.get("person", ())) if self.person else ():
            end, count = self._sequence(text, m.end())
            if count > 2 and text.startswith(
                ":", end
            ):  # the last word is the next label: «Patient: John Smith Age: 93»
                spans.append((m.end(), text.rindex(" ", m.end(), end)))
            elif count > 1 and NAME_ENDS.match(text, end):
                spans.append((m.end(), end))
        return spans

    def _by_role(self, text: str, anchors: Places) -> list[Span]:
        """«il paziente Mario Rossi»: at least two words, because a single capitalised word is ambiguous."""
        spans = []
        for m in matches(self.role, text, anchors.get("role", ())):
            end, count = self._sequence(text, m.end())
            if count > 1:
                spans.append((m.end(), end))
        for m in matches(self.kin, text, anchors.get("kin", ())) if self.kin else ():
            end, count = self._sequence(text, m.end())
            if count and (count > 1 or not m[0].endswith(", ")) and text[m.end() : end].split()[0].istitle():
                spans.append((m.end(), end))
        return spans

    def _sequence(self, text: str, position: int) -> tuple[int, int]:
        """The end of the name that begins at ``position``, and its number of words."""
        m = self.first.match(text, position)
        end, count = position, 0
        limit = 5 if self.words.cased else 3 if self.words.raw.get("cased", True) else 2
        last = ""
        while m and not self._is_stop(m["word"]):
            particle_only = not self.words.cased and m["word"].casefold() in self.words.particles
            third_family = count == 2 and not self.words.cased and m["word"].startswith("ال") > last.startswith("ال")
            label = count > 1 and text.startswith(":", m.end()) and not m["word"].istitle()  # NHC:
            if label or (count and m["word"].casefold() in self.verbs) or (count >= limit and not third_family):
                break
            end, count, last = m.end(), count + (not particle_only), m["word"]
            m = self.next.match(text, end)
        return end, count

    def _is_stop(self, word: str) -> bool:
        return len(word.rstrip(".")) > 1 and word.casefold() in self.words.stop

    def _by_patronymic(self, text: str) -> list[Span]:
        spans = []
        for m in self.patronymic.finditer(text) if self.patronymic else ():
            before = self.word_before.search(text, max(0, m.start() - 60), max(0, m.start() - 1))
            if before and text[m.start() - 1] == " ":
                words = list(WORD.finditer(text, before.start(), before.end()))
                kept = [w for w in words if not self._is_stop(w[0])][-2:]
                if kept and kept[-1] is words[-1]:
                    after = self.next.match(text, m.end()) if len(kept) == 1 else None
                    end = after.end() if after and not self._is_stop(after["word"]) else m.end()
                    spans.append((kept[0].start(), end))
        return spans

    def _by_initials(self, text: str) -> list[Span]:
        spans = []
        for m in self.initials.finditer(text) if self.initials else ():
            before = self.word_before.search(text, max(0, m.start() - 40), max(0, m.start() - 1))
            after = re.compile(rf" ?({CAPITAL})").match(text, m.end())
            if before and (word := before[0].split()[-1]) and not self._is_stop(word):
                spans.append((before.end() - len(word), m.end()))
            elif after and not self._is_stop(after[1]):
                spans.append((m.start(), after.end()))
        return spans

    def _before_title(self, text: str) -> list[Span]:
        """Names before a title, as in Basque."""
        spans = []
        for m in self.title_after.finditer(text) if self.title_after else ():
            before = self.word_before.search(text, max(0, m.start() - 60), m.start())
            if before:
                words = [w for w in WORD.finditer(text, before.start(), before.end()) if not self._is_stop(w[0])]
                if words:
                    spans.append((words[0].start(), m.end()))
        return spans

    def _repeated(self, text: str, spans: list[Span]) -> list[Span]:
        """Further occurrences of names: of each word in scripts with capitals, else of the whole or the last word."""
        title = self.title
        wanted: set[str] = set()
        for start, end in spans:
            m = title.match(text, start)
            name = text[m.end() if m and m.end() <= end else start : end]
            parts = [w[0] for w in WORD.finditer(name) if len(w[0]) > 2 and not self._is_stop(w[0])]
            parts = [p for p in parts if p.casefold() not in self.words.particles]
            if self.words.cased:
                wanted.update(p for p in parts if p[0].isupper())
                wanted.update(m[0] for m in self.with_particle.finditer(name))
            else:
                wanted.update([name, *(p for p in parts[-1:] if len(parts) > 1 and len(p) > 3)])
        return [span for word in sorted(wanted) for span in self._elsewhere(text, word)]

    def _elsewhere(self, text: str, word: str) -> Iterator[Span]:
        endings = self.words.raw.get("name_endings", 0)
        stem = stemmed(word) if endings else word
        position = text.find(stem)
        while position >= 0:
            end = position + len(stem)
            while end < len(text) and text[end].isalpha():
                end += 1
            attached = not self.words.cased and re.search(
                rf"(?<!\w){self.words.prefixes}$", text[max(0, position - 4) : position]
            )
            free = position == 0 or not text[position - 1].isalnum() or attached
            length = end - position
            fits = length <= len(word) + endings if endings else length == len(stem)
            if free and fits and not self._eponym(text, position, end):
                yield position, end
            position = text.find(stem, position + 1)

    def _eponym(self, text: str, start: int, end: int) -> bool:
        return is_eponym(self.words, text, start, end)


@cache
def _eponyms(code: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    words = vocabulary(code)
    before = re.compile(rf"(?<!\w){one_of(words.words('eponyms', 'before'))} $")
    return before, re.compile(rf"(?: |(?=[-'’])){one_of(words.words('eponyms', 'after'))}")


def is_eponym(words: Vocabulary, text: str, start: int, end: int) -> bool:
    """Whether the words around a span make it part of a medical term, as in "Parkinson's disease"."""
    before, after = _eponyms(words.code)
    if text[end : end + 1] in AFTER_EPONYM and after.match(text, end):
        return True
    return text[start - 1 : start] in " \n" and before.search(text, max(0, start - 25), start) is not None


def title_forms(words: Vocabulary) -> set[str]:
    """The titles unchanged, capitalised and in capitals."""
    short = {title.upper() for title in words.titles if sum(c.isalpha() for c in title) == 2}
    return spellings(words.titles) | short


def titles(words: Vocabulary) -> str:
    """A pattern for titles: unchanged, capitalised and in capitals; a one-letter title needs its full stop."""
    forms = title_forms(words)
    singles = [re.escape(f) for f in forms if sum(c.isalpha() for c in f) == 1]
    several = sorted((f for f in forms if sum(c.isalpha() for c in f) > 1), key=lambda f: (-len(f), f))
    return grouped([*map(literal, several), *singles])


def stemmed(word: str) -> str:
    """The part of a name that does not change when the name is declined."""
    stem = word.rstrip("аяоеёийыьуюіїєαάοόςσηήυύιίaek")
    return stem if len(stem) >= 4 else word


def _outermost(spans: list[Span]) -> list[Span]:
    kept: list[Span] = []
    for start, end in sorted(set(spans), key=lambda s: (s[0], -s[1])):
        if not kept or start >= kept[-1][1]:
            kept.append((start, end))
        elif end > kept[-1][1]:
            kept[-1] = (kept[-1][0], end)
    return kept


def _joined(text: str, spans: list[Span]) -> list[Span]:
    """Merge spans that are separated by a single space."""
    joined: list[Span] = []
    for start, end in _outermost(spans):
        if joined and text[joined[-1][1] : start] == " ":
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
