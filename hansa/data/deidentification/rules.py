"""Find personal details by rules: names, dates, phone numbers, e-mail and web addresses, identifiers, addresses.

The rules of each kind start at an anchor that is rare in text (a title, a month, a street word, a digit); only the
neighbourhood of anchors is examined. If two kinds claim the same characters, the one that `find` tries first wins;
among numbers, the longest.
"""
# ruff: noqa: RUF001 (letters of several scripts are intended)

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from hansa.data.deidentification.addresses import address_patterns
from hansa.data.deidentification.anchors import Anchors, NumberPlaces, Places, matches, number_places
from hansa.data.deidentification.details import AGE_LIMIT, Details
from hansa.data.deidentification.lexicon import (
    LETTER,
    UPPER,
    Vocabulary,
    caseless,
    one_of,
    same_length,
    vocabulary,
    without_case,
)
from hansa.data.deidentification.names import Names


@dataclass(frozen=True)
class Finding:
    """A personal detail: its first character, the character after its last, and its type."""

    start: int
    end: int
    type: str


HARD_SPACES = "\u00a0\u202f\u2009\u2007"
Spans = Iterator[tuple[int, int]]

BEFORE_AT = re.compile(r"[\w.+%-]+$")
AFTER_AT = re.compile(r"@[\w-]+(?:\.[\w-]+)+")
URL = re.compile(r"(?<!\w)(?:https?://|ftp://|www\.)[^\s<>\"'()]*[^\s<>\"'().,;:!?،]")
# Units. A number followed by a unit is a measurement, never an identifier or a phone number.
UNIT = (
    r"(?:mg|mcg|µg|ug|ng|pg|kg|g|ml|dl|l|cl|mm|cm|m|mmol|µmol|nmol|mol|mEq|UI|IU|IE|U|mmHg|bpm|%|°|cc|kcal|h|min|"
    r"мг|мкг|кг|г|мл|л|мм|см|ммоль|мкмоль|ЕД|МЕ|ОД|МО|уд|мин|хв|ч|"
    r"ملغ|مغ|غ|كغ|مل|ملم|سم|وحدة|מ״ג|מ\"ג|מג|מ״ל|מ\"ל|ק״ג|ס״מ|יח׳)"
)
NOT_YEAR = UNIT.replace("|г|", "|")  # after a date, this letter abbreviates "year"
NO_UNIT = rf"(?! ?{UNIT}(?!\w))(?! ?/ ?(?:{LETTER}))"
NOT_IN_NUMBER = r"(?<![\w.,/+])(?<!\d-)(?<![\d)] )"
NUMBER_ENDS = rf"(?!\w)(?![.,/:-]\d){NO_UNIT}"
NUMERIC_DATE = re.compile(
    r"(?<![\d./,+])(?<!\d[:-])(?:(\d{4})([-/.])(\d{1,2})\2(\d{1,2})|(\d{1,2}) ?([./-])( ?)(\d{1,2}) ?\6 ?(\d{4}|\d{2}))"
    rf"(?!\d)(?![./,-]\d)(?:(?<=\d{{4}})|(?! {NOT_YEAR}(?!\w)))"
)
# 16.01 and 16/1 are dates only after a word such as "on"; 10.2 is a value and 3/10 a score
DAY_AND_MONTH = re.compile(
    rf"(?<![\w.,/+])(?<!\d-)(?!\d/10(?!\d))(?=\d\d\.\d\d|\d+/\d|\d+\.\d+\.)(\d{{1,2}})([./])(\d{{1,2}})(?P<stop>\2?)"
    rf"(?!\d|[./,:-]\d| ?{UNIT}(?!\w))"
)
# What precedes doses such as 12-8-14: insulin, a unit, a word for a dose, or a word with the ending of a drug.
DOSED = re.compile(
    r"(?:insul|инсул|інсул|אינסול|نسول|mg|мг|IE|UI|IU|ЕД|ОД|tabl|табл|compr|dos|доз|schem|схем|מינון|جرع"
    r"|[^\W\d_]{4,}(?:in|ol|id|il|am|an|ina|ine|olo|ide|ил|ол|ин|ид)(?![^\W\d_])(?<!termin))"
    r"[\w.]{0,8}[\s:]{1,2}(?:\d+ ?\w{1,3} )?$",
    re.I,
)
INTERNATIONAL = r"(?:\+|00)[1-9]\d{0,2}(?: ?\(0\))?[ .\-/]?\(?\d{1,5}\)?(?:[ .\-/]?\(?\d{2,5}\)?){1,5}"
IBAN = r"[A-Z]{2}\d{2}(?: ?[A-Z\d]{4}){3,7}(?: ?[A-Z\d]{1,4})?"
NUMBER_SIGN = (
    r"(?:[\s:#(\-–.]|[Nn]\.?[°ºro]?\.?(?![^\W\d])|№|Nr\.?|No\.?|num\.|número|numero|numéro|number|Nummer|номер|"
    r"מספר|מס׳|رقم|αρ\.|zk\.)"
)
# Formats that are not those of the language's countries: numbers in groups, and codes of letters and digits.
ANY_PHONE = r"\d{3}[ -]\d{3}[ -]\d{3,4}|\d{3} \d{2} \d{2} \d{2}|0\d{1,3}[ -]\d{6,8}"
ANY_ID = r"\d{2}-\d{4}-\d{2}|\d{6}/\d{2}|[A-Za-z]{2,5}-\d{6,}|[A-Z]{2}\d{6,}|[A-Z]\d{7,}[A-Z]?|\d{7}|\d{2} \d{2} \d{5}"
GROUPS = r"\d{2,4}(?: \d{2,4}){1,5}"
NUMBER_LABELS = ("phone_labels", "id_prefixes", "id_labels")
VALUE = rf"(?:[{UPPER}]{{1,5}}[-/ .]?)?\d(?:[\w./-]*\w)?"


@dataclass(frozen=True)
class Rules:
    """The built-in de-identifier: one set of compiled patterns per language.

    ``age_limit``: ages above it are found; 0 for all ages.
    """

    age_limit: int = AGE_LIMIT

    def find(self, text: str, language: str) -> list[Finding]:
        """The personal details in a text; raises `UserError` if the language has no rules."""
        words = vocabulary(language)
        if words.cased and without_case(text):
            small = _patterns(words.code, True).find(same_length(text, str.lower), self.age_limit)
            # numbers with letters (MRN-1234, NW1 6XE) have formats in capitals
            large = _patterns(words.code, False).find(same_length(text, str.upper), self.age_limit)
            return small + [f for f in large if f.type in ("ID", "PHONE", "ADDRESS", "DATE", "TOWN")]
        return _patterns(words.code, False).find(text, self.age_limit)


@cache
def _patterns(language: str, small: bool) -> "Patterns":
    return Patterns(caseless(vocabulary(language)) if small else vocabulary(language))


class Patterns:
    """All patterns of one language. One scan finds anchor words and one finds digits; other patterns start there."""

    def __init__(self, words: Vocabulary) -> None:
        self.words = words
        self.names = Names(words)
        self.details = Details(words)
        self.month, self.before_month, self.after_month = _month_patterns(words)
        self.spelled_day, self.spelled_year, self.weekday = _spelled_patterns(words)
        self.date_cue = re.compile(rf"(?<!\w){words.prefixes}{one_of(words.words('date', 'cues'))}[ :-]{{1,2}}$")
        self.month_cue = re.compile(rf"(?:(?<!\w){one_of(words.words('year_cues'))} |\()$")
        self.ordinal_stop = "." in words.words("date", "ordinals")  # am 5.3. wieder
        self.street, self.inner_street, self.addresses, self.address_label = address_patterns(words)
        # abbreviations of street words that mean nothing else, so that no number is needed
        self.sure = tuple(words.words("address", "sure")) if words.cased else ()
        postcode = words.raw["address"]["postcode"]
        self.postcode_after = re.compile(rf"[.,]? ?[-–]? ?(?:{postcode}) +[{UPPER}]" if words.cased else "(?!)")
        self.labelled, self.shapes = _number_patterns(words)
        # all formats in one pattern: most numbers have none of them
        every = "|".join(re.sub(r"\(\?P<\w+>", "(?:", pattern.pattern) for pattern, _, _ in self.shapes)
        self.any_shape = re.compile(rf"(?<!\w)(?:{every})").match
        self.anchors = _anchors(words, {**self.details.anchors(), **self.names.anchors()})

    def find(self, text: str, age_limit: int = AGE_LIMIT) -> list[Finding]:
        """The personal details in a text, in order and without overlaps; of ages, those above the limit."""
        for hard in HARD_SPACES:
            text = text.replace(hard, " ")  # one character for another, so that offsets do not change
        taken = bytearray(len(text))
        found: list[Finding] = []

        def add(spans: Spans, kind: str) -> None:
            """Add the spans of one type that overlap with no earlier finding."""
            for start, end in spans:
                if start < end and taken.find(1, start, end) < 0:
                    taken[start:end] = b"\1" * (end - start)
                    found.append(Finding(start, end, kind))

        def claim(claims: Iterable[tuple[int, int, str]]) -> None:
            """Add spans of several types; a hospital, town or name is cut before an earlier finding inside it."""
            for start, end, kind in claims:
                free = taken.find(1, start, end)
                cut = free if free > start and kind in ("HOSPITAL", "TOWN", "NAME") else end  # up to what is found
                add(iter([(start, start + len(text[start:cut].rstrip()))]), kind)

        add(_emails(text), "EMAIL")
        if "://" in text or "www." in text:
            add((m.span() for m in URL.finditer(text)), "URL")
        anchors, numbers = self.anchors.places(text), number_places(text)
        more = self.details
        claim(more.labelled(text, anchors))
        add(self._addresses(text, anchors), "ADDRESS")
        add(self._numeric_dates(text, numbers), "DATE")
        add(self._written_dates(text, anchors), "DATE")
        claim(more.misread_dates(text, numbers))
        claim(more.towns(text, numbers))
        claim(self._numbers(text, anchors, numbers))
        claim(more.institutions(text, anchors))
        claim((start, end, "NAME") for start, end in self.names.find(text, anchors))
        for rest in (more.professions(text, anchors), more.years(text, numbers), more.ages(text, numbers, age_limit)):
            claim(rest)
        return sorted(found, key=lambda f: f.start)

    def _numeric_dates(self, text: str, numbers: NumberPlaces) -> Spans:
        for m in matches(NUMERIC_DATE, text, numbers.dates):
            if m[1]:
                good = 1900 <= int(m[1]) <= 2099 and _day_and_month(m[4], m[3])
            else:
                # 1-1-1 and 10-10-10 are daily doses, unless the year has four digits
                dose = m[6] == "-" and len(m[9]) == 2
                dose = dose and int(m[9]) <= 31 and "0" not in (m[5][0], m[8][0], m[9][0])
                dose = dose and DOSED.search(text, max(0, m.start() - 40), m.start()) is not None
                dose = dose and not self.date_cue.search(text, max(0, m.start() - 14), m.start())
                four = len(m[9]) == 2 or 1900 <= int(m[9]) <= 2099
                good = four and not dose and _day_and_month(m[5], m[8], month_first=True)
            if good:
                yield m.span()
        for m in matches(DAY_AND_MONTH, text, numbers.dates):
            padded = m[2] == "/" or len(m[1] + m[3]) == 4
            good = padded or (m["stop"] != "" and self.ordinal_stop)
            if good and _day_and_month(m[1], m[3]) and self.date_cue.search(text, max(0, m.start() - 14), m.start()):
                yield m.start(), m.end() if self.ordinal_stop else m.start("stop")

    def _written_dates(self, text: str, anchors: Places) -> Spans:
        for m in matches(self.month, text, anchors.get("month", ())):
            start, end = m.start(), m.end()
            before = self.before_month.search(text, max(0, start - 32), start)
            after = self.after_month.match(text, end)
            spelled = self.spelled_year.match(text, after.end() if after else end)
            if spelled:
                end, after = spelled.end(), None
            if not before and (before := self.spelled_day.search(text, max(0, start - 48), start)):
                yield self._from_weekday(text, before.start()), (after.end() if after else end)
                continue
            year = after and (after["year"] or after["year2"])
            named = self.words.month(m["month"])
            short = named is not None and named.short
            if not (year or (before and not short) or (after and after["day"])):
                continue
            if (
                not before
                and year
                and len(year) < 4
                and (short or not self.month_cue.search(text, max(0, start - 9), start))
            ):
                continue
            first = before.start() if before else m.start("month")
            yield self._from_weekday(text, first), (after.end() if after else end)

    def _from_weekday(self, text: str, start: int) -> int:
        """Where a date begins: at the day of the week, if it stands before the date."""
        day = self.weekday.search(text, max(0, start - 20), start)
        return day.start() if day else start

    def _numbers(self, text: str, anchors: Places, numbers: NumberPlaces) -> list[tuple[int, int, str]]:
        claims = []
        likely = [place for place in numbers.any if self.any_shape(text, place)]
        tried: list[tuple[Shape, Sequence[int]]]
        tried = [(shape, anchors.get(key, ())) for shape, key in zip(self.labelled, NUMBER_LABELS, strict=True)]
        tried += [(shape, likely) for shape in self.shapes] if likely else []
        for (pattern, kind, good), places in tried:
            for m in matches(pattern, text, places):
                if good(m["value"]):
                    claims.append((*m.span("value"), kind))
        return sorted(claims, key=lambda c: (c[0] - c[1], c[0]))  # longest first

    def _addresses(self, text: str, anchors: Places) -> Spans:
        streets = [(*m.span("word"), False) for m in matches(self.street, text, anchors.get("street", ()))]
        if self.inner_street:
            streets = sorted(streets + [(*m.span(), True) for m in self.inner_street.finditer(text)])
        past = 0
        for start, end, inner in streets:
            span = self._address_at(text, start, end, past, inner) if start >= past else None
            if span:
                past = span[1]
                yield span

    def _address_at(self, text: str, start: int, end: int, past: int, inner: bool) -> tuple[int, int] | None:
        for pattern, begins_with_street in self.addresses:
            if self.inner_street and inner == begins_with_street:
                continue
            if begins_with_street:
                here = pattern.match(text, start)
                found = [here] if here else []
            else:
                found = list(pattern.finditer(text, max(past, start - 70), end + 140))
            for m in found:
                if m.start() <= start and m.end() >= end and self._is_address(text, m):
                    return m.span()
        return None

    def _is_address(self, text: str, m: re.Match[str]) -> bool:
        stops = self.words.words("address", "stop")
        named = [name.casefold().split()[0] for key, name in m.groupdict().items() if name]
        if m[0].casefold().split()[0] in stops or any(name in stops for name in named):
            return False
        labelled = self.address_label.search(text, max(0, m.start() - 40), m.start())
        return bool(
            labelled
            or m[0].casefold().startswith(self.sure)
            or self.postcode_after.match(text, m.end())
            or self.words.words("address", "city_words")
            or any(c.isdigit() for c in m[0])
            or "/n" in m[0].lower()
        )


def _emails(text: str) -> Spans:
    at = text.find("@")
    while at >= 0:
        before, after = BEFORE_AT.search(text, max(0, at - 64), at), AFTER_AT.match(text, at)
        if before and after:
            yield before.start(), after.end()
        at = text.find("@", at + 1)


def _anchors(words: Vocabulary, kinds: dict[str, Iterable[str]]) -> Anchors:
    """The words that can introduce a personal detail: those of ``kinds``, months, streets and labels of numbers."""
    months = [form for table in (words.full_months, words.short_months) for month in table for form in month]
    months += [form.lower() for form in months]
    streets = [w for key in ("streets", "streets_after") for w in words.words("address", key)]
    if "{compound}" not in str(words.raw["address"]["patterns"]):
        streets += words.words("address", "suffixes")
    labels: dict[str, Iterable[str]] = {key: words.words(key) for key in NUMBER_LABELS}
    everything = {**kinds, **labels, "month": months, "street": streets}
    anchors = [*(w for some in everything.values() for w in some), *map(str.upper, words.titles)]
    return Anchors(words, anchors, everything)


def _day_and_month(day: str, month: str, month_first: bool = False) -> bool:
    d, m = int(day), int(month)
    return (1 <= d <= 31 and 1 <= m <= 12) or (month_first and 1 <= m <= 31 and 1 <= d <= 12)


def _month_patterns(words: Vocabulary) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    forms = [form for table in (words.full_months, words.short_months) for month in table for form in month]
    if not words.raw.get("months_capitalised"):
        forms += [form.lower() for form in forms]
    month = re.compile(rf"{words.prefixes}(?P<month>{one_of(forms)})(?!{LETTER})")
    ordinal = f"(?:{one_of(words.words('date', 'ordinals'))})?"
    joiner = f"(?:{one_of(words.words('date', 'joiners'))} ?)?"
    ranges = f"(?: ?[-–/] ?| {one_of(words.words('date', 'ranges'))} )"
    suffixes = words.words("date", "year_suffixes")
    year_first = rf"(?P<year>(?:19|20)\d\d)(?:{'|'.join(map(re.escape, suffixes)) or '(?!)'}) "
    day = rf"(?<![\d.,/'’])(?<!\d-)(?:\d{{1,2}}{ordinal}{ranges})?(?P<day>[0-3]?\d){ordinal}[ /-]?{joiner}"
    before = re.compile(rf"(?:{day}|{year_first}){words.prefixes}$")
    year_word = f"(?: ?{one_of(words.words('date', 'year_words'))})?"
    year_joiner = one_of([*words.words("date", "joiners"), *words.words("date", "year_joiners")])
    year = (
        rf"\.?,?[ /-]?(?:{year_joiner} )?(?P<year>(?:19|20)\d\d(?!\w)|[’']?\d\d(?!\w|[.,:/]\d| ?{UNIT}(?!\w)))"
        rf"{year_word}"
    )
    if words.raw["date"].get("month_first"):
        first = rf" (?P<day>[0-3]?\d){ordinal}(?!\w|[.,:/]\d| ?{UNIT}(?!\w))"
        year = rf"{first}(?:,? (?P<year2>(?:19|20)\d\d)(?!\d))?|{year}"
    else:
        year += "|(?P<day>(?!))(?P<year2>(?!))"
    return month, before, re.compile(year)


def _spelled_patterns(words: Vocabulary) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Patterns of a day in words before a month, a year in words after it, and the day of the week before both."""
    never = "(?!)"
    joiner = f"(?:{one_of(words.words('date', 'joiners'))} )?"
    day = rf"(?<!\w)(?:{words.raw.get('day_words', never)}) {joiner}{words.prefixes}$"
    later = one_of([*words.words("date", "joiners"), *words.words("date", "year_joiners")])
    year = rf" (?:{later} )?(?:{words.raw.get('year_in_words', never)})(?!\w)"
    days = words.words("weekdays")
    weekday = rf"(?<!\w){one_of(days)},? (?:{LETTER}{{1,3}} )?$" if days else never
    return re.compile(day, re.I), re.compile(year, re.I), re.compile(weekday)


Good = Callable[[str], bool]


def _digits(low: int, high: int = 99) -> Good:
    return lambda value: low <= sum(c.isdigit() for c in value) <= high


Shape = tuple[re.Pattern[str], str, Good]


def _number_patterns(words: Vocabulary) -> tuple[list[Shape], list[Shape]]:
    """Patterns of numbers recognised by the label before them, and of numbers recognised by their format."""

    def shape(pattern: str, kind: str, good: Good) -> Shape:
        """A compiled pattern of a number with its type and the test that its value must pass."""
        return re.compile(pattern + NUMBER_ENDS), kind, good

    known, phones = "|".join([*words.words("id_shapes"), IBAN]), "|".join(words.words("phones"))
    phone_label, id_label = (f"{words.prefixes}{one_of(words.words(k))}" for k in ("phone_labels", "id_labels"))
    prefix = one_of(words.words("id_prefixes"), cases=False)
    labelled = [
        shape(rf"{phone_label}\.?[\s:)\-–.]{{0,3}}(?P<value>\+?\(?\d[\d ()./-]{{3,18}}\d)", "PHONE", _digits(5, 15)),
        shape(rf"{words.prefixes}(?P<value>{prefix}{NUMBER_SIGN}{{0,4}}(?:{known}|{VALUE}))", "ID", _numbered),
        shape(rf"{id_label}{NUMBER_SIGN}{{1,5}}(?P<value>{GROUPS}|{VALUE})", "ID", _identifying),
    ]
    shapes = [
        shape(rf"(?<![\w+])(?P<value>{INTERNATIONAL})", "PHONE", _digits(8, 15)),
        shape(rf"{NOT_IN_NUMBER}(?P<value>{phones})", "PHONE", _digits(4, 13)),
        shape(rf"{NOT_IN_NUMBER}(?P<value>{known})", "ID", _digits(5)),
        shape(rf"(?<![\w-])(?P<value>[{UPPER}]{{2,5}}(?:-\d{{5,}}| ?\d{{7,}}))", "ID", _digits(5)),
        shape(rf"{NOT_IN_NUMBER}(?P<value>\d{{8,}})", "ID", _digits(8)),
        shape(rf"{NOT_IN_NUMBER}(?P<value>{ANY_PHONE})", "PHONE", _no_round_number),
        shape(rf"(?<![\w./+-])(?P<value>{ANY_ID})", "ID", _no_round_number),
    ]
    return labelled, shapes


def _no_round_number(value: str) -> bool:
    """Whether no group of digits is a round number: 150 000 000 is a count."""
    return not value.endswith("00") and " 000" not in value


def _numbered(value: str) -> bool:
    """Whether a value has five digits, or four after a number sign."""
    digits = sum(c.isdigit() for c in value)
    return digits >= 5 or (digits == 4 and re.search(r"№|[Nn][.°ºro]", value) is not None)


def _identifying(value: str) -> bool:
    """Whether a value has five digits, or four and a letter or slash: a bare year is not a record number."""
    digits = sum(c.isdigit() for c in value)
    return digits >= 5 or (digits == 4 and not value.isdigit())
