"""A small federation in memory: made-up words, a small model, no files."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import hansa
from tests.conftest import WORDS

Make = Callable[..., hansa.Federation]
SETTINGS: dict[str, Any] = {
    "task": "classify",
    "model": "mini",
    "rounds": 2,
    "name": "small",
    "tokenizer": {"size": 300, "min_count": 1},
    "data": {"max_length": 16},
    "train": {"batch": 8, "lr": 0.05},
    "evaluate": {"every": 1, "share": 1.0},
}


def rows(silo: str, count: int) -> list[dict[str, str]]:
    """Texts of two kinds: from the first or the second half of a silo's words."""
    words, chosen = WORDS[silo], Random(silo)
    half = len(words) // 2
    kinds = {"a": words[:half], "b": words[half:]}
    return [
        {"text": " ".join(chosen.choices(kinds["ab"[i % 2]], k=6)), "label": "ab"[i % 2], "id": str(i)}
        for i in range(count)
    ]


@pytest.fixture
def make() -> Make:
    """Builds a federation of two silos in memory; keyword arguments replace settings."""

    def build(**changes: Any) -> hansa.Federation:
        given = {"silos": {"north": rows("north", 60), "south": rows("south", 40)}} | SETTINGS | changes
        return hansa.Federation(**given)

    return build
