"""Small federations whose texts are random words: rows with labels that follow from the words, or from nothing."""

import json
from pathlib import Path
from typing import Any

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.core.seeds import stream

ILL = ["fever", "cough", "chill", "throat"]
HURT = ["bone", "leg", "hand", "foot"]
COMMON = ["the", "patient", "has", "some", "very", "bad", "old", "new"]


def words(count: int, seed: int = 0) -> list[str]:
    """Made-up words."""
    rng = stream(seed, "words")
    letters = list("abcdefghijklmnopqrstuvwxyz")
    return ["".join(rng.choice(letters, int(rng.integers(3, 7)))) for _ in range(count)]


def write(file: Path, rows: list[dict[str, str]]) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def unrelated(name: str, rows: int, vocabulary: list[str], length: int = 8) -> list[dict[str, str]]:
    """Texts of random words, whose labels follow from nothing: a model can only remember them."""
    rng = stream(0, name)
    return [
        {"text": " ".join(rng.choice(vocabulary, length)), "label": str(rng.choice(["low", "high"]))}
        for _ in range(rows)
    ]


def symptoms(name: str, rows: int) -> list[dict[str, str]]:
    """Texts whose label follows from their words."""
    rng, found = stream(0, name), []
    for _ in range(rows):
        kind, own = [("ill", ILL), ("hurt", HURT)][int(rng.integers(2))]
        found.append({"text": " ".join([*rng.choice(own + COMMON, 6), str(rng.choice(own))]), "label": kind})
    return found


def federation(silos: dict[str, dict[str, Any]], **settings: Any) -> Federation:
    """A federation with one very small model."""
    raw: dict[str, Any] = {
        "name": "attacked",
        "task": "classify",
        "model": {"preset": "mini"},
        "tokenizer": {"size": 330, "min_count": 2},
        "data": {"max_length": 16, "valid": 0.0, "test": 0.4},
        "silos": silos,
        "train": {"optimizer": "adam", "lr": 0.002, "batch": 8, "samples": {"epochs": 2}},
        "evaluate": {"every": 100},
        "checkpoint": {"every": 100},
    }
    return parse(raw | settings)
