"""A model in parts: two processes give the model of one, each holds a part, and the loss of one is survived."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.client.host import SiloHost
from hansa.client.processes import ProcessLost
from hansa.client.runtime import Runtime
from hansa.client.sharding import held_bytes
from hansa.config.checks import check_settings
from hansa.core.errors import ConfigError
from hansa.core.messages import Evaluate, Scores, Train, Update
from hansa.links.local import LocalLink
from hansa.runs.run import run
from tests.conftest import Build
from tests.models.test_base import adapted, decoder

STEPS = {"optimizer": "adamw", "lr": 1e-3, "batch": 9, "clip": 1.0, "samples": {"floor": 180}, "keep_optimizer": True}


def silos(settings: Any, folder: Path, **changes: Any) -> tuple[Any, Any]:
    """One silo of a run that has begun: alone, and with two processes that hold the model in parts."""
    run(settings.model_copy(update={"rounds": 0}), folder, workers=0)

    def build(**train: Any) -> Any:
        changed = settings.model_copy(update={"train": settings.train.model_copy(update=train)})
        return SiloHost(Runtime(changed, folder)).silo("north")

    return build(), build(processes=2, shard=True, **changes)


def updates(silo: Any, start: Any) -> list[Update]:
    """The updates of two rounds, the second from where the first ended, with the optimizer's state of the first."""
    first = silo.answer(Train(1, start, 0))
    assert isinstance(first, Update), first
    moved = start.copy()
    moved.flat.sub_(first.gradient.flat)
    first = Update(first.gradient.copy(), *(getattr(first, n) for n in ("samples", "seen", "steps", "loss", "seconds")))
    second = silo.answer(Train(2, moved, 0))
    assert isinstance(second, Update), second
    return [first, second]


def far(one: Update, other: Update) -> float:
    return float((one.gradient.flat - other.gradient.flat).abs().max())


@pytest.mark.slow_fault
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_two_processes_with_a_part_each_give_the_model_of_one(
    kind: str, federation: Build, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    base = decoder(tmp_path / "base", hidden_size=64)
    model = adapted(base) if kind == "lora" else {"path": str(base)}
    steps = STEPS | ({"micro_batch": 4} if kind == "full" else {"gradient_checkpointing": True})
    settings = federation(task="causal-lm", rounds=3, model=model, tokenizer={}, sizes={"north": 60}, train=steps)
    alone, parted = silos(settings, tmp_path / "run")
    request.addfinalizer(lambda: parted.resident.runtime.crew and parted.resident.runtime.crew.stop())
    start = alone.resident.runtime.start.copy()
    whole = held_bytes(alone.resident.runtime.learner.model)
    one = updates(alone, start)
    store = alone.resident.store.folder
    for file in store.iterdir():  # the other silo begins without its state
        file.unlink()
    two = updates(parted, start)
    runtime = parted.resident.runtime
    assert one[0].steps == two[0].steps == 20
    assert [u.seen for u in one] == [u.seen for u in two]
    for a, b in zip(one, two, strict=True):
        assert far(a, b) <= 1e-5
        assert b.loss == pytest.approx(a.loss, rel=1e-4)
    assert float(two[1].gradient.flat.abs().max()) > 1e-3
    assert held_bytes(runtime.learner.model) <= 0.62 * whole, "adapters are whole, and tensors of odd size are uneven"
    asked = Evaluate(2, start, "train")
    here, there = alone.answer(asked), parted.answer(asked)
    assert isinstance(here, Scores)
    assert isinstance(there, Scores)
    assert [*there.sums] == [*here.sums] != []
    for group, sums in here.sums.items():
        assert there.sums[group] == pytest.approx(sums, rel=1e-4)
    _lose_one(parted, start, two[0])


def _lose_one(silo: Any, start: Any, expected: Update) -> None:
    """Kill the other process in the third step: one sentence, a new start, the same result."""
    runtime, batches, lost = silo.resident.runtime, silo.resident.batches, list[str]()
    [member] = runtime.crew.members
    for file in silo.resident.store.folder.iterdir():
        file.unlink()

    def killing(*asked: Any) -> Any:
        for step, batch in enumerate(batches(*asked)):
            if step == 2 and not lost:
                os.kill(member.pid, signal.SIGKILL)
                member.wait()
            yield batch

    def noting(request: Any) -> Any:
        try:
            return silo.answer(request)
        except ProcessLost as error:
            lost.append(str(error))
            raise

    silo.resident.batches = killing
    [answer] = LocalLink(lambda name: noting).ask({"north": Train(1, start, 0)}, None)
    assert lost == ["process 1 of 2 ended with code -9; all of them are started anew"]
    assert isinstance(answer.reply, Update), "the link asks once more"
    assert torch.equal(answer.reply.gradient.flat, expected.gradient.flat)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": "fedprox"}, "needs the whole gradient of a full model"),
        ({"personal": {}}, "'personal' trains models of the silos' own"),
        ({"train": {"compile": True}}, "train.compile compiles whole blocks"),
    ],
)
def test_what_needs_the_whole_model_is_refused(settings: dict[str, Any], reason: str, federation: Build) -> None:
    train = {"processes": 2, "shard": True} | settings.pop("train", {})
    with pytest.raises(ConfigError, match=f"train.shard.*{reason}"):
        check_settings(federation(**{"task": "causal-lm"} | settings, train=train))
