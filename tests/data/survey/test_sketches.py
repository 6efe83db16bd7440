"""Keyed sketches: similarity survives the key, and another key makes everything different."""

import numpy as np
import pytest

from hansa.core.seeds import stream
from hansa.data.survey.sketches import (
    DOCUMENT,
    Documents,
    DocumentSketches,
    jaccard,
    near_duplicates,
    packed,
    unpacked,
    vocabulary_sketch,
)

KEY, OTHER = bytes(32), bytes([1]) * 32


def texts(count: int, seed: int = 0, words: int = 60) -> list[list[str]]:
    rng = stream(seed, "texts")
    return [[f"w{n}" for n in rng.integers(5000, size=words)] for _ in range(count)]


def sketched(documents: list[list[str]], key: bytes = KEY, most: int = 1000) -> Documents:
    made = DocumentSketches(key)
    for words in documents:
        made.add(" ".join(words), "en")
    return made.sketches(most)[0]


def test_near_duplicates_are_found_under_one_key_and_not_under_two() -> None:
    documents = texts(80)
    changed = [[*words[:-1], "another"] for words in documents[:30]]  # one word of sixty
    mine, theirs = sketched(documents), sketched(changed + texts(50, seed=1))
    assert near_duplicates(theirs, mine, 0.8) == 30
    assert near_duplicates(mine, theirs, 0.8) == 30
    assert near_duplicates(sketched(texts(80, seed=2)), mine, 0.8) == 0
    assert near_duplicates(sketched(changed, OTHER), mine, 0.8) == 0, "without the key nothing is similar"


def test_repeats_inside_a_silo_are_counted_without_the_first() -> None:
    documents = texts(20)
    every = sketched(documents + documents[:5] + documents[:5])
    assert near_duplicates(every, every, 0.8, same=True) == 10


def test_case_and_spaces_do_not_matter_and_short_texts_are_left_out() -> None:
    words = texts(1)[0]
    loud = sketched([[word.upper() + " " for word in words]])
    assert near_duplicates(loud, sketched([words]), 1.0) == 1
    assert len(sketched([words[:9]])) == 0


def test_a_sample_keeps_the_same_documents_everywhere() -> None:
    documents = texts(300)
    mine, theirs = sketched(documents, most=100), sketched(documents[::-1], most=100)
    assert len(mine) == 100
    assert near_duplicates(mine, theirs, 1.0) == 100


@pytest.mark.parametrize("shared", [0, 200, 400])
def test_the_overlap_of_vocabularies_is_estimated(shared: int) -> None:
    a, b = [f"a{i}" for i in range(400)], [f"b{i}" for i in range(400)]
    common = a[:shared] + b[shared:]
    expected = shared / (800 - shared)
    found = jaccard(vocabulary_sketch(KEY, a), vocabulary_sketch(KEY, common))
    assert found is not None
    assert abs(found - expected) < 0.09  # four standard errors
    assert jaccard(vocabulary_sketch(KEY, a), vocabulary_sketch(OTHER, a)) == 0.0
    assert jaccard(vocabulary_sketch(KEY, a), vocabulary_sketch(KEY, [])) is None


def test_arrays_travel_as_text() -> None:
    made = sketched(texts(5))
    assert np.array_equal(unpacked(packed(made), DOCUMENT), made)
    for damaged in ("%%", packed(made)[:-8]):
        with pytest.raises(ValueError):
            unpacked(damaged, DOCUMENT)
