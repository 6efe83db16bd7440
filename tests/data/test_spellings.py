"""Labels in several spellings."""

import pytest

from hansa.data.spellings import plain, spelling_warnings


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ("Disease", "DISEASE", "upper and lower case"),
        ("diagnóstico", "diagnostico", "accents"),
        ("side effect", "side_effect", "spaces and punctuation"),
        ("Disease ", "Disease", "spaces and punctuation"),
        ("__label__flu", "flu", "a prefix"),
        ("B-Disease", "Disease", "a prefix"),
        ("Label: Größe", "GROSSE", "case, accents, spaces or a prefix"),
    ],
)
def test_spellings_of_one_label_are_found(one: str, other: str, difference: str) -> None:
    [line] = spelling_warnings({"lyon": {one: 120}, "turin": {other: 1}})
    assert f"differ only in {difference} and count as 2 different labels" in line
    assert f"{one!r} (lyon: 120 rows)" in line
    assert f"{other!r} (turin: 1 row)" in line


@pytest.mark.parametrize(
    ("one", "other"), [("flu", "flue"), ("+", "-"), ("low", "high"), ("C10", "C100"), ("病", "症")]
)
def test_different_labels_are_not(one: str, other: str) -> None:
    assert plain(one) != plain(other)
    assert spelling_warnings({"lyon": {one: 5}, "turin": {other: 5}}) == []


def test_the_same_label_everywhere_is_no_warning_and_unknown_counts_are_left_out() -> None:
    assert spelling_warnings({"lyon": {"flu": 5}, "turin": {"flu": 9}}) == []
    [line] = spelling_warnings({"lyon": {"flu": 0}, "turin": {"Flu": 0}})
    assert "'Flu' (turin) and 'flu' (lyon)" in line
    many = {"lyon": {f"x{i}": 1 for i in range(9)}, "turin": {f"X{i}": 1 for i in range(9)}}
    assert spelling_warnings(many)[-1] == "4 more labels have several spellings"


def test_a_label_of_one_silo_alone_is_compared_with_those_of_the_others() -> None:
    counts = {"a": {"Disease": 3, "Drug": 1}, "b": {"Disease": 4, "Drug": 2}, "c": {"Diseases": 5, "Drug": 2}}
    [said] = spelling_warnings(counts)
    assert said.startswith(
        "the label 'Diseases' occurs in one silo alone (c: 5 rows), which has no 'Disease' as the others have"
    )
    assert not spelling_warnings({"a": {"Disease": 3}, "b": {"Disease": 4, "Diseases": 5}}), "b has both"
    assert not spelling_warnings({"a": {"A00": 3}, "b": {"A01": 4}}), "codes"
    assert not spelling_warnings({"a": {"Disease": 3}})
