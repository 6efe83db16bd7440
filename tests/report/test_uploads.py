"""Uploads for users: compared by name, drawn against bytes, described in words."""

import json
from pathlib import Path

import pytest

from hansa.core.errors import ConfigError
from hansa.privacy.policy.disclosures import disclosures
from hansa.report import html
from hansa.report.charts import histogram, scatter
from hansa.report.uploads import cost_table, saved_bytes
from hansa.runs.compare import compare, variant
from hansa.runs.inference import every_model, on_silos
from hansa.runs.results import RunResults
from hansa.runs.summary import Cost
from tests.conftest import Build


def test_uploads_are_variants_beside_methods(federation: Build) -> None:
    base = federation(upload=[{"name": "calm", "by": "parameters"}, "int8"])
    assert not variant(base, "whole").upload.steps
    assert variant(base, "fedprox").upload == base.upload
    calm = variant(base, "calm")
    assert [s.name for s in calm.upload.steps] == ["calm"]
    assert calm.upload.steps[0].settings == {"by": "parameters"}, "as the file says it"
    assert variant(base, "active").upload.steps[0].settings == {"by": "parameters"}, "and so does its rival"
    assert not variant(base, "top-k").upload.steps[0].settings
    both = variant(base, "fedprox+top-k+bf16")
    assert (both.method.name, [s.name for s in both.upload.steps]) == ("fedprox", ["top-k", "bf16"])
    with pytest.raises(ConfigError, match="'int9' is not known; did you mean 'int8'"):
        variant(base, "top-k+int9")


def test_a_comparison_draws_quality_against_bytes(federation: Build, tmp_path: Path) -> None:
    settings = federation(tokenizer={"kind": "bytes"}, rounds=2, sizes={"north": 40, "south": 40})
    names = ["whole", "int8", "calm", "central"]
    outcomes, _ = compare(settings, names, tmp_path / "out", 0, lambda name: ())
    folders = [(name, outcome.folder) for name, outcome in outcomes.items()]
    page = html.write(folders, tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Quality against bytes" in page
    assert "How far tensors moved" in page
    assert "times as much" in page
    seen = {name: RunResults.read(tmp_path / "out" / name, name) for name in names}
    up = {name: run.bytes_up for name, run in seen.items()}
    assert 3.5 < up["whole"] / up["int8"] < 4.1
    assert up["calm"] < up["whole"]
    assert set(seen["calm"].movement) == {"north", "south"}
    assert set(seen["calm"].movement["north"]) == {"model"}
    assert f"<td>{up['whole'] / 1e6:,.3f} MB</td>" in page, "the table has the measured bytes"
    models = every_model(tmp_path / "out" / "calm", on_silos)
    assert list(models) == ["shared", "north", "south"]
    assert models["shared"]["south"]["loss"] == pytest.approx(seen["calm"].final["south"]["loss"])
    assert models["north"]["south"] != models["south"]["south"], "every model on every silo's data"


def test_a_worse_metric_has_a_negative_sign() -> None:
    scores = {"perplexity": 100.0, "bleu": 10.0}
    worse = Cost("worse", 1_000_000, 1, {"perplexity": 110.0, "bleu": 9.0})
    costs = [Cost("whole", 8_000_000, 1, scores), worse, Cost("nothing", 0, 0, {})]
    found = cost_table(costs, {"perplexity": True, "bleu": False})
    assert [(r["name"], r["fewer"]) for r in found["rows"]] == [("whole", "1.0×"), ("worse", "8.0×")]
    assert [r["cells"] for r in found["rows"]] == [
        ["100", "10"],
        ["110 (-10.0% against whole)", "9 (-10.0% against whole)"],
    ]
    assert ["lower is better" in chart for chart in found["charts"]] == [True, False], "one for every metric"
    assert cost_table(costs[:1], {"bleu": False}) == {}
    assert saved_bytes(100, 50, 2).endswith("4.00 times as much.")
    assert saved_bytes(0, 50, 2) == ""


def test_charts_escape_names_and_accept_zeros() -> None:
    drawn = scatter("<b>", [("<i>", 1.0, 2.0), ("b", 1.0, 2.0)], "MB")
    assert "<b>" not in drawn
    assert "<i>" not in drawn
    assert drawn.count("<circle") == 2
    bars = histogram("x", [("a", [0.0, 0.1, 1.0, 10.0]), ("b", [1.0])])
    assert bars.count("<rect") == 4, "zero is counted with the smallest"
    assert histogram("x", [("a", [0.0])]) == ""


def test_the_disclosures_describe_the_upload(federation: Build) -> None:
    text = " ".join(disclosures(federation(upload="calm+int8")))
    assert "'calm+int8'" in text
    assert "how far each tensor moved" in text
    assert "upload" not in " ".join(disclosures(federation()))
    assert json.dumps(text)
