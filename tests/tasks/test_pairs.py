"""Classification of text pairs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from hansa.cli.main import app
from hansa.config.file import parse, read
from hansa.core.errors import DataError, UserError
from hansa.core.seeds import stream
from hansa.data.examples import Encoded, Unusable
from hansa.data.rows import Row
from hansa.data.source import Source
from hansa.models.tokenizer import byte_tokenizer
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from hansa.tasks.base import Vocabulary
from hansa.tasks.classify import Classify
from hansa.tasks.pairs import Pairs
from hansa.templates import new

SOURCE = Source(train="x", text="a", second="b")
VOCABULARY = Vocabulary(byte_tokenizer(), 24, ("0", "1"), 2)
TASK = Pairs(Classify(negative="0"))


def row(**fields: Any) -> Any:
    found = Row(fields)
    found.place = "file:1"
    return found


def test_a_sample_has_both_texts_with_token_types() -> None:
    [sample] = TASK.encode([row(a="no", b="yes", label=1)], SOURCE, VOCABULARY)
    assert isinstance(sample, Encoded)
    alone = [VOCABULARY.tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("no", "yes")]
    start, end = VOCABULARY.tokenizer.cls_token_id, VOCABULARY.tokenizer.sep_token_id
    assert sample.ids == [start, *alone[0], end, *alone[1], end]
    assert sample.tags == [0] * 4 + [1] * 4
    assert sample.label == 1


def test_the_longer_text_is_truncated_first() -> None:
    [sample] = TASK.encode([row(a="x" * 50, b="yes", label=0)], SOURCE, VOCABULARY)
    assert isinstance(sample, Encoded)
    assert len(sample.ids) == 24
    assert sum(sample.tags) == 4, "the short text is complete"


@pytest.mark.parametrize(
    ("fields", "reason"), [({"b": " "}, "field 'b'"), ({}, "field 'b'"), ({"b": "x", "label": 7}, "not one of 0, 1")]
)
def test_invalid_pairs_are_reported(fields: Any, reason: Any) -> None:
    [problem] = TASK.encode([row(**{"a": "x", "label": 1} | fields)], SOURCE, VOCABULARY)
    assert isinstance(problem, Unusable)
    assert reason in problem.reason
    assert problem.place == "file:1"


def test_f1_ignores_the_negative_class() -> None:
    sums = {"samples": 10.0, "correct": 6.0, "nll": 5.0}
    sums |= {"hit:1": 2.0, "guessed:1": 4.0, "true:1": 4.0, "hit:0": 4.0, "guessed:0": 6.0, "true:0": 6.0}
    metrics = TASK.metrics(sums)
    assert metrics["accuracy"] == 0.6
    assert metrics["micro_f1"] == pytest.approx(0.5)


@pytest.fixture
def pairs(tmp_path: Path) -> Any:
    """Pairs whose label depends on both texts."""
    rng = stream(0, "pairs")
    words = ["fever", "cough", "ache", "lung"]
    silos = {}
    for name in ("en", "de"):
        some = [(int(rng.integers(4)), int(rng.integers(2))) for _ in range(60)]
        rows = [
            {"a": f"{words[i]} {n}", "b": words[i if same else (i + 1) % 4], "label": same}
            for n, (i, same) in enumerate(some)
        ]
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps(r) + "\n" for r in rows))
        silos[name] = {"train": str(file), "text": "a", "second": "b", "language": name}
    return parse(
        {
            "name": "pairs",
            "task": {"name": "pairs", "negative": "0"},
            "tokenizer": {"size": 300, "min_count": 1},
            "data": {"max_length": 16, "valid": 0.0, "test": 0.2},
            "silos": silos,
            "method": {"name": "fedkc", "layer": "all", "q": 2, "floor": 1},
            "rounds": 1,
            "train": {"optimizer": "adamw", "lr": 1e-3, "batch": 8},
        }
    )


def test_a_run_scores_each_language_and_predicts_for_two_texts(pairs: Any, tmp_path: Path) -> None:
    outcome = run(pairs, tmp_path / "run", workers=0)
    assert set(outcome.metrics) == {"en", "de"}
    assert {"accuracy", "micro_f1"} <= set(outcome.metrics["en"])
    result = CliRunner().invoke(app, ["predict", str(outcome.folder), "fever", "cough", "--format", "json"])
    answers = json.loads(result.stdout)["predictions"][0]["answers"]
    assert {answer["label"] for answer in answers} == {"0", "1"}
    with pytest.raises(UserError, match="2 texts at a time"):
        CliRunner().invoke(app, ["predict", str(outcome.folder), "fever"], catch_exceptions=False)


def test_a_pair_without_second_text_is_counted_and_the_run_continues(pairs: Any, tmp_path: Path) -> None:
    file = tmp_path / "en.jsonl"
    file.write_text(file.read_text() + json.dumps({"a": "fever 7", "label": 1}) + "\n")
    with pytest.raises(DataError, match=r"1 of 61 lines cannot be used.*field 'b'"):
        run(pairs, tmp_path / "strict", workers=0)
    some = pairs.model_copy(update={"data": pairs.data.model_copy(update={"max_bad_rows": 0.1})})
    ledger = Ledger(run(some, tmp_path / "run", workers=0).folder)
    noted = ledger.select("select text from events where node='en' and kind='data'")
    ledger.close()
    assert any("field 'b' (the second text" in text for (text,) in noted)


def test_models_without_token_types_get_none() -> None:
    import numpy as np

    from hansa.data.examples import Examples

    ids, tags = np.array([2, 5, 3, 6, 3], np.int32), np.array([0, 0, 0, 1, 1], np.int32)
    held = Examples(ids, np.array([0, 5]), np.array([1], np.int32), np.zeros(1, np.int32), ("en",), tags)
    plain = TASK.batch(held, np.array([0]), stream(0), Vocabulary(byte_tokenizer(), 24, ("0", "1"), 1))
    typed = TASK.batch(held, np.array([0]), stream(0), VOCABULARY)
    assert set(plain.inputs) == {"input_ids", "attention_mask"}
    assert torch.equal(typed.inputs["token_type_ids"], torch.tensor([[0, 0, 0, 1, 1]]))


def test_the_template_passes_the_preview(tmp_path: Path) -> None:
    federation = read(new("pairs", tmp_path / "pairs"))
    assert len(federation.silos) == 12
    from hansa.preview.preview import preview

    seen = preview(federation)
    assert all(silo.samples > 50 for silo in seen.silos)
