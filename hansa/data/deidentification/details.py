"""Find what else identifies: values of labelled fields, institutions, towns, years, high ages, professions.

The words come from `languages/LANG.yaml`: ``fields`` (label → type), ``hospitals`` (words before or after the name of
an institution), ``year_cues``, ``ages`` and ``professions``.
"""
# ruff: noqa: RUF001 (letters of several scripts are intended)

import re
from collections.abc import Callable, Iterable, Iterator

from hansa.data.deidentification.anchors import NumberPlaces, Places, matches
from hansa.data.deidentification.lexicon import CAPITAL, LETTER, UNCASED, UPPER, Vocabulary, one_of

Claim = tuple[int, int, str]
AGE_LIMIT = 89  # higher ages identify (HIPAA Safe Harbor, 45 CFR 164.514(b)(2)(i)(C))
# Abbreviations of four letters, after which an address goes on.
NOT_SHORT = r"(?<![Aa]vda)(?<!Gral)(?<![Cc]tra)(?<!Plza)(?<!Hnos)(?<!Ntra)(?<!Dott)(?<!Prof)"
# The value of a labelled field: to the end of the line or sentence.
VALUE = (
    rf"(?P<value>[^\n;]{{1,80}}?)(?=\s*(?:\.?\s*(?:\n|$|;)|(?:(?<=[^\W\d_]{{4}}){NOT_SHORT}|(?<=\d))\.\s+[{UPPER}]"
    rf"|,? (?:{LETTER}|[º° ]){{2,24}}:))"
)
DATE = r"(?P<value>\d[\w ./:-]{2,24}\d)(?!\d)"
NUMBER = r"(?P<value>\w[\w/.-]*(?: ?[-/]? ?\d[\d-]*){0,7})"
VALUES = {"ID": NUMBER, "DATE": DATE}
YEAR_WORDS = re.compile(r"(?<!\w)(?:año|anno|année|ano|year|Jahr|Jahre|anul|έτος) $", re.I)
ABBREVIATED = r"(?:Drs?|Dra|Univ|Sta|Sto|Ntra|Sra|St|Ste|Prof)\."
YEAR = re.compile(r"(?<![\w.,/-])(?:1[89]\d\d|20\d\d)(?!\w|[.,/:-]\d| ?(?:mg|ml|g|kg|cc|mm|cm|kcal|UI|U|%))")
YEAR_PAIR = re.compile(r"(?P<first>(?:19|20)\d\d)(?: ?[-–/] ?| )$")
NAMED_BY = frozenset(["№", "имени", "им.", "імені", "ім."])  # before the name or number of an institution
NAMING = r"(?:имени|им\.|імені|ім\.|г\.|гр\.|м\.|города|міста)"
WORDS = re.compile(r"\S+")
AGE = re.compile(r"(?<![\w.,/-])(?P<age>\d{1,3})(?!\d)[ -]?")
LONGEST_PROFESSION = 3  # words


DAY_WORD_YEAR = re.compile(
    rf"[0-3]?\d(?:\.|º|er|st|nd|rd|th)? (?:{LETTER}{{1,3}} )?(?P<month>{LETTER}{{4,12}})\.?,? (?:{LETTER}{{1,3}} )?"
    r"(?:19|20)\d\d(?!\w)"
)


def holes(word: str) -> list[str]:
    """The word with each of its characters left open: two words of one length that share one differ in one place."""
    return [f"{word[:i]}*{word[i + 1 :]}" for i in range(len(word))]


class Details:
    """The patterns of one language."""

    def __init__(self, words: Vocabulary) -> None:
        self.words = words
        fields = words.raw.get("fields", {})
        self.fields = [
            (kind, re.compile(rf"{words.prefixes}{one_of(labels)}\.? ?: *{VALUES.get(kind, VALUE)}"))
            for kind, labels in fields.items()
        ]
        particle = f"(?:{one_of(words.particles)} )*" if words.particles else ""
        word = CAPITAL if words.cased else UNCASED
        street = one_of([w for w in words.words("address", "streets") if len(w) > 2])
        named = (
            rf"(?!{street}){particle}(?:{ABBREVIATED}|{word}|[IVX]+(?!\w)|\d{{1,2}} de {LETTER}+)"
            if words.cased
            else word
        )
        self.before = self._pattern(
            "before",
            lambda some: (
                rf"{words.prefixes}(?P<head>{some})"
                rf"(?: (?:\"|“|«|'|‘|(?:of|&|and) |[Nn][º°]? ?|№ ?|{NAMING} )?"
                rf"(?:{named}|\d{{1,3}}(?!\d))){{1,{7 if words.cased else 2}}}"
            ),
        )
        not_after = words.words("hospitals", "not_after")  # «examen clinique»
        self.adjective = re.compile(rf"(?<!\w){one_of(not_after)} $" if not_after and not words.cased else "(?!)")
        self.short = re.compile(rf"['’»”\"]? ?\((?P<short>[{UPPER}]{{3,8}})\)")  # Hospital La Paz (HLP)
        self.after = self._pattern("after", lambda some: some)
        small = rf"(?<!\w)(?:{UNCASED} ){{1,2}}$"
        self.leading = re.compile(rf"(?:(?:St\.|{CAPITAL})(?: (?:of|and|the|for|&))*[ -])+$" if words.cased else small)
        cyrillic = words.cased and words.code in ("ru", "uk", "bg")
        self.adjectives = re.compile(rf"(?:{CAPITAL}(?:[аоуияе]|й|ю|м) ){{1,2}}$" if cyrillic else "(?!)")
        self.cue = re.compile(rf"(?<!\w){words.prefixes}{one_of(words.words('year_cues'))} \(?$")
        later = words.words("year_after")
        self.year_after = re.compile(rf" ?{one_of(later)}") if later else None
        months = [form for month in words.full_months for form in month if len(form) > 3]
        self.months = frozenset(form.casefold() for form in months)
        self.holes = frozenset(hole for form in self.months for hole in holes(form))
        self.shorter = frozenset(one.replace("*", "") for one in self.holes)
        self.age_after = re.compile(one_of(words.words("ages")))
        durations = words.words("durations")
        self.duration = (
            re.compile(rf"(?<!\w){words.prefixes}{one_of(durations)} (?:{LETTER}{{2,8}} )?$") if durations else None
        )
        before = words.words("age_labels")
        self.age_before = re.compile(rf"(?<!\w){one_of(before)} ?:? ?$" if before else "(?!)")
        jobs = words.words("professions")
        ends = rf"(?=[.,;:()\n]|$| {one_of(words.words('town_cues'))} )"
        job = rf"(?P<value>{LETTER}{{3,}}(?: {LETTER}{{2,}}){{0,{LONGEST_PROFESSION - 1}}}?){ends}"
        self.profession = re.compile(rf"{words.prefixes}{one_of(jobs)} {job}") if jobs else None
        self.job = self._job_pattern()
        former = words.words("jobs", "before")
        self.former = re.compile(rf"(?<!\w){one_of(former)} $" if former else "(?!)")
        code = words.raw["address"]["postcode"]
        city = rf"{word}(?:[ -]{particle}{word}){{0,2}}"
        tail = rf"(?:(?:, ?|\. ?| - | )\(?{city}\)?(?=[).,;\n]|$| [\w-]+[:@])){{0,2}}" if words.cased else ""
        self.postcode = (
            re.compile(rf"(?<![\w.,/])(?<!\d-)\d{{5}}(?:[ .,]{{1,2}}(?:[-–] ?)?|-){city}{tail}")
            if r"\d{5}" in code
            else None
        )
        # Los Alisos, 10. 13002 …: a street without a street word, before a postcode
        self.bare_street = re.compile(
            rf"{word}(?: {particle}{word}){{0,4}},? (?:\d{{1,4}}(?:[-–]\d{{1,4}})?{LETTER}?|[sS]/[nN])"
            rf"(?:, ?[A-Z]?\d{{1,2}}[ºª°o]?(?: ?\d?{LETTER}(?!\w))?)?[ .,–-]{{1,4}}(?:[A-Z]-)?$"
        )

    def _pattern(self, key: str, make: Callable[[str], str]) -> re.Pattern[str] | None:
        some = self.words.words("hospitals", key)
        return re.compile(make(one_of(some))) if some else None

    def _job_pattern(self) -> re.Pattern[str] | None:
        """Listed professions in apposition: after a comma or a word such as "former", at the end of a phrase."""
        names, after = self.words.words("jobs", "names"), self.words.words("jobs", "after")
        retired = rf"(?P<retired> {one_of(after)})" if after else "(?P<retired>(?!))"
        return re.compile(rf"{one_of(names)}(?:{retired}|(?=[.,،;:)\n]|$))") if names else None

    def _in_apposition(self, text: str, start: int) -> bool:
        before = text[max(0, start - 24) : start]
        return before.endswith((", ", "، ", "(")) or self.former.search(before) is not None

    def anchors(self) -> dict[str, Iterable[str]]:
        """Words at which `labelled`, `institutions` and `professions` may begin, by the kind of their places."""
        paths = {
            "before": ("hospitals", "before"),
            "after": ("hospitals", "after"),
            "profession": ("professions",),
            "job": ("jobs", "names"),
        }
        fields = {f"field {kind}": labels for kind, labels in self.words.raw.get("fields", {}).items()}
        return fields | {kind: self.words.words(*path) for kind, path in paths.items()}

    def labelled(self, text: str, anchors: Places) -> Iterator[Claim]:
        """The values of labelled fields."""
        for kind, pattern in self.fields:
            for m in matches(pattern, text, anchors.get(f"field {kind}", ())):
                value = m["value"]
                digits = sum(c.isdigit() for c in value)
                written = not self.words.cased or value[:1].isupper() or kind == "PROFESSION"
                if digits > 2 if kind == "ID" else digits or (value.strip() and written):
                    yield (*m.span("value"), kind)

    def institutions(self, text: str, anchors: Places) -> Iterator[Claim]:
        """Hospitals and other institutions with a name of their own."""
        for m in matches(self.before, text, anchors.get("before", ())) if self.before else ():
            if self.adjective.search(text, max(0, m.start() - 24), m.start()):
                continue
            rest = m[0].split()[1:]
            named = (
                any(w[:1].isupper() or w[:1].isdigit() for w in rest)
                if m[0][:1].isupper()
                else any((w.istitle() and len(w) > 3) or w in NAMED_BY for w in rest)
            )
            if self.words.cased:
                end = m.end() if named else 0
            else:
                after = list(WORDS.finditer(text, m.end("head"), m.end()))
                stops = [w.start() for w in after if w[0].strip(".,،").casefold() in self.words.stop]
                end = len(text[: stops[0]].rstrip()) if stops else m.end()
                end = end if end > m.end("head") else 0
            if end:
                yield self._with_adjectives(text, m.start()), end, "HOSPITAL"
                short = self.short.match(text, end) if self.words.cased else None
                for again in re.finditer(rf"(?<!\w){short['short']}(?!\w)", text) if short else ():
                    yield *again.span(), "HOSPITAL"
        for m in matches(self.after, text, anchors.get("after", ())) if self.after else ():
            lead = self.leading.search(text, max(0, m.start() - 60), m.start())
            if lead and self.words.cased and m[0][:1].isupper():
                yield lead.start(), m.end(), "HOSPITAL"
            elif lead and not self.words.cased:
                names = list(WORDS.finditer(text, lead.start(), lead.end()))
                while names and names[0][0].casefold() in self.words.stop:
                    names = names[1:]
                if names:
                    yield names[0].start(), m.end(), "HOSPITAL"

    def _with_adjectives(self, text: str, start: int) -> int:
        """Where the name of an institution begins: at the adjectives with a capital letter before its first word."""
        before = self.adjectives.search(text, max(0, start - 40), start)
        return before.start() if before else start

    def professions(self, text: str, anchors: Places) -> Iterator[Claim]:
        """Professions after words such as "works as a"."""
        for m in matches(self.profession, text, anchors.get("profession", ())) if self.profession else ():
            yield (*m.span("value"), "PROFESSION")
        for m in matches(self.job, text, anchors.get("job", ())) if self.job else ():
            if m["retired"] or self._in_apposition(text, m.start()):
                yield m.start(), m.start("retired") if m["retired"] else m.end(), "PROFESSION"

    def towns(self, text: str, numbers: NumberPlaces) -> Iterator[Claim]:
        """Postcodes with their towns."""
        for m in matches(self.postcode, text, numbers.five) if self.postcode else ():
            before = self.bare_street.search(text, max(0, m.start() - 70), m.start()) if self.words.cased else None
            if before:
                yield before.start(), m.start(), "ADDRESS"
            yield m.start(), m.end(), "TOWN"

    def years(self, text: str, numbers: NumberPlaces) -> Iterator[Claim]:
        """Years after words such as "in" and "since", or before words such as "году"."""
        for m in matches(YEAR, text, numbers.four):
            after = self.year_after.match(text, m.end()) if self.year_after else None
            if after or self.cue.search(text, max(0, m.start() - 24), m.start()):
                word = YEAR_WORDS.search(text, max(0, m.start() - 8), m.start())
                yield word.start() if word else m.start(), m.end(), "DATE"
            elif YEAR_PAIR.search(text, max(0, m.start() - 8), m.start()):
                yield m.start(), m.end(), "DATE"

    def misread_dates(self, text: str, numbers: NumberPlaces) -> Iterator[Claim]:
        """Written dates whose month has one wrong character, as optical character recognition makes it."""
        for m in matches(DAY_WORD_YEAR, text, numbers.days):
            if self._misread_month(m["month"].casefold()):
                yield m.start(), m.end(), "DATE"

    def _misread_month(self, word: str) -> bool:
        """Whether a word is a month with one character wrong, missing or added, or with "rn" for "m"."""
        around = holes(word)
        return (
            not self.holes.isdisjoint(around)
            or word in self.shorter
            or any(one.replace("*", "") in self.months for one in around)
            or word.replace("rn", "m") in self.months
        )

    def ages(self, text: str, numbers: NumberPlaces, limit: int = AGE_LIMIT) -> Iterator[Claim]:
        """Ages above the limit, with their unit.

        Up to `AGE_LIMIT`, a number of years after a word such as "for" or "since" is a duration.
        """
        for m in matches(AGE, text, numbers.two_or_more if limit > 9 else numbers.any):
            age = int(m["age"])
            if limit < age < 130:
                unit = self.age_after.match(text, m.end())
                labelled = self.age_before.search(text, max(0, m.start() - 20), m.start()) is not None
                if labelled or (unit and not (age <= AGE_LIMIT and self._lasts(text, m.start()))):
                    yield m.start("age"), unit.end() if unit else m.end("age"), "AGE"

    def _lasts(self, text: str, start: int) -> bool:
        """Whether the number at ``start`` counts the years that something lasts, not those of a person."""
        return self.duration is not None and self.duration.search(text, max(0, start - 32), start) is not None
