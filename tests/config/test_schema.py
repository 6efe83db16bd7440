"""The JSON Schema of federation files.

What is valid passes, what is misspelt does not, and every setting is described.
"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from hansa import templates
from hansa.config.file import _StrictLoader, parse
from hansa.config.reference import PLACES, REGISTRIES
from hansa.config.schema import federation_schema
from tests.cli.test_cli import ok

SILOS: dict[str, Any] = {"silos": {"fr": "fr.jsonl", "it": {"train": "it.jsonl", "language": "it"}}}
GOOD: list[dict[str, Any]] = [
    {"method": "fedprox"},
    {"method": {"name": "fedprox", "mu": 0.1}},
    {"model": "tiny", "aggregate": "krum", "upload": "top-k+int8"},
    {"aggregate": {"rule": "trimmed-mean", "trim": 0.1, "weights": "uniform"}},
    {"upload": [{"name": "top-k", "keep": 0.1}, "int8"], "secure_aggregation": True},
    {"server": {"schedule": "linear"}, "train": {"samples": {"floor": 5, "adapt": True}}},
    {"silos": {"west": {"silos": {"fr": "a"}, "rounds": 2}, "en": {"train": "b", "clients": 3, "skew": 0.3}}},
    {"task": {"name": "classify", "labels": ["a", "b"]}, "root": {"train": "x"}},
]
BAD: list[dict[str, Any]] = [
    {"rouds": 3},
    {"train": {"lrr": 1}},
    {"method": {"name": "fedprox", "nu": 1}},
    {"method": "fedprocks"},
    {"rounds": "many"},
    {"server": {"optimizer": "adamm"}},
    {"silos": {"fr": {"trian": "x"}}},
    {"aggregate": {"rule": "krum", "trim": 0.1}},
]


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    found = federation_schema()
    jsonschema.Draft202012Validator.check_schema(found)
    return found


@pytest.mark.parametrize("settings", GOOD)
def test_what_a_run_accepts_the_schema_accepts(schema: dict[str, Any], settings: dict[str, Any]) -> None:
    parse(SILOS | settings)
    jsonschema.validate(SILOS | settings, schema)


@pytest.mark.parametrize("settings", BAD)
def test_what_a_run_refuses_the_schema_refuses(schema: dict[str, Any], settings: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(SILOS | settings, schema)


@pytest.mark.parametrize("template", templates.templates())
def test_templates_fit_the_schema(schema: dict[str, Any], template: str, tmp_path: Path) -> None:
    templates.new(template, tmp_path / template)
    files = sorted((tmp_path / template).glob("*.yaml"))
    assert files
    for file in files:
        jsonschema.validate(yaml.load(file.read_text(encoding="utf-8"), Loader=_StrictLoader), schema)


def sections() -> list[type[BaseModel]]:
    return [*PLACES, *(entry for registry in REGISTRIES.values() for entry in registry.entries.values())]


@pytest.mark.parametrize("section", sections(), ids=lambda section: f"{section.__module__}.{section.__name__}")
def test_every_setting_has_a_description(section: type[BaseModel]) -> None:
    bare = [name for name, field in section.model_fields.items() if not field.description]
    assert not bare, f"settings without a description: {bare}"


def test_the_command_prints_it(schema: dict[str, Any]) -> None:
    assert json.loads(ok("schema")) == json.loads(json.dumps(schema))
