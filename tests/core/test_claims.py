"""Claims: no silo counts more than a stated share, honest counts below it stay as they are."""

from hypothesis import given
from hypothesis import strategies as st

from hansa.core.claims import bounded, largest_count, outsized
from hansa.core.participation import Child

COUNTS = st.lists(st.integers(1, 10**12), min_size=2, max_size=8)


@given(COUNTS, st.floats(0.01, 1.0))
def test_no_silo_counts_more_than_the_share(counts: list[int], share: float) -> None:
    most = largest_count(counts, share)
    counted = [min(count, most) for count in counts]
    # Where even equal counts exceed the share, all count the same.
    assert max(counted) <= max(share * sum(counted) * (1 + 1e-9), min(counts))


@given(COUNTS, st.floats(0.01, 1.0))
def test_the_bound_is_no_tighter_than_needed(counts: list[int], share: float) -> None:
    """One sample more for the largest silos would exceed the share, unless nothing was cut."""
    most = largest_count(counts, share)
    if most >= max(counts):
        return
    raised = [min(count, most + 2) for count in counts]
    assert max(raised) >= share * sum(raised) * (1 - 1e-9)


def test_the_limit_honest_counts_within_the_share_stay() -> None:
    assert largest_count([50, 30, 20], 0.5) == 50
    assert largest_count([98, 1, 1], 1.0) == 98


def test_the_oracle_one_large_silo_counts_as_much_as_the_share_of_the_others() -> None:
    """C = s·R/(1 − s), with R the samples of the others."""
    assert largest_count([10**12, 300, 100], 0.5) == 400
    assert largest_count([10**12, 300, 100], 0.8) == 1600


def test_children_count_at_most_the_bound() -> None:
    children = bounded({"a": Child(1000, 1, claimed=1000), "b": Child(100, 1, claimed=100)}, 0.5)
    assert {name: child.counted for name, child in children.items()} == {"a": 100, "b": 100}
    assert bounded(children, None) == children


def test_a_silo_that_claims_nearly_everything_is_left_out() -> None:
    assert list(outsized({"a": 10**12, "b": 100})) == ["a"]
    assert not outsized({"english": 98, "french": 1, "german": 1}), "honest federations are uneven"
    assert not outsized({"alone": 10})
