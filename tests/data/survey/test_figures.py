"""Counts with a floor: small ones are withheld, others rounded, so that no difference gives a small group exactly."""

from hypothesis import given
from hypothesis import strategies as st

from hansa.data.survey.figures import FlooredCounts, length_bin


def counted(sizes: dict[str, int]) -> FlooredCounts[str]:
    counts = FlooredCounts[str]()
    for key, rows in sizes.items():
        for _ in range(rows):
            counts.add([key], None)
    return counts


def test_a_count_below_the_floor_is_withheld() -> None:
    kept, withheld = counted({"en": 400, "de": 20, "fr": 19}).released(20)
    assert kept == {"de": 20, "en": 400}
    assert withheld
    assert counted({"en": 400}).released(20) == ({"en": 400}, False)
    assert counted({"en": 400, "fr": 19}).released(1) == ({"en": 400, "fr": 19}, False), "the control: no floor"


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 100), min_size=1), st.integers(2, 30))
def test_no_total_tells_a_withheld_count_exactly(sizes: dict[str, int], floor: int) -> None:
    """A neighbour in which the small group has another size gives the same figures, the total included."""
    total = counted({"rows": sum(sizes.values())}).released(floor)[0].get("rows", 0)
    kept, _ = counted(sizes).released(floor)
    assert all(count % floor == 0 and count >= floor for count in kept.values())
    assert sum(kept.values()) <= sum(sizes.values())
    assert 0 <= sum(sizes.values()) - total < floor
    assert set(kept) == {key for key, rows in sizes.items() if rows >= floor}


def test_rows_of_one_patient_count_once_towards_the_floor() -> None:
    counts = FlooredCounts[str]()
    for row in range(60):
        counts.add(["rare"], f"patient {row % 3}")
        counts.add(["common"], f"patient {row}")
    assert counts.released(20) == ({"common": 60}, True)


def test_lengths_are_binned_by_powers_of_two() -> None:
    assert [length_bin(n) for n in (0, 1, 2, 3, 4, 7, 8, 1000)] == [0, 1, 2, 2, 4, 4, 8, 512]
