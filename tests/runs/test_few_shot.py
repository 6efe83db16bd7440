"""Few-shot evaluation, on a model built by hand whose likelihoods are a table of pairs of tokens."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from typer.testing import CliRunner

from hansa.cli.main import app
from hansa.core.errors import HansaError, UserError
from hansa.models.tokenizer import byte_tokenizer
from hansa.runs.few_shot import Continuation, FewShotTask, evaluate_few_shot, log_likelihoods, questions, read_tasks
from hansa.runs.run import run
from hansa.tasks.base import Vocabulary
from tests.conftest import Build

CAUSAL = "AutoModelForCausalLM"


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(byte_tokenizer(), 64)


@pytest.fixture(scope="module")
def model(vocabulary: Vocabulary) -> Any:
    """No block, one-hot embeddings, no positions: a token depends on the last one alone. b follows a, y follows x."""
    size = vocabulary.size
    config = transformers.GPT2Config(
        vocab_size=size, n_embd=size, n_layer=0, n_head=1, n_positions=64, tie_word_embeddings=False, bos_token_id=2
    )
    torch.manual_seed(0)
    made = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        made.transformer.wte.weight.copy_(torch.eye(size))
        made.transformer.wpe.weight.zero_()
        made.lm_head.weight.normal_(std=0.01)
        for first, second in ("ab", "xy"):
            made.lm_head.weight[token(vocabulary, second), token(vocabulary, first)] = 1.0
    return made


def token(vocabulary: Vocabulary, text: str) -> int:
    [found] = vocabulary.tokenizer(text, add_special_tokens=False)["input_ids"]
    return int(found)


def by_hand(model: Any, vocabulary: Vocabulary, prompt: str, choice: str) -> float:
    """The sum of the table's entries over pairs of tokens."""
    ids = vocabulary.tokenizer(prompt + choice, add_special_tokens=False)["input_ids"]
    table = model(input_ids=torch.arange(vocabulary.size)[:, None]).logits[:, 0].log_softmax(dim=-1).detach()
    whole = [2, *ids]
    count = len(vocabulary.tokenizer(choice, add_special_tokens=False)["input_ids"])
    return float(sum(table[a, b] for a, b in list(pairwise(whole))[-count:]))


def test_scores_are_sums_of_log_likelihoods(model: Any, vocabulary: Vocabulary) -> None:
    pairs = [("qa", "b"), ("qa", "cé"), ("", "xy"), ("q" * 90 + "x", "y"), ("qx", "ab" * 8)]
    found = log_likelihoods(model, vocabulary, pairs)
    expected = [by_hand(model, vocabulary, *pair) for pair in pairs]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert found[0] > log_likelihoods(model, vocabulary, [("qx", "b")])[0], "the prompt counts"
    with pytest.raises(HansaError, match="a choice has 80 tokens, and the model reads 64"):
        log_likelihoods(model, vocabulary, [("a", "c" * 80)])


def test_accuracy_and_accuracy_per_byte(model: Any, vocabulary: Vocabulary, tmp_path: Path) -> None:
    rows = [
        {"start": "a", "options": ["b", "c"], "answer": 0},
        {"start": "x", "options": ["b", "y"], "answer": "y"},
        {"start": "x", "options": ["c", "yxyxyxy"], "answer": 1},  # the likelier per byte, and not in all
        {"start": "a", "options": ["y", "b"], "answer": 0},  # the model is wrong
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = FewShotTask(data=str(data), prompt="{{ start }}", choices="options")
    found = evaluate_few_shot(model, CAUSAL, vocabulary, {"mine": task}, 0)["mine"]
    assert found == {"accuracy": 0.5, "accuracy_normalised": 0.75, "chance": 0.5, "questions": 4.0}
    with pytest.raises(UserError, match="needs a model of the task causal-lm or instruct"):
        evaluate_few_shot(model, "AutoModelForMaskedLM", vocabulary, {"mine": task}, 0)


def test_templates_shots_and_conditions(tmp_path: Path) -> None:
    rows = [{"q": f"question {i}", "one": "yes", "two": "no", "label": i % 2, "lang": "fr"} for i in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"lang": "de"}]))
    (tmp_path / "tasks.yaml").write_text(
        json.dumps(
            {
                "asked": {
                    "data": "rows.jsonl", "where": {"lang": "fr"}, "prompt": "{{ q }}? ", "answer": "label",
                    "choices": ["{{ one }}", "{{ two }}"], "shots": 2, "separator": "\n", "limit": 5,
                }
            }
        )
    )  # fmt: skip
    [task] = read_tasks(tmp_path / "tasks.yaml").values()
    found = questions(task, "asked", 0)
    assert len(found) == 5
    for number, question in enumerate(found):
        *shots, last = question.prompt.split("\n")
        assert last == f"question {number}? "
        assert len(shots) == 2
        assert all(shot.endswith("yes" if int(shot[9]) % 2 == 0 else "no") for shot in shots), "solved"
        assert f"question {number}? y" not in question.prompt, "never the question itself"
    assert questions(task, "asked", 0) == found
    assert questions(task, "asked", 1) != found


def test_which_sentence_follows(tmp_path: Path) -> None:
    texts = [f"Number {i} begins here. It goes on. Number {i} ends." for i in range(8)]
    data = tmp_path / "held.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    task = FewShotTask(data=str(data), continuation=Continuation(choices=4))
    found = questions(task, "next", 0)
    assert len(found) == 8
    for number, question in enumerate(found):
        assert question.prompt == f"Number {number} begins here. It goes on. "
        assert question.choices[question.answer] == f"Number {number} ends."
        assert len({*question.choices}) == 4
    assert len({question.answer for question in found}) > 1, "at different places"


@pytest.mark.parametrize(
    ("row", "changes", "said"),
    [
        ({"a": "x", "answer": 5}, {}, "its answer '5' is none of its 2 choices"),
        ({"a": "x", "answer": "z"}, {}, "its answer 'z' is none of its 2 choices"),
        ({"a": "x"}, {}, "no field 'answer'"),
        ({"answer": 0}, {}, "its prompt or choices cannot be written"),
        ({"a": "x", "answer": 0}, {"choices": ["", "b"]}, "it needs two or more choices"),
        ({"a": "x", "answer": 0}, {"shots": 3}, "fewer rows than the 3 shots"),
        ({"a": "x", "answer": 0}, {"where": {"a": "y"}}, "no row of it is a question"),
    ],
)
def test_rows_that_cannot_be_asked_are_one_sentence(row: Any, changes: Any, said: str, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps(row) + "\n")
    task = FewShotTask(**{"data": str(data), "prompt": "{{ a }}", "choices": ["x", "y"]} | changes)
    with pytest.raises(HansaError, match=said):
        questions(task, "mine", 0)


def test_the_command(federation: Build, tmp_path: Path) -> None:
    run(federation(task="causal-lm", rounds=0, model="mini"), tmp_path / "run", workers=0)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"a": "fever", "answer": 0}) + "\n")
    file = tmp_path / "tasks.yaml"
    file.write_text('mine: {data: rows.jsonl, prompt: "{{ a }} ", choices: [cough, dolor]}\n')
    cli = CliRunner()
    told = cli.invoke(app, ["evaluate", str(tmp_path / "run"), "--few-shot", str(file), "--format", "json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["mine"]["questions"] == 1
    file.write_text("mine: {data: rows.jsonl}\n")
    told = cli.invoke(app, ["evaluate", str(tmp_path / "run"), "--few-shot", str(file)])
    assert isinstance(told.exception, HansaError)
    assert "either 'choices' (with 'prompt' and 'answer') or 'continuation'" in str(told.exception)
