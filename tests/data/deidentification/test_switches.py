"""What a user switches: relatives, the limit of ages; and the leak rates of labelled names and of names in text."""
# ruff: noqa: RUF001 (letters of several scripts are intended)

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hansa.cli.data import data as command
from hansa.core.errors import UserError
from hansa.data.deidentification.finders import load
from hansa.data.deidentification.labels import is_labelled
from hansa.data.deidentification.lexicon import FOLDER, vocabulary
from hansa.data.deidentification.measuring import measure
from hansa.data.deidentification.relatives import relatives
from hansa.data.deidentification.surrogates import Surrogates

RELATIVES = {
    "it": ("La madre e i fratelli sono sani.", ["madre", "fratelli"]),
    "fr": ("Son père et ses frères vont bien ; une fille de 8 ans.", ["père", "frères"]),
    "es": ("Su hermano y su mujer refieren tos. Mujer de 52 años.", ["hermano", "mujer"]),
    "pt": ("A mãe e os irmãos são saudáveis.", ["mãe", "irmãos"]),
    "en": ("His mother had diabetes; two brothers are well.", ["mother", "brothers"]),
    "de": ("Ihre Schwester und die Eltern sind gesund, seine Frau auch; eine Frau.", ["Schwester", "Eltern", "Frau"]),
    "ar": ("والدته تعاني من السكري", ["والدته"]),
    "he": ("אמו סובלת מסוכרת. האם יש כאב?", ["אמו"]),
    "ru": ("Мать больна, у сестры астма.", ["Мать", "сестры"]),
    "bg": ("Жена на 54 години, майка ѝ е здрава.", ["майка"]),
    "uk": ("Його мати та брати здорові. Чоловік 54 років.", ["мати", "брати"]),
    "el": ("Η μητέρα του έχει διαβήτη.", ["μητέρα"]),
    "eu": ("Bere anaia ondo dago.", ["anaia"]),
}


def test_every_language_with_a_list_of_kin_has_an_example() -> None:
    assert set(RELATIVES) == {p.stem for p in FOLDER.glob("*.yaml") if vocabulary(p.stem).words("kin")}


@pytest.mark.parametrize("code", RELATIVES)
def test_relatives_are_found_on_request_only(code: str) -> None:
    text, expected = RELATIVES[code]
    found = [text[f.start : f.end] for f in load("rules", also=["relative"]).find(text, code) if f.type == "RELATIVE"]
    assert found == expected
    assert not [f for f in load("rules").find(text, code) if f.type == "RELATIVE"], "the control: off by default"


@pytest.mark.parametrize("code", RELATIVES)
def test_a_relative_becomes_another_one(code: str) -> None:
    expected = RELATIVES[code][1]
    made = Surrogates(code, "key", "subject").of(expected[0], "RELATIVE")
    assert made.casefold() != expected[0].casefold()
    assert made[0].isupper() == expected[0][0].isupper()
    assert next(relatives(made, code)).type == "RELATIVE"


@pytest.mark.parametrize(
    ("keep", "also", "message"),
    [
        ((), ("NAME",), "'NAME' is found anyway; types that can be found also: RELATIVE"),
        ((), ("KIN",), "'KIN' is not a type"),
        (("RELATIVE",), ("RELATIVE",), "to be left alone and to be found also"),
    ],
)
def test_only_optional_types_can_be_asked_for(keep: tuple[str, ...], also: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load("rules", keep, also)


AGES = "A woman of 54 years, smoker for 20 years, with an 8-year-old son and a mother of 93 years. Aged 54."


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (0, ["54 years", "8-year-old", "93 years", "54"]),
        (17, ["54 years", "93 years", "54"]),
        (89, ["93 years"]),
        (100, []),
    ],
)
def test_ages_above_the_limit_are_found_and_durations_are_not(limit: int, expected: list[str]) -> None:
    found = load("rules", age_limit=limit).find(AGES, "en")
    assert [AGES[f.start : f.end] for f in found if f.type == "AGE"] == expected


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(command, ["deidentify", *map(str, arguments)])


def test_the_command_takes_the_switches(tmp_path: Path) -> None:
    file, out = tmp_path / "en.jsonl", tmp_path / "out"
    file.write_text(json.dumps({"text": "A man of 54 years; his mother is well.", "lang": "en"}) + "\n")
    result = run(file, "--out", out, "--style", "tags", "--also", "RELATIVE", "--age-limit", 0)
    assert result.exit_code == 0, result.output
    assert json.loads((out / "en.jsonl").read_text())["text"] == "A man of [AGE]; his [RELATIVE] is well."
    run(file, "--out", tmp_path / "plain", "--style", "tags")
    assert json.loads((tmp_path / "plain/en.jsonl").read_text())["text"] == "A man of 54 years; his mother is well."


# ── labelled names ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "language", "labelled"),
    [
        ("Nombre: |Ernesto.", "es", True),
        ("\ufeffNombre:  |Ernesto.", "es", True),
        ("Edad: 70 años. Remitido por: Dra. |Ana Ruiz.", "es", True),
        ("Patient\t|John Smith\t47", "en", True),
        ("Patient = |John Smith", "en", True),
        ('Signed: "|John Smith"', "en", True),
        ("Report: a man of 60 years, seen by Dr. |Smith", "en", False),
        ("Name:\n|John Smith", "en", False),
        ("The surgeon who saw him this morning said: |John Smith may go", "en", False),
        ("Room\t|John Smith", "en", False),
        ("|John Smith", "en", False),
        ("Пациент: |Иванов Иван", "ru", True),
        ("Осмотрен врачом |Ивановым", "ru", False),
    ],
)
def test_a_name_is_labelled_after_a_label_with_a_colon_or_a_header_field(
    text: str, language: str, labelled: bool
) -> None:
    assert is_labelled(text.replace("|", ""), text.index("|"), language) is labelled


def test_leak_rates_of_labelled_names_and_of_names_in_text_are_told_apart(tmp_path: Path) -> None:
    text = "Name: John Smith.\nThe nurse saw Okonjo Zzyx leave."
    spans = [text.index(name) for name in ("John Smith", "Okonjo Zzyx")]
    ends = [start + len(name) for start, name in zip(spans, ("John Smith", "Okonjo Zzyx"), strict=True)]
    personal = [{"span": list(pair), "type": "NAME"} for pair in zip(spans, ends, strict=True)]
    scores = measure([{"text": text, "personal": personal}], load("rules"), "en")
    assert scores["names"]["labelled"]["leak_rate"] == 0.0
    assert scores["names"]["in running text"]["leak_rate"] == 1.0
    assert scores["types"]["NAME"]["leak_rate"] == 0.5, "the class as a whole is still there"
    only = measure([{"text": text, "personal": personal[:1]}], load("rules"), "en")
    assert set(only["names"]) == {"labelled"}
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"text": text, "lang": "en", "personal": personal}) + "\n")
    shown = run(file, "--measure", "--with", "rules").stdout
    assert "en NAME, labelled" in shown
    assert "en NAME, in running text" in shown
