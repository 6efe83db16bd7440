"""Bundles of initial models, honest and changed, for the attacks on what a silo unpacks."""

import json
from pathlib import Path
from typing import Any

import pytest

from hansa.deploy.bundle import unpack
from hansa.deploy.network.blob_protocol import InvalidRequest
from hansa.models import folder
from hansa.models.tokenizer import byte_tokenizer

LABELS = ("absent", "present")
MASKED, CAUSAL, TRANSLATE = "AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"


def write_model(place: Path, model: Any, tokenizer: Any = None) -> Path:
    """A folder as `hansa.runs.start` writes it."""
    place.mkdir(parents=True)
    (tokenizer or byte_tokenizer()).save_pretrained(place)
    model.save_pretrained(place)
    folder.tidy(place)
    (place / "labels.json").write_text(json.dumps(LABELS))
    return place


def bundle_of(start: Path) -> memoryview:
    """A bundle of all files of a folder, as a coordinator with code of its own packs it."""
    files = sorted(start.iterdir())
    listed = json.dumps([[file.name, file.stat().st_size] for file in files]).encode() + b"\n"
    return memoryview(listed + b"".join(file.read_bytes() for file in files))


def change(start: Path, name: str, **settings: Any) -> None:
    file = start / name
    given = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(given | settings))


def refused(start: Path, reason: str) -> None:
    """The silo refuses the folder in one sentence and writes nothing."""
    there = start.parent / "there"
    with pytest.raises(InvalidRequest, match=reason) as error:
        unpack(bundle_of(start), there)
    assert "\n" not in str(error.value)
    assert str(start.parent) not in str(error.value)
    assert not there.exists()
