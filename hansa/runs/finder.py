"""Train the learned finder of personal details, with the task ``ner``, on generated notes and annotated corpora.

The result is a Hugging Face folder: `hansa data deidentify --with rules+lists+model:FOLDER` uses it. Training is an
ordinary run, so it can also be a federated one: every language and every corpus is a silo, and no text is pooled.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hansa.config.file import parse
from hansa.core.errors import DataError, UserError
from hansa.data.corpora.identified_notes import LANGUAGES, identified_notes, ordinary_text
from hansa.data.deidentification.files import annotated_rows
from hansa.data.deidentification.measuring import measure
from hansa.data.deidentification.tagger import SETTINGS, Tagger
from hansa.runs.run import run

LABELS = ("NAME", "DATE", "PHONE", "EMAIL", "ID", "ADDRESS", "TOWN", "HOSPITAL", "PROFESSION")
THRESHOLD = 0.95  # the finder adds to rules and lists: on other text than it was trained on, less gives false findings
REPEAT = 2  # how often a user's corpus is read in each pass: it is real text


@dataclass(frozen=True)
class FinderSettings:
    """How the finder is trained."""

    languages: tuple[str, ...] = LANGUAGES
    notes: int = 600  # generated notes per language; half as many texts without personal details are added
    passes: int = 4
    vocabulary: int = 20000
    federated: bool = False  # one silo per language and corpus, instead of pooled text
    workers: int = 0
    seed: int = 0


def train_finder(
    out: Path, corpora: list[Path], language: str, settings: FinderSettings, callbacks: Iterable[object] = ()
) -> dict[str, Any]:
    """Train a finder and write its folder; return its leak rates on held-back generated notes.

    ``callbacks``: see `hansa.runs.callbacks`. ``corpora``: annotated files or folders, with ``language`` for rows that
    have no ``lang``. Raises `UserError` if
    ``out`` is not empty, and `DataError` if a corpus has no annotated row.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: this folder is not empty; name a new folder for the finder")
    with TemporaryDirectory(prefix="hansa-finder-") as made:
        work = Path(made)
        silos = {code: _write(work / f"{code}.jsonl", _generated(code, settings), code) for code in settings.languages}
        for number, corpus in enumerate(corpora, 1):
            file = work / f"corpus{number}.jsonl"
            silos[f"corpus{number}"] = _write(file, _annotated(corpus, language), language)
            if not file.stat().st_size:
                raise DataError(f"{corpus}: no row has annotated personal details; give 'personal' spans or BIO tags")
        outcome = run(parse(_federation(silos, settings)), work / "run", workers=settings.workers, callbacks=callbacks)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(outcome.folder / "model", out, dirs_exist_ok=True)
    scores = {code: _held_back(out, code, settings.seed) for code in settings.languages}
    report = {
        "threshold": THRESHOLD,
        "dictionary": True,
        "languages": list(settings.languages),
        "corpora": len(corpora),
        "leaks": scores,
    }
    (out / SETTINGS).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def _federation(silos: dict[str, dict[str, Any]], settings: FinderSettings) -> dict[str, Any]:
    training = {"optimizer": "adamw", "lr": 1e-3, "batch": 8}
    return {
        "name": "finder",
        "kind": "federated" if settings.federated else "central",
        "seed": settings.seed,
        "task": {"name": "ner", "labels": list(LABELS)},
        "model": "tiny",
        "tokenizer": {"kind": "federated", "size": settings.vocabulary, "min_count": 2},
        "data": {"max_length": 128, "valid": 0.0, "test": 0.02, "max_bad_rows": 0.2},
        "silos": silos,
        "rounds": settings.passes,
        "train": {**training, "samples": {"epochs": 1}},
        "baseline": {**training, "keep_optimizer": True, "schedule": {"kind": "linear", "warmup": 50}},
        "evaluate": {"every": 1, "share": 1.0},
    }


def _write(file: Path, rows: Iterator[dict[str, Any]], language: str) -> dict[str, Any]:
    with file.open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    return {"train": str(file), **({"language": language} if language else {})}


def _generated(code: str, settings: FinderSettings) -> Iterator[dict[str, Any]]:
    for note in identified_notes(code, settings.notes, settings.seed):
        yield {"text": note["text"], "entities": note["personal"]}
    for text in ordinary_text(code, settings.notes // 2, settings.seed):
        yield {"text": text, "entities": []}


def _annotated(corpus: Path, language: str) -> Iterator[dict[str, Any]]:
    for row in annotated_rows([corpus], "text", language):
        known = [span for span in row["personal"] if span["type"] in LABELS]
        for _ in range(REPEAT):
            yield {"text": row["text"], "entities": known}


def _held_back(folder: Path, code: str, seed: int) -> dict[str, float | None]:
    rates = measure(identified_notes(code, 100, seed, held_back=True), Tagger(str(folder)), code)
    return {kind: one["leak_rate"] for kind, one in rates["types"].items()}
