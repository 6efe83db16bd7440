"""Cleaning of text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.data.importing.clean import clean
from tests.data.importing.texts import ONE


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("cafe\u0301 al\u00ad la\u200bvoro", "caf\u00e9 al lavoro"),
        ("a\u00a0\tb   c\x07", "a b c"),
        ("si veda <b>qui</b> &amp; l\u00e0", "si veda qui & l\u00e0"),
        ("come noto [12, 13] da [4\u20136] tempo", "come noto da tempo"),
        ("[[Roma|la capitale]] di '''oggi''' {{cita}}", "la capitale di oggi "),
        ("x \ud800 y", "x y"),
    ],
)
def test_cleaning(raw: Any, cleaned: Any) -> None:
    assert clean(raw, "text", citations=False) == cleaned
    assert "[" not in raw or "[" in clean("[1] " + raw, "text", citations=True)


def test_headings_and_items_are_not_joined_but_wrapped_lines_are() -> None:
    text = (
        f"ANAMNESI\n{ONE[:45]}\n{ONE[45:]}\nAllergie\nNessuna nota\n---\nPagina 3 di 10\nhttps://x.org/a\n© 2020 Casa\n"
    )
    expected = ["ANAMNESI", f"{ONE[:45]} {ONE[45:]}", "Allergie", "Nessuna nota"]
    assert [part for part in clean(text, "text", False).split("\n\n") if part] == expected


@given(st.text(max_size=300))
def test_cleaning_takes_any_text_and_leaves_no_control_characters(text: Any) -> None:
    for kind in ("text", "pdf"):
        found = clean(text, kind, citations=False)
        found.encode()
        assert "\n" not in found.replace("\n\n", "")
        assert not any(ord(c) < 32 and c != "\n" for c in found)
        assert "  " not in found
