"""The nine silos of the Medical paper, written from real text.

Clinical and biomedical passages in five languages and ICD-10 names in four more, in the proportions of Table 1 of the
paper; and general text in the same languages, for the pre-training of the common start.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from hansa.core.errors import DataError
from hansa.core.seeds import derive, stream
from hansa.data.corpora import clinical_notes as generator
from hansa.data.corpora import icd10

# Training texts per language, in the proportions of Table 1: in training samples, English has about 400 times as many
# as the middle languages (the paper: 230 to 330 times) and more than a thousand times as many as the smallest.
CLINICAL = {"en": 8159, "fr": 13, "es": 14, "it": 11, "eu": 4}
CODED = {"de": 174, "pt": 121, "vi": 40, "el": 40}
LANGUAGES = (*CLINICAL, *CODED)
NAMES = {
    "en": "English", "fr": "French", "es": "Spanish", "it": "Italian", "eu": "Basque", "de": "German",
    "pt": "Portuguese", "vi": "Vietnamese", "el": "Greek", "ru": "Russian", "ar": "Arabic", "he": "Hebrew",
}  # fmt: skip
NAMES_TO_TEST, NAMES_TO_VALIDATE = 1500, 600  # ICD-10: with fewer, single words decide which model is more accurate
VALIDATION = 24  # passages
SOME = 40  # texts for the evaluation of many models
Row = dict[str, Any]


def lay_out(data: Path, folder: Path, everything: bool = False) -> dict[str, dict[str, str]]:
    """Write train, valid and test files of every silo, and general text below general/; return the silos' sources.

    ``everything``: use all text, in the proportions of the corpora.
    """
    texts = _clinical(data, everything) | _coded(everything)
    for language, splits in texts.items():
        for split, rows in splits.items():
            icd10.write_rows(folder / f"{language}.{split}.jsonl", rows)
    for language, rows in _general(data).items():
        icd10.write_rows(folder / "general" / f"{language}.jsonl", rows)
    return sources(folder, list(texts))


def generate(folder: Path) -> dict[str, dict[str, str]]:
    """The same layout from a few generated notes, for a test that takes seconds."""
    codes = ("en", "fr", "es", "it", "de", "pt", "ru", "ar", "he")
    for number, code in enumerate(codes):
        notes = list(generator.notes(code, 40 if number == 0 else 24, seed=1, sentences=(1, 2)))
        for split, part in {"test": notes[:6], "valid": notes[6:12], "train": notes[12:]}.items():
            icd10.write_rows(folder / f"{code}.{split}.jsonl", [{"text": n["text"], "lang": code} for n in part])
        general = [{"text": n["text"]} for n in generator.notes(code, 30, seed=2, sentences=(1, 2))]
        icd10.write_rows(folder / "general" / f"{code}.jsonl", general)
    return sources(folder, list(codes))


def sources(folder: Path, languages: list[str]) -> dict[str, dict[str, str]]:
    """Language → the settings of its silo's source."""

    def file(language: str, split: str) -> str:
        """The absolute path of one language's split."""
        return str((folder / f"{language}.{split}.jsonl").resolve())

    return {
        language: {split: file(language, split) for split in ("train", "valid", "test")} | {"language": language}
        for language in languages
    }


def first(file: Path, target: Path) -> Path:
    """Write the first `SOME` lines of a file to ``target``; return ``target``."""
    with file.open(encoding="utf-8") as stream_of_lines:
        target.write_text("".join(islice(stream_of_lines, SOME)), encoding="utf-8")
    return target


def _clinical(data: Path, everything: bool) -> dict[str, dict[str, list[Row]]]:
    """Passages of med_text_e3c: its dev split is the test set; validation documents are taken from train."""
    found: dict[str, dict[str, list[Row]]] = {language: defaultdict(list) for language in CLINICAL}
    for row in lines(data / "med_text_e3c" / "train.jsonl.gz"):
        held = derive(0, row["doc"], "validation") % 50 == 0
        found[row["lang"]]["valid" if held else "train"].append({"text": row["text"], "lang": row["lang"]})
    for row in lines(data / "med_text_e3c" / "dev.jsonl.gz"):
        found[row["lang"]]["test"].append({"text": row["text"], "lang": row["lang"]})
    for language, size in CLINICAL.items():
        found[language]["valid"] = found[language]["valid"][:VALIDATION]
        rows = found[language]["train"]
        order = stream(0, language, "layout").permutation(len(rows))[: None if everything else size]
        found[language]["train"] = [rows[i] for i in order]
    return {language: dict(splits) for language, splits in found.items()}


def _coded(everything: bool) -> dict[str, dict[str, list[Row]]]:
    diseases = icd10.diseases()
    found = {}
    for language, size in CODED.items():
        order = stream(0, language, "layout").permutation(len(diseases[language]))
        rows = [{"text": diseases[language][i]["text"], "lang": language} for i in order]
        held_out = NAMES_TO_TEST + NAMES_TO_VALIDATE
        test, valid, train = rows[:NAMES_TO_TEST], rows[NAMES_TO_TEST:held_out], rows[held_out:]
        found[language] = {"test": test, "valid": valid, "train": train if everything else train[:size]}
    return found


def _general(data: Path) -> dict[str, list[Row]]:
    """Text of mlm_text, or hospital vocabulary for the two languages that it lacks."""
    found: dict[str, list[Row]] = {language: [] for language in LANGUAGES}
    for row in lines(data / "mlm_text" / "train.jsonl.gz"):
        if row["lang"] in found:
            found[row["lang"]].append({"text": row["text"], "lang": row["lang"]})
    hospital = icd10.hospital_vocabulary()
    return {language: rows or list(hospital[language]) for language, rows in found.items()}


def lines(file: Path) -> Iterator[Row]:
    """The rows of a gzipped JSON Lines file; raises `DataError` if it does not exist."""
    if not file.is_file():
        raise DataError(f"{file} does not exist; --data needs a folder with med_text_e3c, mlm_text and the NER corpora")
    with gzip.open(file, "rt", encoding="utf-8") as stream_of_lines:
        for line in stream_of_lines:
            yield json.loads(line)
