"""Sentences and functions that tests of the import share."""

import json
from pathlib import Path
from typing import Any

from hansa.data.corpora import clinical_notes as generator
from hansa.data.importing import Settings, import_text

ONE = "La paziente lamenta dolore toracico da tre giorni."
TWO = "Non riferisce febbre né perdita di peso negli ultimi mesi."
THREE = "Si consiglia un controllo cardiologico entro la prossima settimana."


def run(tmp_path: Path, sources: Any, language: str = "it", **options: Any) -> Any:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, content in sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return again(folder, tmp_path / "out", language, **options)


def again(folder: Any, out: Any, language: str = "it", **options: Any) -> Any:
    report = import_text([folder], out, Settings(language, **({"memory": 2} | options)))
    files = {side: out / f"{language}.{side}.jsonl" for side in ("train", "valid", "test")}
    return report, {side: [json.loads(line) for line in file.read_text().splitlines()] for side, file in files.items()}


def texts(splits: Any) -> Any:
    return [row["text"] for side in splits.values() for row in side]


def reasons(report: Any) -> Any:
    return {one["reason"]: one for level in report["dropped"].values() for one in level}


def italian(count: Any, seed: int = 0) -> Any:
    return [note["text"] for note in generator.notes("it", count, seed)]
