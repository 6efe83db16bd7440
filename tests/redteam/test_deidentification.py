"""A text on which de-identification fails is left out and counted; it ends nothing, and no message quotes it."""

import json
from pathlib import Path
from typing import Any

import pytest

from hansa.config.file import parse
from hansa.core.messages import CollectVocabulary, VocabularyCounts
from hansa.data.deidentification import deidentify, lexicon, reading
from hansa.data.deidentification.rules import Finding, Rules
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.redteam.test_labels import deployed

DATE = "בדיקה ב-12 נוב' 2019 borkelmund"  # the month ends with the apostrophe of a keyboard
CANARY = "borkelmund"


@pytest.fixture
def federation(tmp_path: Path) -> Any:
    """Two silos with Hebrew notes; one of them has the date."""
    silos = {}
    for name in ("north", "south"):
        texts = [f"חום ושיעול {i % 9}" for i in range(60)] + [DATE] * (name == "north")
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        silos[name] = {"train": str(file), "language": "he"}
    return parse(
        {
            "name": "dates",
            "tokenizer": {"size": 330, "min_count": 2},
            "data": {"max_length": 16, "valid": 0.0, "test": 0.1, "deidentify": "rules", "max_bad_rows": 0.05},
            "silos": silos,
            "rounds": 1,
            "train": {"lr": 0.1, "batch": 8, "samples": {"floor": 8}},
        }
    )


def fails(self: Rules, text: str, language: str) -> list[Finding]:
    """A finder that cannot read the date, as it was: months were looked up as they are written."""
    if CANARY in text:
        raise KeyError(text)
    return []


def test_a_date_with_a_keyboards_apostrophe_is_read(federation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    new, _ = deidentify.deidentify(DATE, "he", Rules(), "key")
    assert "נוב'" not in new, "the date moved"
    monkeypatch.setattr(lexicon, "month_key", str.casefold)  # the control: as it was
    lexicon.vocabulary.cache_clear()
    try:
        assert lexicon.vocabulary("he").month("נוב'") is None
    finally:
        lexicon.vocabulary.cache_clear()


def test_a_run_goes_on_without_the_row(federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rules, "find", fails)
    outcome = run(federation, tmp_path / "run", workers=0)
    ledger = Ledger(outcome.folder)
    told = " ".join(text for (text,) in ledger.select("select text from events"))
    ledger.close()
    assert "de-identification failed: KeyError" in told
    assert CANARY not in told


@pytest.mark.parametrize("defended", [True, False])
def test_a_deployed_silo_answers_without_the_row(
    federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    monkeypatch.setattr(Rules, "find", fails)
    ask = deployed(federation, tmp_path)
    if not defended:

        def raising(error: Exception) -> str:
            raise error

        monkeypatch.setattr(reading, "failure", raising)
        with pytest.raises(KeyError, match=CANARY):
            ask(CollectVocabulary(2))
        return
    reply = ask(CollectVocabulary(2))
    assert isinstance(reply, VocabularyCounts)
    assert reply.pieces
