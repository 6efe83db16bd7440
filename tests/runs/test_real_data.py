"""Real corpora, where they lie beside the project; elsewhere these tests say that they were left out."""

from pathlib import Path
from statistics import fmean

import pytest

from hansa.config.file import parse
from hansa.runs.result import Result
from hansa.runs.run import run

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="no corpora in ../shared/data: real-data tests left out")


def source(file: str, language: str, **more: object) -> dict[str, object]:
    return {"train": str(DATA / file), "where": {"lang": language}, "language": language, **more}


def test_a_tree_of_languages_learns(tmp_path: Path) -> None:
    file = "mlm_text/dev.jsonl.gz"
    west = {"silos": {code: source(file, code, limit=150) for code in ("fr", "it")}}
    east = {"silos": {code: source(file, code, limit=150) for code in ("bg", "uk")}}
    settings = parse(
        {
            "task": "causal-lm",
            "tokenizer": {"kind": "bytes"},
            "data": {"max_length": 48, "valid": 0.0},
            "silos": {"west": west, "east": east},
            "rounds": 4,
            "train": {"optimizer": "adamw", "lr": 2e-3, "samples": {"floor": 64}},
            "evaluate": {"every": 4, "share": 1.0},
        }
    )
    base = run(settings.model_copy(update={"rounds": 0}), tmp_path / "base", workers=0)
    outcome = run(settings, tmp_path / "run", workers=0)
    assert set(outcome.metrics) == {"fr", "it", "bg", "uk"}
    for language, figures in outcome.metrics.items():
        assert figures["perplexity"] < 0.6 * base.metrics[language]["perplexity"]


def test_news_in_three_languages_is_classified(tmp_path: Path) -> None:
    file = "masakhanews/dev.jsonl.gz"
    silos = {code: source(file, code, text="headline", limit=150) for code in ("eng", "fra", "swa")}
    settings = parse(
        {
            "task": "classify",
            "tokenizer": {"size": 2000, "min_count": 2},
            "data": {"max_length": 24, "valid": 0.0, "test": 0.2},
            "silos": silos,
            "rounds": 10,
            "train": {"optimizer": "adamw", "lr": 1e-3, "samples": {"epochs": 1}},
        }
    )
    outcome = run(settings, tmp_path / "run", workers=0)
    base = run(settings.model_copy(update={"rounds": 0}), tmp_path / "base", workers=0)
    assert set(outcome.metrics) == {"eng", "fra", "swa"}
    assert mean_accuracy(outcome) > mean_accuracy(base) + 0.1


def mean_accuracy(outcome: Result) -> float:
    return fmean(figures["accuracy"] for figures in outcome.metrics.values())
