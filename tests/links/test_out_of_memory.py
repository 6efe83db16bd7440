"""A silo that runs out of memory: one sentence, and the others go on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.client.processes import _check_devices
from hansa.client.resident import ResidentSilo
from hansa.core.errors import ConfigError, RunFailed
from hansa.links.local import OUT_OF_MEMORY, attempt, out_of_memory
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build


def too_much(*_: Any) -> Iterator[Any]:
    """What torch raises when there is no memory for a batch."""
    yield torch.empty(1 << 50)


def test_the_others_go_on(federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = ResidentSilo.batches

    def batches(self: ResidentSilo, *asked: Any) -> Any:
        return too_much() if self.name == "south" else ordinary(self, *asked)

    monkeypatch.setattr(ResidentSilo, "batches", batches)
    settings = federation(task="classify", model="mini", rounds=1, participation={"quorum": 0.5})
    run(settings, tmp_path / "run", workers=0)
    ledger = Ledger(tmp_path / "run")
    [[updated]] = ledger.select("select cohort - lost from rounds")
    told = [text for (text,) in ledger.select("select text from events where node = 'south'")]
    ledger.close()
    assert updated == 2
    assert any(OUT_OF_MEMORY in text for text in told)


def test_it_is_recognised_behind_a_policy_and_is_not_tried_again() -> None:
    tries = []

    def answer(_: Any) -> Any:
        tries.append(1)
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB of text")
        except RuntimeError:
            raise RunFailed("OutOfMemoryError (its message stays at the silo)") from None

    reply: Any = attempt(answer, None)  # type: ignore[arg-type]
    assert reply.reason == OUT_OF_MEMORY
    assert len(tries) == 1
    assert not out_of_memory(RuntimeError("shapes do not match"))


def test_more_processes_than_devices_are_refused() -> None:
    count = torch.accelerator.device_count()
    with pytest.raises(ConfigError, match=f"train.processes is 99, and this machine has {count} devices of type cuda"):
        _check_devices(torch.device("cuda"), 99)
