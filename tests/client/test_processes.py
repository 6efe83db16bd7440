"""Several processes of a silo: the same model as one, also with clipping, micro-batches and packing; a lost process."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.client.host import SiloHost
from hansa.client.processes import ProcessLost, in_shares
from hansa.client.runtime import Runtime
from hansa.config.checks import check_settings
from hansa.config.sections import Training
from hansa.core.errors import ConfigError
from hansa.core.messages import Train, Update
from hansa.links.local import LocalLink
from hansa.runs.run import run
from tests.conftest import Build

SETTINGS: dict[str, Any] = {"task": "causal-lm", "rounds": 1, "model": "mini", "sizes": {"north": 60}}
STEPS = {"optimizer": "adamw", "lr": 1e-3, "batch": 8, "clip": 1.0, "samples": {"floor": 160}, "packing": True}


@pytest.fixture
def silo(federation: Build, tmp_path: Path) -> Any:
    """One silo of a run that has begun, and how to have it train."""
    settings = federation(**SETTINGS, train=STEPS)
    run(settings.model_copy(update={"rounds": 0}), tmp_path / "run", workers=0)

    def build(**changes: Any) -> Any:
        train = settings.train.model_copy(update=changes)
        return SiloHost(Runtime(settings.model_copy(update={"train": train}), tmp_path / "run")).silo("north")

    return build


def update(silo: Any) -> Update:
    reply = silo.answer(Train(1, silo.resident.runtime.start, 0))
    assert isinstance(reply, Update)
    return reply


@pytest.mark.slow_fault
def test_two_processes_give_the_model_of_one_and_survive_the_loss_of_one(silo: Any) -> None:
    one, two = silo(), silo(processes=2)
    alone, together = update(one), update(two)
    assert alone.steps == together.steps == 20
    assert alone.seen == together.seen
    assert float((alone.gradient.flat - together.gradient.flat).abs().max()) <= 1e-5
    assert not torch.equal(alone.gradient.flat, together.gradient.flat), "it was summed in another order"
    assert together.loss == pytest.approx(alone.loss, rel=1e-5)
    runtime = two.resident.runtime
    [member] = runtime.crew.members
    assert member.poll() is None, "it waits for the next round"
    batches, lost = two.resident.batches, list[str]()

    def killing(*asked: Any) -> Any:
        """The batches, with the other process killed before the third."""
        for step, batch in enumerate(batches(*asked)):
            if step == 2 and runtime.crew.members[0].pid == member.pid:
                os.kill(member.pid, signal.SIGKILL)
            yield batch

    def noting(request: Any) -> Any:
        try:
            return two.answer(request)
        except ProcessLost as error:
            lost.append(str(error))
            raise

    two.resident.batches = killing
    [answer] = LocalLink(lambda name: noting).ask({"north": Train(1, runtime.start, 0)}, None)
    assert lost == ["process 1 of 2 ended with code -9; all of them are started anew"]
    assert isinstance(answer.reply, Update), "the link asks once more"
    assert torch.equal(answer.reply.gradient.flat, together.gradient.flat)
    runtime.crew.stop()


def test_every_process_has_a_part_of_a_batch() -> None:
    assert in_shares(Training(batch=9), 2).micro_batch == 5
    assert in_shares(Training(batch=9, micro_batch=2), 2).micro_batch == 2


def test_objectives_that_look_at_more_than_the_loss_are_refused(federation: Build) -> None:
    with pytest.raises(ConfigError, match=r"train\.processes: the objective of method 'scaffold'"):
        check_settings(federation(method="scaffold", train={"processes": 2}))
