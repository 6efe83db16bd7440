"""Preview, run, report and model card say the same of samples, shares, weights, labels and traffic."""

import json
from pathlib import Path
from typing import Any

import pytest

from hansa.config.federation import Federation
from hansa.core.errors import ConfigError, DataError
from hansa.core.settings import Named
from hansa.preview.preview import preview
from hansa.report.data import silo_rows
from hansa.report.html import content
from hansa.runs.result import Result
from hansa.runs.results import RunResults
from hansa.runs.run import run
from tests.conftest import Build

LONG = {"data": {"max_length": 12, "valid": 0.1, "test": 0.2}}
CASES: dict[str, dict[str, Any]] = {
    "mlm in windows, vocabulary of the silos": {"tokenizer": {"size": 330, "min_count": 2}, **LONG},
    "mlm in windows of bytes": {"tokenizer": {"kind": "bytes"}, **LONG},
    "causal": {"task": "causal-lm", "tokenizer": {"kind": "bytes"}, **LONG},
    "classify": {"task": "classify", "tokenizer": {"kind": "bytes"}, "data": {"max_length": 80, "test": 0.2}},
    "ner": {"task": "ner", "tokenizer": {"kind": "bytes"}, "data": {"max_length": 80, "test": 0.2}},
    "a bound on shares, the square root": {
        "participation": {"max_share": 0.4},
        "aggregate": {"weights": {"temperature": 0.5}},
        "tokenizer": {"kind": "bytes"},
        **LONG,
    },
}


def tagged(settings: Federation) -> None:
    """Turn the rows of all silos into words with tags."""
    for node in settings.silos.values():
        file = Path(node.sources[0].train)
        rows = [json.loads(line)["text"].split() for line in file.read_text(encoding="utf-8").splitlines()]
        named = [{"tokens": words, "tags": ["B-First", *["O"] * (len(words) - 1)]} for words in rows]
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in named), encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_preview_run_report_and_card_agree(federation: Build, tmp_path: Path, name: str) -> None:
    settings = federation(model="mini", rounds=1, train={"samples": {"epochs": 1}}, **CASES[name])
    if settings.task.name == "ner":
        tagged(settings)
    seen = preview(settings)
    outcome = run(settings, tmp_path / "run", workers=0)
    found, result = RunResults.read(outcome.folder), Result.read(outcome.folder)

    assert seen.foreseen.exact
    assert {one.name: one.sources for one in seen.silos} == {n: card.groups["train"] for n, card in found.cards.items()}
    if "windows" in name:
        assert sum(one.samples for one in seen.silos) > 210, "texts are cut into several samples"
    traffic = result.traffic.set_index("silo")
    for one in seen.silos:
        assert one.per_round == traffic["samples"][one.name], "what was trained on"
        assert one.weight == pytest.approx(traffic["weight"][one.name], abs=1e-12), "the weight in the aggregate"
    assert sum(traffic["weight"]) == pytest.approx(1.0)
    labels = json.loads((outcome.folder / "start" / "labels.json").read_text(encoding="utf-8"))
    assert list(seen.foreseen.labels) == labels
    assert seen.parameters == found.parameters

    assert seen.traffic is not None
    measured = found.bytes_up + found.bytes_down
    assert seen.traffic.total <= measured < 1.05 * seen.traffic.total, "the rest are headers"

    shown = {row["name"]: row for row in silo_rows(found)}
    card = (outcome.folder / "model" / "README.md").read_text(encoding="utf-8")
    for one in seen.silos:
        assert shown[one.name]["samples"] == f"{one.samples:,}"
        assert shown[one.name]["weight"] == f"{one.weight:.1%}"
        assert f"| {one.name} | {one.samples:,} | {one.per_round:,} | {one.weight:.1%} |" in card
    assert content([found], "", [], [])["silos"] == silo_rows(found)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "one label": ({"task": {"name": "classify", "labels": ["high"]}}, "needs at least two labels"),
    "no validation data": ({"personal": {"rounds": 1}}, "it has no validation samples, and 'personal'"),
    "no training data": ({"data": {"valid": 0.0, "test": 0.999, "max_length": 16}}, "no training samples are left"),
    "too long": ({"model": {"path": "BASE"}, "tokenizer": {}, "data": {"max_length": 600}}, "lower data.max_length"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_check_refuses_what_run_refuses_in_the_same_words(federation: Build, tmp_path: Path, name: str) -> None:
    changes, said = REFUSED[name]
    if changes.get("model") == {"path": "BASE"}:
        start = run(federation(model="mini", rounds=0), tmp_path / "base", workers=0).folder / "model"
        changes = changes | {"model": {"path": str(start)}}
    settings = federation(**changes)
    sentences = []
    for action in (lambda: preview(settings), lambda: run(settings, tmp_path / "run", workers=0)):
        with pytest.raises((ConfigError, DataError), match=said) as error:
            action()
        sentences.append(str(error.value))
    assert sentences[0] == sentences[1]


def test_new_weights_are_named_and_the_base_is_in_the_card(federation: Build, tmp_path: Path) -> None:
    base = run(federation(model="mini", rounds=0), tmp_path / "base", workers=0).folder / "model"
    settings = federation(task="classify", model=str(base), tokenizer={}, rounds=0)
    seen = preview(settings)
    [note] = seen.foreseen.notes
    assert note.startswith("model has no weights for 4 tensors that task 'classify' needs")
    assert "classifier.weight" in note
    said: list[str] = []

    class Listener:
        def on_message(self, run: Any, text: str) -> None:
            said.append(text)

    outcome = run(settings, tmp_path / "run", workers=0, callbacks=[Listener()])
    assert note in said
    card = (outcome.folder / "model" / "README.md").read_text(encoding="utf-8")
    assert "base_model: model" in card
    assert "4 tensors of its head were new" in card
    again = federation(task="classify", model=str(outcome.folder / "model"), tokenizer={}, rounds=0)
    assert preview(again).foreseen.notes == [], "it has a head now"


def test_a_head_keeps_the_order_of_its_classes(federation: Build, tmp_path: Path) -> None:
    """Negative control: in alphabetical order, the classes of the head would change places."""
    settings = federation(task="classify", rounds=0)
    task = Named.model_validate({"name": "classify", "labels": ["low", "high"]})
    first = run(settings.model_copy(update={"task": task}), tmp_path / "first", workers=0)
    again = federation(task="classify", model=str(first.folder / "model"), tokenizer={}, rounds=0)
    assert preview(again).foreseen.labels == ("low", "high")
    second = run(again, tmp_path / "second", workers=0)
    assert second.metrics == first.metrics


def test_check_counts_what_is_evaluated_on_and_warns_where_that_is_little(federation: Build) -> None:
    shares, sizes = {"valid": 0.05, "test": 0.4, "max_length": 80}, {"north": 100, "south": 100}
    settings = federation(model="mini", tokenizer={"kind": "bytes"}, data=shares, sizes=sizes)
    seen = preview(settings)
    for one in seen.silos:
        card = seen.foreseen.cards[one.name]
        assert (one.valid, one.test) == (card.samples("valid"), card.samples("test"))
        assert one.valid < 20 < one.test
    [few] = [line for line in seen.warnings if "fewer than 20 samples" in line]
    assert f"{seen.silos[0].name} ({seen.silos[0].valid} validation, {seen.silos[0].test} test)" in few
    plenty = preview(
        federation(model="mini", tokenizer={"kind": "bytes"}, data={"valid": 0.4, "test": 0.4}, sizes=sizes)
    )
    assert not any("fewer than 20" in line for line in plenty.warnings)


def test_the_time_of_a_round_is_that_of_samples_as_long_as_they_are(federation: Build) -> None:
    short = preview(federation(model="mini", tokenizer={"kind": "bytes"}, data={"max_length": 40}), resources=True)
    long = preview(federation(model="mini", tokenizer={"kind": "bytes"}, data={"max_length": 400}), resources=True)
    assert short.resources is not None
    assert long.resources is not None
    assert 0 < long.foreseen.tokens[long.silos[0].name] < 100, "most of the window stays empty"
    assert long.resources.seconds < 5 * short.resources.seconds, "full windows would take ten times as long"
