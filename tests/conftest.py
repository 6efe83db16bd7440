"""Small federations on made-up words: real models, real files, real processes; nothing from outside the repository."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.core.seeds import stream

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
torch.set_num_threads(1)
# A busy machine is slow, not wrong. Everywhere but in CI, every run tries examples that none tried before.
hypothesis.settings.register_profile("any machine", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("any machine")

WORDS = {
    "north": ["fever", "cough", "chill", "throat", "ache", "lung", "breath", "cold"],
    "south": ["fiebre", "tos", "dolor", "pecho", "sangre", "hueso", "pierna", "mano"],
    "east": ["жар", "кашель", "боль", "кровь", "кость", "нога", "рука", "сердце"],
}


ATTACKS = tuple(Path(__file__).parent / folder for folder in ("redteam", "attacks"))
EXPERIMENTS = Path(__file__).parent / "experiments"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What attacks is one suite (`make test-attacks`); smoke runs of the papers belong to `make test-docs`."""
    for item in items:
        if any(folder in item.path.parents for folder in ATTACKS):
            item.add_marker(pytest.mark.attack)
        if item.path.parent == EXPERIMENTS and "smoke" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.docs)
            item.add_marker(pytest.mark.xdist_group(item.path.stem))  # one process makes the runs, once


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def write_words(file: Path, words: list[str], count: int, seed: int = 0, labels: bool = False) -> Path:
    """Short texts with some order in them: a word is mostly followed by its neighbour."""
    rng = stream(seed, file.stem)
    rows = []
    for _ in range(count):
        at, text = int(rng.integers(len(words))), []
        first = at
        for _ in range(8):
            text.append(words[at])
            at = (at + 1) % len(words) if rng.random() < 0.8 else int(rng.integers(len(words)))
        rows.append(
            {"text": " ".join(text)} | ({"label": "low" if first < len(words) // 2 else "high"} if labels else {})
        )
    begun = file.with_suffix(".part")  # renamed when it is complete: a run under way may read the same file
    begun.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    begun.rename(file)
    return file


Build = Callable[..., Federation]


@pytest.fixture
def federation(tmp_path: Path) -> Build:
    """A federation of three small silos; keyword arguments replace top-level settings."""

    def build(**settings: Any) -> Federation:
        sizes = settings.pop("sizes", {"north": 120, "south": 60, "east": 30})
        labels = settings.get("task") == "classify"
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        silos = {}
        for name, count in sizes.items():
            words = WORDS[name.split("-")[0]]
            silos[name] = {"train": str(write_words(folder / f"{name}.jsonl", words, count, labels=labels))}
        raw = {
            "name": "small",
            "model": "mini",
            "tokenizer": {"size": 330, "min_count": 2},
            "data": {"max_length": 16, "valid": 0.0, "test": 0.2},
            "silos": silos,
            "rounds": 3,
            "train": {"lr": 0.2, "batch": 8, "samples": {"floor": 16}},
            "evaluate": {"every": 2, "share": 1.0},
            "checkpoint": {"every": 1},
        }
        return parse(raw | settings)

    return build


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k].view(torch.int32), b[k].view(torch.int32)) for k in a)
