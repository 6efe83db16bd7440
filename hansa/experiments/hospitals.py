"""Nine hospitals with labelled disease names: the data of `hansa demo`.

The texts are the ICD-10 disease names of GNU Health in four languages, and the label of a text is its ICD-10 chapter.
The hospitals are simulated: each gets a random part of the names of its language. A category is the first three
characters of an ICD code, such as A18. The categories of test data do not occur in training data, in any language, so
that neither a name, nor its translation, nor the name of a sibling code has been trained on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hansa.core.seeds import stream
from hansa.data.corpora.icd10 import write_rows

Rows = Sequence[dict[str, str]]


@dataclass(frozen=True)
class Hospital:
    """A silo: its name, the language of its texts, and how many labelled texts it has."""

    name: str
    language: str
    labels: int


HOSPITALS = (
    Hospital("London", "en", 240),
    Hospital("Madrid", "es", 160),
    Hospital("Paris", "fr", 120),
    Hospital("Berlin", "de", 120),
    Hospital("Dublin", "en", 100),
    Hospital("Seville", "es", 80),
    Hospital("Lyon", "fr", 60),
    Hospital("Graz", "de", 50),
    Hospital("Cork", "en", 40),
)
LANGUAGES = {"en": "English", "es": "Spanish", "fr": "French", "de": "German"}
TEST = 120  # texts of each hospital's test set
TEST_SHARE = 0.35  # of the categories


def category(code: str) -> str:
    """The category of an ICD code: its first three characters."""
    return code[:3]


def test_categories(rows: Mapping[str, Rows], seed: int) -> set[str]:
    """The categories that are held out for testing, the same for all languages."""
    every = sorted({category(row["code"]) for some in rows.values() for row in some})
    order = stream(seed, "categories").permutation(len(every))
    return {every[i] for i in order[: round(TEST_SHARE * len(every))]}


def lay_out(
    rows: Mapping[str, Rows], folder: Path, seed: int, hospitals: Sequence[Hospital] = HOSPITALS, test: int = TEST
) -> dict[str, dict[str, str]]:
    """Write a training and a test file for every hospital; return the ``silos`` section of a federation file.

    ``rows``: language → rows with the fields text, label and code. No text is in the files of two hospitals.
    """
    held_out = test_categories(rows, seed)
    trained = {
        row["text"].casefold() for some in rows.values() for row in some if category(row["code"]) not in held_out
    }
    free: dict[tuple[str, bool], list[dict[str, str]]] = {}
    for language, some in rows.items():
        seen: dict[str, dict[str, str]] = {}
        for row in some:
            seen.setdefault(row["text"].casefold(), row)  # a name that two codes share is kept once
        names = list(seen.values())
        shuffled = [names[i] for i in stream(seed, language, "hospitals").permutation(len(names))]
        free[language, True] = [row for row in shuffled if row["text"].casefold() not in trained]
        free[language, False] = [row for row in shuffled if category(row["code"]) not in held_out]
    silos = {}
    for hospital in hospitals:
        files = {}
        for split, kind, amount in (("train", False, hospital.labels), ("test", True, test)):
            mine, free[hospital.language, kind] = (
                free[hospital.language, kind][:amount],
                free[hospital.language, kind][amount:],
            )
            file = folder / f"{hospital.name}.{split}.jsonl"
            write_rows(file, mine)
            files[split] = str(file.resolve())
        silos[hospital.name] = files | {"language": hospital.language, "domain": hospital.name}
    return silos
