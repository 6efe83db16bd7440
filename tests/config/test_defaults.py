"""Defaults by kind of model and task."""

from typing import Any

import pytest
import yaml

from hansa.api.federation import Federation
from hansa.config.defaults import chosen_defaults
from hansa.config.file import dump, parse

SILOS = {"silos": {"lyon": "lyon.jsonl"}}


def test_baselines_of_a_pretrained_model_have_its_optimizer() -> None:
    """`baseline: {lr: …}` alone gave SGD, and a comparison with a rival that did not learn."""

    def of(**baseline: Any) -> tuple[str, float]:
        found = parse(SILOS | {"model": "models/bert", "baseline": baseline})
        assert parse(yaml.safe_load(dump(found))) == found
        return found.baseline.optimizer, found.baseline.lr

    assert of(lr=2e-4) == ("adamw", 2e-4)
    assert of(batch=4) == ("adamw", 5e-5)
    assert of(optimizer="sgd", lr=2e-4) == ("sgd", 2e-4)
    assert of(lr=0.1) == ("sgd", 0.1)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"model": "tiny"}, ("sgd", 0.1, 3e-5, 64)),
        ({"model": "models/bert"}, ("adamw", 5e-5, 5e-5, 128)),
        ({"model": "models/bert", "task": "ner"}, ("adamw", 5e-5, 5e-5, 128)),
        ({"model": "models/llama", "task": "causal-lm"}, ("adamw", 2e-5, 2e-5, 256)),
        ({"model": {"path": "models/bert", "adapt": "lora"}}, ("adamw", 2e-4, 2e-4, 128)),
        ({"model": {"path": "models/bert", "adapt": "frozen"}}, ("adamw", 1e-3, 1e-3, 128)),
        ({"model": {"path": "models/bert", "fresh": True}}, ("sgd", 0.1, 3e-5, 64)),
        ({"model": "models/bert", "train": {"lr": 0.2}}, ("sgd", 0.2, 5e-5, 128)),
        ({"model": "models/bert", "train": {"lr": 1e-4}}, ("adamw", 1e-4, 1e-4, 128)),
        ({"model": "models/bert", "train": {"lr": 1e-4}, "baseline": {"lr": 3e-5}}, ("adamw", 1e-4, 3e-5, 128)),
        ({"model": "models/bert", "train": {"optimizer": "sgd"}}, ("sgd", 0.1, 5e-5, 128)),
        ({"model": "models/bert", "train": {"optimizer": "adam", "batch": 4}}, ("adam", 5e-5, 5e-5, 128)),
        ({"model": "models/bert", "data": {"max_length": 64}}, ("adamw", 5e-5, 5e-5, 64)),
    ],
)
def test_what_a_file_leaves_open_follows_from_model_and_task(
    settings: dict[str, Any], expected: tuple[str, float, float, int]
) -> None:
    found = parse(SILOS | settings)
    assert (found.train.optimizer, found.train.lr, found.baseline.lr, found.data.max_length) == expected
    assert parse(yaml.safe_load(dump(found))) == found, "written down, it is the same federation"
    assert parse(found.model_dump(mode="json")) == found, "as it travels"


def test_check_states_the_defaults_and_not_what_the_file_says() -> None:
    stated = {one.setting: one.value for one in chosen_defaults(parse(SILOS | {"model": "models/bert"}))}
    assert stated["train.lr"] == 5e-5
    assert stated["data.max_length"] == 128
    given = parse(SILOS | {"model": "models/bert", "train": {"optimizer": "adamw", "lr": 1e-4}})
    assert "train.lr" not in {one.setting for one in chosen_defaults(given)}


def test_another_model_brings_its_own_defaults() -> None:
    fed = Federation(name="x", silos={"lyon": "lyon.jsonl"}, model="tiny")
    changed = fed.replace(model="models/bert")
    assert changed.settings.train.optimizer == "adamw"
    assert changed.replace(rounds=3).settings.train.lr == 5e-5
    assert changed.replace(model="tiny").settings.train.optimizer == "sgd"
    kept = fed.replace(train={"optimizer": "sgd", "lr": 0.5}).replace(model="models/bert")
    assert (kept.settings.train.optimizer, kept.settings.train.lr) == ("sgd", 0.5)
