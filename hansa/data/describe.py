"""What is in a file or folder of data: counts, lengths, languages, labels."""

import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from hansa.data.readers import Problems, rows
from hansa.data.settings import Data
from hansa.data.source import Source


def describe(path: Path, text: str, label: str) -> dict[str, Any]:
    problems = Problems()
    words: list[int] = []
    characters: list[int] = []
    languages: Counter[str] = Counter()
    scripts: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    whole = Data(valid=0.0, test=0.0)
    for row in rows(Source(train=str(path), text=text, label=label), "train", whole, problems):
        words.append(len(row[text].split()))
        characters.append(len(row[text]))
        scripts[script(row[text])] += 1
        if tag := row.get("lang") or row.get("language"):
            languages[str(tag)] += 1
        if row.get(label) is not None:
            labels[str(row[label])] += 1
    return {
        "path": str(path),
        "samples": len(words),
        "broken_lines": problems.broken,
        "first_problems": problems.first,
        "characters": sum(characters),
        "words_per_sample": _spread(words),
        "characters_per_sample": _spread(characters),
        "languages": dict(languages.most_common()),
        "scripts": dict(scripts.most_common()),
        "labels": dict(labels.most_common()),
    }


def script(text: str) -> str:
    """The writing system of the first letters, by their Unicode names."""
    found = Counter(unicodedata.name(c, "?").split()[0].split("-")[0] for c in text[:200] if c.isalpha())
    return found.most_common(1)[0][0].capitalize() if found else "None"


def _spread(values: list[int]) -> dict[str, float]:
    if not values:
        return {}
    low, middle, high = np.percentile(values, [5, 50, 95])
    found = {"mean": np.mean(values), "p5": low, "median": middle, "p95": high}
    return {name: round(float(value), 1) for name, value in found.items()}
