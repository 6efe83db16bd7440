"""Instruction tuning as a complete run: training, scores, chat, templates that become settings."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from typer.testing import CliRunner

import hansa
from hansa import templates
from hansa.cli.main import app
from hansa.config.file import dump, parse, read
from hansa.core.errors import ConfigError
from hansa.preview.preview import preview
from hansa.privacy.policy.disclosures import disclosures
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from hansa.tasks.chat import CHATML
from tests.tasks.test_instruct import decoder, said, words

# ── a complete run ────────────────────────────────────────────────────────────────────────────────────────────────


def small(folder: Path, **changes: Any) -> Path:
    """The federation of `hansa new instruct`, made small."""
    file = templates.new("instruct", folder)
    settings = read(file).model_dump(mode="json", exclude_defaults=True)
    settings |= {"model": "mini", "rounds": 1, "evaluate": {"every": 1, "share": 0.2}}
    settings["train"] |= {"max_batches": 2}
    settings["task"] |= {"answers": 2, "answer_length": 4}
    settings["silos"] = {name: node for name, node in settings["silos"].items() if name in ("es", "fr")}
    file.write_text(json.dumps(settings | changes), encoding="utf-8")
    return file


def test_a_run_learns_scores_and_chats(tmp_path: Path) -> None:
    federation = read(small(tmp_path / "new"))
    assert any("up to 2 answers that the model writes" in line for line in disclosures(federation))
    foreseen = [silo.problems for silo in preview(federation).silos]
    outcome = run(federation, tmp_path / "run", workers=0)
    ledger = Ledger(outcome.folder)
    cards = ledger.facts()["cards"]
    ledger.close()
    assert foreseen == [tuple(card["problems"]) for card in cards.values()], "check and run agree"
    assert {*outcome.metrics["fr"]} == {"perplexity", "accuracy", "loss", "rouge_l", "chrf"}
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert exported.chat_template == CHATML, "whoever loads the model has the template"
    cli = CliRunner()
    told = cli.invoke(app, ["predict", str(tmp_path / "run"), "--chat", "Fever?", "And cough?", "--format", "json"])
    assert told.exit_code == 0, told.output
    assert [m["role"] for m in json.loads(told.stdout)["messages"]] == ["user", "assistant"] * 2
    told = cli.invoke(app, ["predict", str(tmp_path / "run"), "--chat"], input="Fever?\n")
    assert told.exit_code == 0, told.output
    told = cli.invoke(app, ["predict", str(tmp_path / "run"), "Fever?", "--format", "json"])
    assert [*json.loads(told.stdout)["predictions"][0]["answers"][0]] == ["answer"]


def test_conversations_and_a_tokenizer_in_memory(tmp_path: Path) -> None:
    tokenizer = words()
    tokenizer.chat_template = CHATML
    rows = [{"messages": said("a?", "b")}] * 3
    fed = hansa.Federation(
        task="instruct",
        model=(decoder(len(tokenizer)), tokenizer),
        silos={"a": rows},
        data={"test": 0.0, "valid": 0.0, "max_length": 64},
    )
    settings = fed.placed(tmp_path)
    assert settings.task.settings["template"] == CHATML
    assert [silo.samples for silo in preview(settings).silos] == [3]


def test_the_template_of_the_tokenizer_becomes_a_setting(tmp_path: Path) -> None:
    tokenizer = words()
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(tmp_path / "own")
    words().save_pretrained(tmp_path / "none")
    task, silos = {"name": "instruct"}, {"a": {"train": "a.jsonl"}}
    file = tmp_path / "federation.yaml"
    file.write_text(json.dumps({"task": task, "tokenizer": {"path": "own"}, "model": "tiny", "silos": silos}))
    found = read(file)
    assert found.task.settings["template"] == CHATML
    assert parse(json.loads(json.dumps(found.model_dump(mode="json")))).task == found.task, "it travels with them"
    assert "template" in dump(found)
    for words_of, who in (({"path": "none"}, "the tokenizer of .*none"), ({"kind": "bytes"}, "a new tokenizer")):
        file.write_text(json.dumps({"task": task, "tokenizer": words_of, "model": "tiny", "silos": silos}))
        with pytest.raises(ConfigError, match=rf"needs a chat template, and {who} has none: set task\.template"):
            read(file)
