"""Variants of attacks that nobody listed: requests, starts and settings that earlier checks did not look at.

Each test runs the code that enforces, in this process, and shows the attack and the refusal; where the defence is a
setting or a value, the attack is also shown to work without it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hansa.config.federation import Federation
from hansa.deploy.approval import NotApproved, approval_of
from hansa.deploy.start_check import verify_start
from hansa.models import build, tokenizer
from hansa.tasks.base import TASKS
from tests.conftest import Build
from tests.redteam.lying import save_start

# ── the start ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def as_bytes(federation: Build) -> Federation:
    return federation(sizes={"north": 120}, model="mini", tokenizer={"kind": "bytes"})


def start_with(settings: Federation, folder: Path, change: Callable[[Any], Any]) -> Path:
    """The start that follows from the settings and a tokenizer that the coordinator changed."""
    task, words = TASKS.build(settings.task), tokenizer.byte_tokenizer()
    change(words)
    model = build.initial(settings.model, task.auto, words, settings.data.max_length, (), settings.seed)
    save_start(model, words, folder)
    return folder


def probe_names(words: Any) -> None:
    """One token for each person that the coordinator looks for: its embedding moves if a text names the person."""
    words.add_tokens(["Jeanne Dupont", "Karl Meier"])


def letter_as_padding(words: Any) -> None:
    words.pad_token = "<0x65>"


@pytest.mark.parametrize("change", [probe_names, letter_as_padding])
def test_tokens_that_the_coordinator_added_to_look_for_names(
    as_bytes: Federation, tmp_path: Path, change: Callable[[Any], Any]
) -> None:
    honest = start_with(as_bytes, tmp_path / "honest", lambda words: None)
    assert "built again" in verify_start(honest, as_bytes, approval_of(as_bytes))
    crafted = start_with(as_bytes, tmp_path / "crafted", change)
    text = "Dr. Jeanne Dupont came"
    plain, probing = tokenizer.load(str(honest)), tokenizer.load(str(crafted))
    if change is probe_names:
        assert len(probing) == len(plain) + 2
        assert len(probing) - 2 in probing(text)["input_ids"], "the attack: one id says that the name occurs"
    with pytest.raises(NotApproved, match="tokenizer"):
        verify_start(crafted, as_bytes, approval_of(as_bytes))


def test_names_added_in_the_settings_of_the_tokenizer(as_bytes: Federation, tmp_path: Path) -> None:
    """``tokenizer_config.json`` adds tokens too, while ``tokenizer.json`` is the approved one."""
    start = start_with(as_bytes, tmp_path / "start", probe_names)
    plain = start_with(as_bytes, tmp_path / "plain", lambda words: None)
    file = start / "tokenizer.json"
    file.write_text((plain / "tokenizer.json").read_text())
    config = json.loads((start / "tokenizer_config.json").read_text())
    config["extra_special_tokens"] = ["Jeanne Dupont", "Karl Meier"]
    (start / "tokenizer_config.json").write_text(json.dumps(config))
    assert len(tokenizer.load(str(start))) == len(tokenizer.load(str(plain))) + 2, "the attack"
    with pytest.raises(NotApproved, match="tokenizer"):
        verify_start(start, as_bytes, approval_of(as_bytes))


def test_settings_of_the_model_that_were_left_out(as_bytes: Federation, tmp_path: Path) -> None:
    """A key that is missing has the default of transformers: here dropout of 0.1 instead of 0."""
    start = start_with(as_bytes, tmp_path / "start", lambda words: None)
    config = json.loads((start / "config.json").read_text())
    del config["attention_probs_dropout_prob"]
    (start / "config.json").write_text(json.dumps(config))
    with pytest.raises(NotApproved, match="attention_probs_dropout_prob"):
        verify_start(start, as_bytes, approval_of(as_bytes))
