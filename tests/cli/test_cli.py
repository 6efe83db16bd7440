"""Every command as a person types it, in a process of its own where exit codes matter."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer
from typer.testing import CliRunner

from hansa.cli.main import app
from hansa.config import file as federation_file
from hansa.core.errors import UserError
from tests.conftest import Build, write_words
from tests.faults.processes import read_only

runner = CliRunner()


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hansa", *arguments], capture_output=True, text=True, timeout=120)


def ok(*arguments: str) -> str:
    result = runner.invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def file(federation: Build, tmp_path: Path) -> Path:
    path = tmp_path / "federation.yaml"
    path.write_text(federation_file.dump(federation()), encoding="utf-8")
    return path


def test_a_users_mistake_is_one_sentence_and_exit_code_2(file: Any, tmp_path: Path) -> None:
    result = call("run", str(file), "--set", "method=fedprocks", "--out", str(tmp_path / "run"))
    assert result.returncode == 2
    assert result.stderr.strip() == "error: method 'fedprocks' is not known; did you mean 'fedprox'?"
    assert not (tmp_path / "run").exists(), "nothing is written"


def test_a_broken_data_file_is_one_sentence_too(file: Any, tmp_path: Path) -> None:
    (tmp_path / "data" / "east.jsonl").write_text("nonsense\n" * 10)
    result = call("run", str(file), "--out", str(tmp_path / "run"), "--workers", "1")
    assert result.returncode == 2
    assert "10 of 10 lines cannot be used, first" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_disk_that_takes_nothing_is_one_sentence_too(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with read_only(disk):
        result = call("new", "medical", str(disk / "clinics"))
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {disk}")
    assert "make it usable, or give another place" in result.stderr
    assert "Traceback" not in result.stderr


def test_run_then_everything_one_does_with_a_run(file: Any, tmp_path: Path) -> None:
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
    assert "words with counts" in card

    extra = str(write_words(tmp_path / "extra.jsonl", ["fever", "cough"], 20))
    scored = json.loads(ok("evaluate", out, "--data", extra, "--format", "json"))
    assert scored["extra"]["perplexity"] > 1
    assert "extra" in ok("evaluate", out, "--data", extra, "--checkpoint", "3")
    everywhere = json.loads(ok("evaluate", out, "--silo", "all", "--format", "json"))
    assert everywhere["shared"].keys() == {"north", "south", "east"}
    assert everywhere["shared"]["north"]["loss"] == json.loads(ok("evaluate", out, "--format", "json"))["north"]["loss"]
    filled = json.loads(ok("predict", out, "fever [MASK] chill", "--format", "json"))
    assert len(filled["predictions"][0]["answers"][0]["fillings"]) == 5
    assert "report.html" in ok("report", out)
    assert told["silos"].keys() == {"north", "south", "east"}
    assert json.loads(ok("predict", out, "fever [MASK] chill", "--json")) == filled
    for kind in ("csv", "parquet"):
        shown = ok("results", out, f"--{kind}", str(tmp_path / kind))
        assert f"traffic.{kind}" in shown
        assert {file.stem for file in (tmp_path / kind).iterdir()} == {"scores", "data", "rounds", "traffic"}
    table = pandas.read_csv(tmp_path / "csv" / "scores.csv")
    assert table.equals(pandas.read_parquet(tmp_path / "parquet" / "scores.parquet")[table.columns])
    pushed = str(tmp_path / "pushed")
    assert pushed in " ".join(ok("push", out, pushed).split())
    other = ("evaluate", str(file), "--model", pushed, "--out", str(tmp_path / "other"), "--workers", "0")
    given = json.loads(ok(*other, "--format", "json"))
    assert given["metrics"] == told["metrics"], "the same model on the same test data"
    assert given["silos"] == told["silos"]
    from hansa.core.errors import UserError

    for arguments, reason in [
        (["predict", out, "x", "--silo", "north"], "no personal models"),
        (["evaluate", out, "--data", extra, "--checkpoint", "77"], "no checkpoint of round 77"),
        (["evaluate", out, "--silo", "all", "--checkpoint", "3"], "leave one of them out"),
        (["evaluate", out, "--data", str(tmp_path / "none")], "does not exist"),
        (["report", str(tmp_path)], "not a run directory"),
        (["evaluate", str(file)], "add --model"),
        (["results", out, "--csv", str(file)], "is a file"),
    ]:
        with pytest.raises(UserError, match=reason):
            runner.invoke(app, arguments, catch_exceptions=False)


def test_check_previews_and_writes_nothing(file: Any, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    told = json.loads(ok("check", str(file), "--format", "json"))
    assert [s["name"] for s in told["silos"]] == ["north", "south", "east"]
    assert told["traffic_per_round"] > 0
    text = ok("check", str(file), "--set", "train.samples={fraction: 1.0}")
    assert "warning: north is" not in text, "57% of a round is no reason to warn"
    assert "punctuation marks that at least 2 rows of a silo have" in " ".join(text.split())
    assert sorted(tmp_path.rglob("*")) == before


def test_check_says_how_far_claims_count(file: Any) -> None:
    assert "without a bound; between organisations a silo that claims more than 99%" in ok("check", str(file))
    told = json.loads(ok("check", str(file), "--set", "participation.max_share=0.4", "--format", "json"))
    assert "no silo counts more than 40%" in told["claims"]
    assert max(silo["weight"] for silo in told["silos"]) == pytest.approx(0.4, abs=0.01)
    free = json.loads(ok("check", str(file), "--format", "json"))
    assert max(silo["weight"] for silo in free["silos"]) > 0.43, "by windows, as the run weighs them"
    for settings, wrong in {
        "participation.max_share=0.2": "do not add up",
        "participation.max_share=2": "max_share",
    }.items():
        with pytest.raises(UserError, match=wrong):
            ok("check", str(file), "--set", settings)
    with pytest.raises(UserError, match="each silo weighs its own update"):
        ok("check", str(file), "--set", "participation.max_share=0.5", "--set", "secure_aggregation=true")


def test_retrain_repeats_a_run_without_a_silo(file: Any, tmp_path: Path) -> None:
    ok("run", str(file), "--out", str(tmp_path / "r"), "--workers", "0")
    told = json.loads(ok("retrain", str(tmp_path / "r"), "--without", "south", "--workers", "0", "--format", "json"))
    assert told["begin"] == 0
    assert told["remained"].startswith("it took part in 3 rounds between 1 and 3")
    assert set(told["metrics"]) == {"north", "east"}
    assert told["run"] == str(tmp_path / "r-without-south")
    with pytest.raises(UserError, match="did you mean 'south'"):
        ok("retrain", str(tmp_path / "r"), "--without", "sout")


def test_compare_puts_methods_and_baselines_side_by_side(file: Any, tmp_path: Path) -> None:
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
    assert "%" in ok("predict", str(per_silo), "fever [MASK]", "--silo", "north")


@pytest.mark.parametrize(("task", "headline"), [("classify", "accuracy"), ("causal-lm", "perplexity")])
def test_other_tasks_run_and_predict(federation: Build, tmp_path: Path, task: Any, headline: Any) -> None:
    path = tmp_path / "federation.yaml"
    path.write_text(federation_file.dump(federation(task=task)), encoding="utf-8")
    told = json.loads(ok("run", str(path), "--out", str(tmp_path / "r"), "--workers", "0", "--format", "json"))
    assert headline in told["metrics"]["north"]
    assert ok("predict", str(tmp_path / "r"), "fever cough")


def test_a_file_is_scored_by_the_columns_of_the_run(tmp_path: Path) -> None:
    rows = [{"words": ["take", name], "iob": ["O", "B-Drug"]} for name in ("aspirin", "heparin", "insulin") * 20]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    raw = {
        "task": "ner",
        "model": "mini",
        "tokenizer": {"kind": "bytes"},
        "data": {"max_length": 40, "valid": 0.0, "test": 0.3},
        "silos": {"a": {"train": str(tmp_path / "a.jsonl"), "tokens": "words", "tags": "iob"}},
        "rounds": 1,
    }
    (tmp_path / "fed.yaml").write_text(json.dumps(raw))
    out = str(tmp_path / "run")
    ok("run", str(tmp_path / "fed.yaml"), "--out", out, "--workers", "0")
    data = ("evaluate", out, "--data", str(tmp_path / "a.jsonl"), "--format", "json")
    assert "strict_f1" in json.loads(ok(*data))["a"]
    other = runner.invoke(app, [*data, "--tokens", "other"])
    assert isinstance(other.exception, UserError)
    assert "no 'other' with a list of words (fields: words, iob)" in other.stderr
    weights = Path(out) / "model" / "model.safetensors"
    assert weights.stat().st_mode == (weights.parent / "config.json").stat().st_mode


def test_check_warns_where_one_language_dominates(file: Any, tmp_path: Path) -> None:
    """The rule that the Medical paper's first version gave up, max(100, 1e-4·N), and the one it kept, in proportion."""
    sizes = {"en": 10_000, "fr": 36, "he": 3}  # as in Table 1
    raw: dict[str, Any] = {"silos": {}, "train": {"samples": {"floor": 1, "fraction": 0.01}}}
    for name, count in sizes.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": f"{name} {i}"}) + "\n" for i in range(count)))
        raw["silos"][name] = str(path)
    federation = tmp_path / "skewed.yaml"
    federation.write_text(json.dumps(raw))
    found = ok("check", str(federation), "--set", "data={valid: 0, test: 0}")
    assert "warning: en has 98% of the training samples of a round" in found
    assert "warning: en has 100% of the aggregate weight" in found
    gentle = ok(
        "check", str(federation), "--set", "data={valid: 0, test: 0}", "--set", "train.samples.floor=100",
        "--set", "aggregate.weights=uniform",
    )  # fmt: skip
    assert "warning" not in gentle
    assert "33.3%" in gentle


@pytest.mark.parametrize("template", ["medical", "ner", "classify", "lora"])
def test_templates_are_ready_to_run(tmp_path: Path, template: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hansa import templates

    monkeypatch.setattr(templates, "SIZES", {"en": 40, "fr": 30, "he": 40})
    ok("new", template, str(tmp_path / "t"))
    path = str(tmp_path / "t" / "federation.yaml")
    assert "he" in ok("check", path)
    ready = str(tmp_path / "t" / "small.yaml") if template == "medical" else path
    told = json.loads(
        ok("run", ready, "--set", "rounds=1", "--out", str(tmp_path / "r"), "--workers", "0", "--format", "json")
    )
    assert told["metrics"]


def test_data_commands(tmp_path: Path) -> None:
    ok("data", "generate", "--out", str(tmp_path / "notes"), "--languages", "fr,he", "--count", "5")
    assert len((tmp_path / "notes" / "he.jsonl").read_text(encoding="utf-8").splitlines()) == 5
    assert "Hebrew" in ok("data", "describe", str(tmp_path / "notes" / "he.jsonl"))


def test_help_names_every_command() -> None:
    text = ok("--help")
    for name in ("demo", "new", "check", "run", "compare", "evaluate", "predict", "report", "data"):
        assert name in text


def test_check_reads_annotation_as_a_run_would(tmp_path: Path) -> None:
    from hansa.core.errors import UserError

    good = {"text": "no fever today", "entities": [{"span": [3, 8], "type": "Sign"}]}
    torn = {"text": "no fever", "entities": [{"span": [3, 99], "type": "Sign"}]}
    strange = {"text": "no cough", "entities": [{"span": [3, 8], "type": "Planet"}]}
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (good, good, torn)))
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (good, strange)))
    silo = {"train": str(tmp_path / "train.jsonl"), "test": str(tmp_path / "test.jsonl")}
    file = tmp_path / "federation.yaml"
    file.write_text(json.dumps({"task": "ner", "silos": {"a": silo}, "data": {"valid": 0, "max_bad_rows": 0.6}}))
    [seen] = json.loads(ok("check", str(file), "--format", "json"))["silos"]
    train, test = seen["problems"]
    assert f"train: 1 of 3 lines left out, first {tmp_path}/train.jsonl:3: span [3, 99] does not lie in" in train
    assert "test: 1 of 2 lines left out" in test
    assert "it has an entity type that is not one of Sign" in test, "labels that training data do not have"
    with pytest.raises(UserError, match="1 of 3 lines cannot be used"):
        runner.invoke(app, ["check", str(file), "--set", "data.max_bad_rows=0.01"], catch_exceptions=False)


def test_check_warns_of_texts_in_another_language(tmp_path: Path) -> None:
    texts = {
        "de": "Der Patient klagt seit gestern über starke Schmerzen in der Brust und über Atemnot.",
        "es": "El paciente refiere desde ayer un fuerte dolor en el pecho y dificultad para respirar.",
    }
    raw: dict[str, Any] = {"silos": {}, "data": {"valid": 0, "test": 0}}
    for name, text in texts.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": text}) + "\n" + json.dumps({"text": text}))
        raw["silos"][name] = {"train": str(tmp_path / f"{name}.jsonl"), "language": "de"}
    file = tmp_path / "federation.yaml"
    file.write_text(json.dumps(raw))
    warnings = json.loads(ok("check", str(file), "--format", "json"))["warnings"]
    [warning] = [w for w in warnings if "language" in w]
    assert (
        "silo es declares the language de, but 2 of 2 checked texts are in another language, most of them in es, "
        "the first at " in warning
    )
