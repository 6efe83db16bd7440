"""Statistics of a file or folder of data: counts, lengths, languages, labels."""

import unicodedata
from collections import Counter
from math import ceil, floor
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
    words: Counter[int] = Counter()  # of a text → number of texts
    characters: Counter[int] = Counter()
    languages: Counter[str] = Counter()
    scripts: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    whole = Data(valid=0.0, test=0.0)
    for row in rows(Source(train=str(path), text=text, label=label), "train", whole, problems):
        words[len(row[text].split())] += 1
        characters[len(row[text])] += 1
        scripts[script(row[text])] += 1
        if tag := row.get("lang") or row.get("language"):
            languages[str(tag)] += 1
        if row.get(label) is not None:
            labels[str(row[label])] += 1
    return {
        "path": str(path),
        "samples": words.total(),
        "bad_rows": problems.bad,
        "first_problems": problems.first,
        "characters": sum(size * count for size, count in characters.items()),
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


def _spread(counts: Counter[int]) -> dict[str, float]:
    """Mean and percentiles of values that occur so often; interpolated between neighbours, as by `numpy.percentile`."""
    if not counts:
        return {}
    values = np.array(sorted(counts))
    ends = np.cumsum([counts[value] for value in values.tolist()])
    found = {"mean": sum(value * count for value, count in counts.items()) / counts.total()}
    for name, share in (("p5", 0.05), ("median", 0.5), ("p95", 0.95)):
        place = share * (counts.total() - 1)
        low, high = values[np.searchsorted(ends, [floor(place), ceil(place)], side="right")]
        part = place - floor(place)  # from the nearer neighbour, as numpy does
        found[name] = low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)
    return {name: round(float(value), 1) for name, value in found.items()}
