"""Lying silos: what they send, and that a mistake in naming them is found."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.core.errors import ConfigError
from hansa.core.messages import Train, Update
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.run import link_to
from hansa.runs.start import begin
from tests.conftest import Build


def update(settings: Any, folder: Any, name: str) -> torch.Tensor:
    directory = RunDirectory.create(settings, folder, False)
    ledger = Ledger(directory.path)
    with link_to(settings, directory.path, 0, RunEvents()) as link:
        begin(settings, directory, link, ledger, RunEvents())
    ledger.close()
    runtime = Runtime(settings, directory.path)
    reply = SiloHost(runtime).silo(name).answer(Train(1, runtime.start))
    assert isinstance(reply, Update)
    return reply.gradient.flat.clone()


@pytest.mark.parametrize(("kind", "factor", "times"), [("sign-flip", 1, -1), ("scale", 100, 100)])
def test_a_liar_sends_a_multiple_of_the_truth(
    federation: Build, tmp_path: Path, kind: Any, factor: Any, times: Any
) -> None:
    lying = federation(simulate={"poison": {"south": {"kind": kind, "factor": factor}}})
    told, truth = update(lying, tmp_path / "lie", "south"), update(federation(), tmp_path / "truth", "south")
    torch.testing.assert_close(told, times * truth)
    assert torch.equal(update(lying, tmp_path / "other", "north"), update(federation(), tmp_path / "t", "north"))


def test_a_stranger_cannot_lie(federation: Build) -> None:
    with pytest.raises(ConfigError, match=r"simulate.poison names 'sout'.*south"):
        federation(simulate={"poison": {"sout": {"kind": "scale"}}})
