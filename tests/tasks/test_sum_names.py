"""Tasks name the sums that they return before they see data, so that silos can add them up under masks."""

from pathlib import Path
from typing import Any

import pytest

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.core.messages import Evaluate, Scores
from hansa.runs.run import run
from hansa.tasks import bleu
from hansa.tasks.base import TASKS, NamedSums
from hansa.tasks.tag import count
from tests.conftest import Build


@pytest.mark.parametrize("task", ["mlm", "causal-lm", "classify"])
def test_a_task_returns_sums_that_it_named(federation: Build, tmp_path: Path, task: Any) -> None:
    settings = federation(rounds=0, task=task)
    runtime = Runtime(settings, run(settings, tmp_path / "r", workers=0).folder)
    reply = SiloHost(runtime).silo("north").answer(Evaluate(0, runtime.start))
    assert isinstance(reply, Scores)
    assert isinstance(runtime.task, NamedSums)
    names = runtime.task.sum_names(runtime.vocabulary.labels, False)
    assert len(set(names)) == len(names)
    for sums in reply.sums.values():
        assert {*sums} <= {*names}
        more = dict.fromkeys(names, 0.0) | sums
        assert runtime.task.metrics(more) == runtime.task.metrics(sums), "a sum that is zero changes nothing"


def test_entities_are_named_by_type() -> None:
    from hansa.core.settings import Named

    task: Any = TASKS.build(Named(name="ner"))
    names, sums = task.sum_names(("O", "B-X", "I-X", "B-Y", "I-Y"), False), dict[str, float]()
    count([(0, 1, "X"), (2, 4, "Y"), (5, 6, "X")], [(0, 1, "X"), (2, 3, "Y"), (7, 8, "Y")], sums)
    assert {"hit:X", "overlap:Y", "true:X", "guessed:Y"} <= {*sums} <= {*names}
    padded = {"nll": 1.0, "words": 8.0, **sums}
    assert task.metrics(dict.fromkeys(names, 0.0) | padded) == task.metrics(padded)


def test_translations_are_named_where_texts_are_generated() -> None:
    assert {*bleu.names()} == {*bleu.sums(["the cat sat", "on a mat"], ["a cat sat", "on the mat"])}
    assert set(bleu.metrics(dict.fromkeys(bleu.names(), 0.0)).values()) == {0.0}, "of nothing"
