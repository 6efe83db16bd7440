"""Statistics of a file or folder of data: counts, lengths, languages, labels."""

import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from hansa.data.rows import Problems
from hansa.data.settings import Data
from hansa.data.source import Source
from hansa.data.splits import rows


def describe(path: Path, text: str, label: str) -> dict[str, Any]:
    """Count the samples of a file or folder; ``text`` and ``label`` name its fields."""
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
        "bad_rows": problems.bad,
        "first_problems": problems.first,
        "characters": sum(characters),
        "words_per_sample": _spread(words),
        "characters_per_sample": _spread(characters),
        "languages": dict(languages.most_common()),
        "scripts": dict(scripts.most_common()),
        "labels": dict(labels.most_common()),
    }


def script(text: str) -> str:
    """The most frequent writing system among the first letters of a text, by their Unicode names."""
    found = Counter(unicodedata.name(c, "?").split()[0].split("-")[0] for c in text[:200] if c.isalpha())
    return found.most_common(1)[0][0].capitalize() if found else "None"


def _spread(values: list[int]) -> dict[str, float]:
    if not values:
        return {}
    low, middle, high = np.percentile(values, [5, 50, 95])
    found = {"mean": np.mean(values), "p5": low, "median": middle, "p95": high}
    return {name: round(float(value), 1) for name, value in found.items()}
