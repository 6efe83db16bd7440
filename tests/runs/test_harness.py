"""lm-evaluation-harness on local task files: the scores are those of the few-shot evaluation, which is an oracle."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hansa.cli.main import app
from hansa.core.errors import UserError
from hansa.runs.few_shot import FewShotTask, evaluate_few_shot
from hansa.runs.harness import evaluate_harness
from hansa.runs.inference import load
from hansa.runs.run import run
from tests.conftest import WORDS, Build
from tests.docs.blocks import ROOT, blocks

CAUSAL = "AutoModelForCausalLM"
PAGE = ROOT / "docs" / "instruct.md"


def tasks(folder: Path) -> Path:
    """The task file that the documentation shows, and questions for it."""
    folder.mkdir()
    [shown] = [block.text for block in blocks(PAGE) if block.text.startswith("task: next-word")]
    (folder / "next-word.yaml").write_text(shown, encoding="utf-8")
    words = WORDS["north"]
    rows = [
        {"prompt": " ".join(words[:i]) + " ", "choices": [words[(i + k) % 8] for k in (0, 3, 5)], "answer": 0}
        for i in range(1, 8)
    ]
    text = "".join(json.dumps(row | {"answer": n % 3}) + "\n" for n, row in enumerate(rows))
    (folder / "questions.jsonl").write_text(text, encoding="utf-8")
    return folder


def test_a_run_is_scored_on_local_tasks_as_our_own_evaluation_scores_it(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    settings = federation(task="causal-lm", model="mini", rounds=2, sizes={"north": 60}, data={"max_length": 64})
    run(settings, tmp_path / "run", workers=0)
    folder = tasks(tmp_path / "tasks")
    done = CliRunner().invoke(
        app, ["evaluate", str(tmp_path / "run"), "--harness", str(folder), "--format", "json"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout[done.stdout.index("{") :])["next-word"]
    runtime, model = load(tmp_path / "run")
    ours = FewShotTask(data=str(folder / "questions.jsonl"), prompt="{{ prompt }}", choices="choices", answer="answer")
    expected = evaluate_few_shot(model, CAUSAL, runtime.vocabulary, {"ours": ours}, 0)["ours"]
    assert found["acc"] == pytest.approx(expected["accuracy"])
    assert 0.0 <= found["acc_norm"] <= 1.0


@pytest.mark.parametrize(
    ("auto", "folder", "reason"),
    [
        ("AutoModelForMaskedLM", "tasks", "needs a model of the task causal-lm or instruct"),
        (CAUSAL, "nothing", "no folder with task files"),
        (CAUSAL, "tasks", r"pip install 'hansa\[harness\]'"),
    ],
)
def test_what_cannot_be_scored_is_one_sentence(
    auto: str, folder: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks(tmp_path / "tasks")
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    nothing: Any = None
    with pytest.raises(UserError, match=reason):
        evaluate_harness(nothing, auto, nothing, tmp_path / folder, 0)
