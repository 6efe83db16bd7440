"""Every command as a person types it, in a process of its own where exit codes matter."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer
from typer.testing import CliRunner

from hansa import federation_file
from hansa.cli import app
from tests.conftest import write_words

runner = CliRunner()


def call(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "hansa", *arguments], capture_output=True, text=True, timeout=120)


def ok(*arguments: str) -> str:
    result = runner.invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def file(federation, tmp_path) -> Path:
    path = tmp_path / "federation.yaml"
    path.write_text(federation_file.dump(federation()), encoding="utf-8")
    return path


def test_a_users_mistake_is_one_sentence_and_exit_code_2(file, tmp_path):
    result = call("run", str(file), "--set", "method=fedprocks", "--out", str(tmp_path / "run"))
    assert result.returncode == 2
    assert result.stderr.strip() == "error: method 'fedprocks' is not known; did you mean 'fedprox'?"
    assert not (tmp_path / "run").exists(), "nothing is written"


def test_a_broken_data_file_is_one_sentence_too(file, tmp_path):
    (tmp_path / "data" / "east.jsonl").write_text("nonsense\n" * 10)
    result = call("run", str(file), "--out", str(tmp_path / "run"), "--workers", "1")
    assert result.returncode == 2
    assert "10 of 10 lines cannot be used, first" in result.stderr
    assert "Traceback" not in result.stderr


def test_run_then_everything_one_does_with_a_run(file, tmp_path):
    out = str(tmp_path / "run")
    told = json.loads(ok("run", str(file), "--out", out, "--workers", "0", "--format", "json"))
    assert set(told["metrics"]) == {"north", "south", "east"}
    for part in (
        "federation.yaml",
        "ledger.sqlite",
        "metrics.jsonl",
        "model/config.json",
        "model/README.md",
        "report.html",
    ):
        assert (tmp_path / "run" / part).exists(), part
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert (
        model(**{k: v for k, v in tokenizer("fever", return_tensors="pt").items() if k != "token_type_ids"}).logits.ndim
        == 3
    )
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "| north |" in card
    assert "word pieces" in card

    extra = str(write_words(tmp_path / "extra.jsonl", ["fever", "cough"], 20))
    scored = json.loads(ok("evaluate", out, "--data", extra, "--format", "json"))
    assert scored["extra"]["perplexity"] > 1
    assert "extra" in ok("evaluate", out, "--data", extra, "--checkpoint", "3")
    filled = json.loads(ok("predict", out, "fever [MASK] chill", "--format", "json"))
    assert len(filled["predictions"][0]["answers"][0]["fillings"]) == 5
    assert "report.html" in ok("report", out)
    from hansa.errors import UserError

    for arguments, reason in [
        (["predict", out, "x", "--silo", "north"], "no personal models"),
        (["evaluate", out, "--data", extra, "--checkpoint", "77"], "no checkpoint of round 77"),
        (["evaluate", out, "--data", str(tmp_path / "none")], "does not exist"),
        (["report", str(tmp_path)], "not a run directory"),
    ]:
        with pytest.raises(UserError, match=reason):
            runner.invoke(app, arguments, catch_exceptions=False)


def test_check_previews_and_writes_nothing(file, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    told = json.loads(ok("check", str(file), "--format", "json"))
    assert [s["name"] for s in told["silos"]] == ["north", "south", "east"]
    assert told["traffic_per_round"] > 0
    text = ok("check", str(file), "--set", "train.samples={fraction: 1.0}")
    assert "warning: north is" in text
    assert "word pieces that a silo has seen at least 2 times" in " ".join(text.split())
    assert sorted(tmp_path.rglob("*")) == before


def test_compare_puts_methods_and_baselines_side_by_side(file, tmp_path):
    methods = "fedavg,fedprox,dga,median,fedadam,central,per-silo,base"
    told = json.loads(
        ok(
            "compare",
            str(file),
            "--methods",
            methods,
            "--out",
            str(tmp_path / "c"),
            "--workers",
            "0",
            "--format",
            "json",
        )
    )
    assert set(told["runs"]) == set(methods.split(","))
    page = (tmp_path / "c" / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in methods.split(","))
    per_silo = tmp_path / "c" / "per-silo"
    assert (per_silo / "silos" / "north" / "model" / "config.json").exists()
    assert "fillings" in ok("predict", str(per_silo), "fever [MASK]", "--silo", "north")


@pytest.mark.parametrize(("task", "headline"), [("classify", "accuracy"), ("causal-lm", "perplexity")])
def test_other_tasks_run_and_predict(federation, tmp_path, task, headline):
    path = tmp_path / "federation.yaml"
    path.write_text(federation_file.dump(federation(task=task)), encoding="utf-8")
    told = json.loads(ok("run", str(path), "--out", str(tmp_path / "r"), "--workers", "0", "--format", "json"))
    assert headline in told["metrics"]["north"]
    assert ok("predict", str(tmp_path / "r"), "fever cough")


@pytest.mark.parametrize("template", ["medical", "classify"])
def test_templates_are_ready_to_run(tmp_path, template, monkeypatch):
    from hansa import templates

    monkeypatch.setattr(templates, "SIZES", {"en": 40, "fr": 30, "he": 20})
    ok("new", template, str(tmp_path / "t"))
    path = str(tmp_path / "t" / "federation.yaml")
    assert "he" in ok("check", path)
    told = json.loads(
        ok("run", path, "--set", "rounds=1", "--out", str(tmp_path / "r"), "--workers", "0", "--format", "json")
    )
    assert told["metrics"]


def test_data_commands(tmp_path):
    ok("data", "generate", "--out", str(tmp_path / "notes"), "--languages", "fr,he", "--count", "5")
    assert len((tmp_path / "notes" / "he.jsonl").read_text(encoding="utf-8").splitlines()) == 5
    assert "Hebrew" in ok("data", "describe", str(tmp_path / "notes" / "he.jsonl"))


def test_help_names_every_command():
    text = ok("--help")
    for name in ("demo", "new", "check", "run", "compare", "evaluate", "predict", "report", "data"):
        assert name in text
