"""Patterns of postal addresses, made from the words and templates of `languages/LANG.yaml`."""

import re

from hansa.data.deidentification.lexicon import (
    CAPITAL,
    INITIAL_OR_ROMAN,
    LETTER,
    LOWER,
    SOFT_CAPITAL,
    UNCASED,
    UPPER,
    Vocabulary,
    one_of,
)

# Titles and saints in the names of streets.
ABBREVIATION = r"(?:Drs?|Dra|Sta|Sto|Gral|Hnos|Ntra|Sra|Prof|Mons|Alm|Cap|Cnel|Pte|Ing|Lic|St|Ste|Dott|Gen|Ten|P|M)\.?"
# Street words that begin a word; street words that end one; whole addresses, and whether they begin with the street
# word; labels before an address.
AddressPatterns = tuple[re.Pattern[str], re.Pattern[str] | None, list[tuple[re.Pattern[str], bool]], re.Pattern[str]]


def address_patterns(words: Vocabulary) -> AddressPatterns:
    """The patterns of postal addresses of a language."""
    address = words.raw["address"]
    streets, suffixes, after = (address.get(k, []) for k in ("streets", "suffixes", "streets_after"))
    particle = f"(?:{one_of(words.particles)} ?)*"
    if words.cased:
        stop = rf"(?!{one_of(words.stop)})"
        small = f"|{LOWER}{{3,}}" if address.get("small_letters") else ""
        soft = rf"(?:\d{{1,2}} )?(?:{INITIAL_OR_ROMAN} ?)*{particle}(?:{ABBREVIATION} ?|[AO] )?{SOFT_CAPITAL}"
        name = rf"(?P<street_name>{soft}(?:[ -]{particle}{stop}(?:{CAPITAL}|{INITIAL_OR_ROMAN}{small})){{0,4}})"
        article = f"(?:[{UPPER}]{LOWER}? )?"  # A Coruña, La Valletta
        city = rf"{particle}{article}{stop}{SOFT_CAPITAL}(?:[ -]{particle}{stop}{SOFT_CAPITAL}){{0,2}}"
    else:
        name = rf"(?P<street_name>{UNCASED}(?: {UNCASED}){{0,3}})"
        city = rf"{UNCASED}(?: {UNCASED}){{0,2}}(?=[,،]? (?:{UNCASED} )?\d{{5}}|[.,،;)\n]|$)"
    begun = rf"[{UPPER}](?:{LETTER}|-)*"
    compound = rf"{begun}[ -]?{one_of([s.capitalize() for s in suffixes])}|{begun}{one_of(suffixes)}"
    without = r"[sS]/[nN](?!\w)|[kK]m\.? ?\d{1,3}(?:[.,]\d{1,3})?"
    house = (
        rf"{without}|\d{{1,4}}(?!\d)(?:[ /]?{LETTER}(?!\w))?(?:[/-]\d{{1,4}}(?!\d)(?:{LETTER}{{2}}(?!\w)|{LETTER})?)?"
    )
    units = address["unit_words"]
    named_unit = rf"{one_of([w for w in units if len(w) > 2])} {SOFT_CAPITAL}"  # Edificio Argentina
    parts = {
        "street": one_of(streets),
        "street_after": one_of(after),
        "suffix": one_of(suffixes),
        "compound": f"(?:{compound})",
        "name": name,
        "any_name": rf"{particle}{LETTER}+(?:[ '’-]{particle}{LETTER}+){{0,4}}?",
        "number": rf"(?:{one_of(address['number_words'])} ?|[nN]\.? ?[º°]\.? ?)?(?:{house})",
        "unit": rf"(?:{named_unit}|{one_of(units)} ?[\w/]{{1,6}})"
        if words.cased
        else rf"{one_of(units)} ?[\w/]{{1,6}}",
        "town": one_of(address.get("city_words", [])),
        "region": one_of(address.get("regions", [])),
        "postcode": f"(?:{address['postcode']})",
        "city": city,
    }
    templates = address["patterns"]
    patterns = [(_address_pattern(template, parts), template.startswith("{street}")) for template in templates]
    joined = "{compound}" in str(address["patterns"])
    street = re.compile(rf"{words.prefixes}(?P<word>{one_of([*streets, *after, *([] if joined else suffixes)])})")
    inner = re.compile(one_of(suffixes)) if joined else None
    label = re.compile(rf"{one_of(address['labels'])} ?:? ?(?:{LETTER}{{1,3}} )?$")
    return street, inner, patterns, label


def _address_pattern(template: str, parts: dict[str, str]) -> re.Pattern[str]:
    seen: dict[str, int] = {}

    def part(m: re.Match[str]) -> str:
        """The pattern of a placeholder; a repeated street gets a numbered group, since names of groups must differ."""
        seen[m[1]] = seen.get(m[1], 0) + 1
        return parts[m[1]].replace("<street_name>", f"<street_name{seen[m[1]]}>" if seen[m[1]] > 1 else "<street_name>")

    begin = "" if template.startswith("{street}") else r"(?<!\w)"
    return re.compile(begin + re.sub(r"{([a-z_]+)}", part, template))
