"""Crafted models: they read what a silo trained on, and each defence shows what it is worth."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from hansa.attacks import crafted_attack
from hansa.attacks.crafted import Craft, craft, distances, first_block, within
from hansa.attacks.crafted_attack import Bench, Setting
from hansa.cli.main import app
from hansa.client.runtime import Runtime
from hansa.core.errors import UserError
from hansa.runs.inference import open_run
from hansa.runs.run import run
from tests.attacks.silos import federation, unrelated, words, write


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three silos, with a classifier of width 64."""
    folder, vocabulary = tmp_path_factory.mktemp("crafted"), words(60)
    silos = {n: {"train": write(folder / f"{n}.jsonl", unrelated(n, 40, vocabulary))} for n in ("a", "b", "c")}
    train = {"lr": 0.1, "batch": 8, "max_batches": 1}
    settings = federation(silos, train=train, rounds=1, tokenizer={"size": 400, "min_count": 2})
    return run(settings, folder / "run", workers=0).folder


def row(attacked: Path, tmp_path: Path, setting: Setting) -> dict[str, Any]:
    runtime = open_run(attacked)
    bench = Bench(
        crafted_attack._variant(runtime, setting), tmp_path / setting.name.replace(" ", "-"), "a", ["a", "b", "c"]
    )
    return bench.row(setting)


def test_without_a_defence_most_tokens_are_read_with_their_positions(attacked: Path, tmp_path: Path) -> None:
    found = row(attacked, tmp_path, Setting("none"))
    assert found["texts"] == 8
    assert found["recovered"] > 0.6
    assert found["placed"] > 0.5
    assert found["right"] > 0.95
    honest = row(attacked, tmp_path, Setting("honest", honest=True))
    assert honest["recovered"] < 0.05, "negative control: the reading finds nothing in an honest update"


def test_frozen_embeddings_and_clipping_do_not_help(attacked: Path, tmp_path: Path) -> None:
    bare = row(attacked, tmp_path, Setting("none"))["recovered"]
    assert row(attacked, tmp_path, Setting("frozen", adapt="frozen-embeddings"))["recovered"] == bare
    assert row(attacked, tmp_path, Setting("clip", clip=1.0))["recovered"] > bare - 0.1


def test_noise_adapters_and_distance_do(attacked: Path, tmp_path: Path) -> None:
    bare = row(attacked, tmp_path, Setting("none"))["recovered"]
    assert row(attacked, tmp_path, Setting("noise", clip=1.0, noise=0.01))["recovered"] < 0.05
    near = row(attacked, tmp_path, Setting("near", limit=0.1))
    assert near["recovered"] < 0.05
    assert near["distance"] <= 0.1001
    lora = row(attacked, tmp_path, Setting("lora", adapt="lora"))
    assert lora["placed"] is None
    assert lora["recovered"] < bare


def test_in_the_sum_of_all_silos_the_guesses_no_longer_name_one_silo(attacked: Path, tmp_path: Path) -> None:
    alone, summed = row(attacked, tmp_path, Setting("none")), row(attacked, tmp_path, Setting("sum", silos=3))
    assert summed["placed"] < alone["placed"]
    assert summed["right"] < 0.6


def test_crafting_changes_only_what_it_says_and_within_keeps_the_limit(attacked: Path) -> None:
    runtime = open_run(attacked)
    honest, special = runtime.start.copy(), runtime.vocabulary.special
    crafted = craft(runtime.learner.model, honest, Craft(), 10, len(special))
    far = distances(crafted, honest, runtime.parts)
    assert far["embeddings"] == 0.0
    assert far["block.0"] > 1.0
    near = within(crafted, honest, runtime.parts, 0.2)
    assert max(distances(near, honest, runtime.parts).values()) == pytest.approx(0.2, rel=1e-3)
    assert torch.equal(within(crafted, honest, runtime.parts, 1e9).flat, crafted.flat)
    assert torch.equal(within(crafted, honest, runtime.parts, 0.0).flat, honest.flat)
    assert runtime.learner.state.same_bits(honest), "the model holds the honest values again"


def test_the_whole_table_and_its_reading(attacked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crafted_attack, "LIMITS", (0.1,))
    monkeypatch.setattr(crafted_attack, "NEAR", (Craft(bins=4, sharpness=10.0, stretch=1.0, amplify=1.0, mix=False),))
    monkeypatch.setattr(crafted_attack, "NOISES", (1.0,))
    arguments = ["audit", "attack", "--kind", "crafted-model", "--silo", "a", "--format", "json", str(attacked)]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert "Audit: Crafted model" in (attacked / "report.html").read_text(encoding="utf-8")
    names = [one["defence"] for one in found["rows"]]
    assert names[0] == "none"
    assert "secure aggregation of 3 silos" in names
    assert found["honest"] > 0
    assert any("Tokens still get through with" in line for line in found["reading"])
    assert any("distance at most 0.1" in line for line in found["reading"])


def test_a_decoder_cannot_be_crafted_this_way(attacked: Path, tmp_path: Path) -> None:
    vocabulary = words(30)
    silos = {"a": {"train": write(tmp_path / "a.jsonl", unrelated("a", 30, vocabulary))}}
    done = run(federation(silos, task="causal-lm", rounds=0), tmp_path / "run", workers=0)
    runtime: Runtime = open_run(done.folder)
    with pytest.raises(UserError, match="a crafted model needs an encoder of at least two blocks"):
        first_block(runtime.learner.model)
