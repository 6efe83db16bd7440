"""Silos split into clients: no row lost or duplicated, skewed labels; and the central baselines."""

import json
from pathlib import Path
from typing import Any

import pytest

from hansa.config.file import dump, parse
from hansa.core.errors import ConfigError
from hansa.core.messages import DataCard
from hansa.data.rows import Problems
from hansa.data.settings import Data
from hansa.data.splits import rows
from hansa.runs.baselines import arrange, dominant
from hansa.runs.run import run
from tests.conftest import Build

LABELS = ("a", "b", "c", "d")


@pytest.fixture
def file(tmp_path: Path) -> Any:
    texts = [{"text": f"text number {i}", "label": LABELS[i % 4]} for i in range(2000)]
    file = tmp_path / "en.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in texts))
    return str(file)


def client_rows(file: Any, split: str = "train", seed: int = 0, **settings: Any) -> Any:
    """The rows of each client."""
    federation = parse({"seed": seed, "silos": {"en": {"train": file, "language": "en"} | settings}})
    data, problems = Data(), Problems()
    return {name: list(rows(node.sources[0], split, data, problems)) for name, node in federation.silos.items()}


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize("skew", [None, 0.3])
def test_clients_divide_the_rows_without_loss_or_overlap(file: Any, split: Any, skew: Any) -> None:
    parts = client_rows(file, split, clients=8, skew=skew)
    whole = client_rows(file, split)["en"]
    assert list(parts) == [f"en-{i}" for i in range(1, 9)]
    together = [row["text"] for part in parts.values() for row in part]
    assert sorted(together) == sorted(row["text"] for row in whole)


def largest_share(part: Any) -> Any:
    return max(sum(row["label"] == label for row in part) for label in LABELS) / len(part)


def test_skew_changes_labels_in_training_and_not_in_test(file: Any) -> None:
    even = [largest_share(part) for part in client_rows(file, clients=5).values()]
    skewed = [largest_share(part) for part in client_rows(file, clients=5, skew=0.3).values()]
    assert max(even) < 0.35
    assert max(skewed) > 0.5
    sizes = [len(part) for part in client_rows(file, "test", clients=5, skew=0.3).values()]
    assert max(sizes) < 3 * min(sizes)


def test_the_split_depends_only_on_the_seed(file: Any) -> None:
    first, again, other = (client_rows(file, clients=4, skew=0.3, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_clients_are_expanded_and_written_to_the_file(file: Any) -> None:
    federation = parse(
        {
            "silos": {"en": {"train": file, "clients": 50}, "de": {"train": file, "clients": 20}},
            "participation": {"count": 7},
        }
    )
    assert len(federation.silos) == 70
    assert parse(__import__("yaml").safe_load(dump(federation))) == federation


def test_one_client_keeps_the_name_of_the_silo(file: Any) -> None:
    assert list(parse({"silos": {"en": {"train": file, "clients": 1}, "de": file}}).silos) == ["en", "de"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"clients": 0}, "at least 1"),
        ({"clients": "many"}, "at least 1"),
        ({"skew": 0.3}, "give 'clients: N'"),
        ({"clients": 3, "skew": -1.0}, "greater than 0"),
    ],
)
def test_invalid_settings_are_rejected(file: Any, settings: Any, sentence: Any) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse({"silos": {"en": {"train": file} | settings}})


# ── central baselines ─────────────────────────────────────────────────────────────────────────────────────────────


def test_dominant_trains_on_the_largest_language_and_tests_all(federation: Build, tmp_path: Path) -> None:
    settings = federation(task="classify", kind="dominant", tokenizer={"kind": "bytes"}, rounds=2)
    outcome = run(settings, tmp_path / "run", workers=0)
    assert set(outcome.metrics) == {"north", "south", "east"}
    cards = {
        "a": DataCard({"train": {"en": 5}}, 5),
        "b": DataCard({"train": {"de": 4}}, 4),
        "c": DataCard({"train": {"de": 3}}, 3),
    }
    assert dominant(cards) == "de"
    arranged = arrange(
        settings, {"north": DataCard({"train": {"north": 9}}, 9), "south": DataCard({"train": {"south": 1}}, 1)}
    )
    limits = {source.group(""): source.limit for source in arranged.silos["all"].sources}
    assert limits == {"north": None, "south": 0, "east": 0}


def test_central_training_uses_as_many_samples_as_the_active_silos(federation: Build) -> None:
    cards = {name: DataCard({"train": {name: 100}}, 100) for name in ("north", "south", "east")}
    whole = arrange(federation(kind="central"), cards).train.samples.floor
    part = arrange(federation(kind="central", participation={"count": 1}), cards).train.samples.floor
    assert part is not None
    assert part * 3 == whole
