"""Texts in windows: what the tokenizers library gives is what transformers would make of it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.data.rows import Row
from hansa.data.source import Source
from hansa.models.tokenizer import byte_tokenizer, train_vocabulary
from hansa.tasks.base import Vocabulary, windows

PIECES = {"▁the": 90, "▁fever": 40, "▁жар": 30, "▁cough": 20, "er": 9, "ver": 5, "é": 4}
TOKENIZERS = {"bytes": byte_tokenizer(), "pieces": train_vocabulary(PIECES, 300)}
texts = st.lists(st.text("fever the жар é🙂 \t<s>", min_size=1, max_size=60), min_size=1, max_size=6)


def by_transformers(given: list[str], vocabulary: Vocabulary) -> list[tuple[list[int], list[int], int]]:
    """Ids, bytes that each token stands for, and the text, of every window; by the public call of transformers."""
    made: Any = vocabulary.tokenizer(
        given,
        truncation=True,
        max_length=vocabulary.max_length,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    found, reached, before = [], 0, -1
    for ids, offsets, number in zip(
        made["input_ids"], made["offset_mapping"], made["overflow_to_sample_mapping"], strict=True
    ):
        reached = reached if number == before else 0
        sizes = []
        for _, end in offsets:
            sizes.append(len(given[number][reached:end].encode()))
            reached = max(reached, end)
        found.append((ids, sizes, number))
        before = number
    return found


@pytest.mark.parametrize("name", TOKENIZERS)
@given(texts, st.integers(8, 20))
def test_windows_equal_those_of_transformers(name: str, given: list[str], length: int) -> None:
    vocabulary = Vocabulary(TOKENIZERS[name], length)
    read = [Row({"text": text}) for text in given]
    expected = by_transformers(given, vocabulary)
    plain = [(one.ids, one.row) for one in windows(read, Source(train="x"), vocabulary)]
    assert plain == [(ids, number) for ids, _, number in expected]
    covered = [(one.ids, one.tags, one.row) for one in windows(read, Source(train="x"), vocabulary, covered=True)]
    assert covered == expected
    assert all(len(ids) <= length for ids, _ in plain)
    for number, text in enumerate(given):
        total = sum(sum(tags) for _, tags, row in covered if row == number)
        assert total <= len(text.encode())


def test_the_windows_of_one_task_do_not_cut_the_texts_of_another() -> None:
    vocabulary = Vocabulary(TOKENIZERS["bytes"], 8)
    long = [Row({"text": "a" * 50})]
    assert len(list(windows(long, Source(train="x"), vocabulary))) > 1
    [whole] = vocabulary.encodings(["a" * 50], special=False, windows=False, offsets=True)
    assert len(whole.ids) == 50
