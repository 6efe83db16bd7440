"""Text in small letters or capitals only, and Spanish addresses: general faults that were found and mended."""
# ruff: noqa: RUF001 (letters of several scripts are intended)

from typing import Any

import pytest

from hansa.data.corpora import clinical_notes as generator
from hansa.data.corpora.identified_notes import identified_notes
from hansa.data.deidentification.finders import load
from hansa.data.deidentification.lexicon import same_length
from hansa.data.deidentification.measuring import measure

FINDER = load("rules+lists")


def covered(text: str, language: str, *kinds: str) -> list[str]:
    return [text[f.start : f.end] for f in FINDER.find(text, language) if not kinds or f.type in kinds]


@pytest.mark.parametrize(
    ("text", "language", "name"),
    [
        ("сутринта прегледахме сурен киркорян в коридора.", "bg", "киркорян"),
        ("легло 2, киркорян, петър, без оплаквания.", "bg", "киркорян, петър"),
        ("жалоб нет, вчера консультирован белых.", "ru", "белых"),
        ("вчера госпитализирован гурвич.", "ru", "гурвич"),
        ("по всем вопросам контактное лицо: вера.", "ru", "вера"),
        ("учора виписаний мельник.", "uk", "мельник"),
        ("the nurse saw grace turner in the corridor today.", "en", "grace turner"),
        ("next of kin to contact: grace.", "en", "grace"),
        ("stanza 2; conti riferisce dolore.", "it", "conti"),
        ("questa mattina: de luca ha chiamato.", "it", "de luca"),
        ("ontem vimos conceição teixeira no corredor.", "pt", "conceição teixeira"),
        ("avisaron a pilar garcía por la tarde.", "es", "pilar garcía"),
    ],
)
@pytest.mark.parametrize("change", [str.lower, str.upper])
def test_a_name_in_text_of_one_case_is_found(text: str, language: str, name: str, change: Any) -> None:
    written = same_length(text, change)
    found = " · ".join(covered(written, language, "NAME"))
    assert all(same_length(word, change) in found for word in name.replace(",", "").split()), found


@pytest.mark.parametrize(
    ("text", "language", "name"),
    [
        ("dr. harper phoned about the results; the ward phoned back.", "en", "dr. harper"),
        ("il dott. rossi ha telefonato ieri; non ha telefonato nessun altro.", "it", "dott. rossi"),
        ("г-жа леви се обади; никой друг не се обади.", "bg", "г-жа леви"),
        ("d. romero telefoneó ayer; nadie más telefoneó.", "es", "d. romero"),
    ],
)
def test_a_name_ends_before_what_the_person_does(text: str, language: str, name: str) -> None:
    found = covered(text, language, "NAME")
    assert not [one for one in found if one not in name], found
    assert any(name in one for one in found)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("l'ambulanza ha impiegato dieci minuti; l'asma è stabile, trapianto di rene.", "it"),
        ("l'ambulance a mis dix minutes ; examen clinique sans particularité.", "fr"),
        ("повтарящата се болка; днес има втрисане; препоръчва се почивка.", "bg"),
        ("la madre padeció leucemia y recibió tratamiento.", "es"),
    ],
)
def test_clinical_words_in_small_letters_are_left_alone(text: str, language: str) -> None:
    assert covered(text, language) == []


@pytest.mark.parametrize("code", generator.LANGUAGES)
def test_notes_in_small_letters_leak_little_more_in_every_language(code: str) -> None:
    notes = list(identified_notes(code, 40, seed=17, held_back=True))
    small = [note | {"text": same_length(note["text"], str.lower)} for note in notes]
    before, after = (measure(some, FINDER, code)["overall"] for some in (notes, small))
    assert float(after["leak_rate"]) <= float(before["leak_rate"]) + 0.02
    assert float(after["precision"]) >= 0.9


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("Ruiz C/Pérez Galdós nº12 - 3º. Lugo.", "C/Pérez Galdós nº12 - 3º"),
        ("Apartado de Correos 4521, 28080 Madrid", "Apartado de Correos 4521"),
        ("Av. Sto Tomás de Aquino, 8 2º Dcha. 24006 León", "Av. Sto Tomás de Aquino, 8 2º Dcha"),
        ("Vive en calle Mayor, 7, 2, B.", "calle Mayor, 7, 2, B"),
        ("Paseo del Prado. 28014 Madrid", "Paseo del Prado"),
        ("C/ Olmos, Hospital General", "C/ Olmos"),
        ("C/ A Barcala s/n. 15660 Cambre", "C/ A Barcala s/n"),
        ("Carrera 15 # 93-60 Bogotá", "Carrera 15 # 93-60"),
        ("Calle olivos 12, 41001 Sevilla", "Calle olivos 12"),
        ("Plaza de los Fueros, Edif. Navarra, esc 2, 3A. 31001 Pamplona", "Edif. Navarra, esc 2, 3A"),
        ("c/ Camino del Río n º 4 33400 Avilés", "n º 4"),
    ],
)
def test_spanish_addresses_of_further_forms(text: str, address: str) -> None:
    assert any(address in one for one in covered(text, "es", "ADDRESS")), FINDER.find(text, "es")


@pytest.mark.parametrize(
    "text",
    [
        "Por vía oral 3 veces al día.",
        "Lesión de 12 x 3 cm en calle media de la herida.",
        "Paseo diario recomendado. Plaza en residencia.",
    ],
)
def test_no_address_where_there_is_none(text: str) -> None:
    assert covered(text, "es", "ADDRESS") == []


def test_the_short_name_of_an_institution_is_found_everywhere() -> None:
    text = "Hospital Universitario Río Verde (HURV). Ingresa en HURV. La TC (TAC) es normal; TAC sin hallazgos."
    found = covered(text, "es", "HOSPITAL")
    assert found.count("HURV") == 2
    assert "TAC" not in found
