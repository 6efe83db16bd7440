"""The process of a run at a silo that works on several runs at once."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.core.errors import DataError
from hansa.core.messages import CollectVocabulary, DescribeData, Failure, Request, Train, Update, VocabularyCounts
from hansa.core.tensors import Tensors
from hansa.deploy.network.blob_protocol import InvalidRequest
from hansa.deploy.run_process import ProcessEnded, ProcessService

COUNTER = [0]  # a plug-in may have such a global variable


class Counting:
    """Counts its answers in a global variable."""

    anchors = None

    def open_run(self, folder: Path, settings: bytes) -> Any:
        if settings == b"strange":
            raise InvalidRequest("it cannot be used", "for the silo alone")

        def answer(request: Request) -> Any:
            COUNTER[0] += 1
            match request:
                case DescribeData():
                    raise DataError("the notes are missing")
                case Train(model=model):
                    return Update(model, 1, 1, 1, 0.0, 0.0)
                case CollectVocabulary(min_count=0):
                    raise ValueError("a secret")
            return VocabularyCounts({settings.decode(): COUNTER[0], "process": os.getpid()})

        return answer

    def log_refusal(self, message: str, round: int, reason: str) -> None:
        raise AssertionError


@dataclass(frozen=True)
class CountingSetup:
    def service(self) -> Counting:
        return Counting()


def test_runs_in_processes_of_their_own(tmp_path: Path) -> None:
    """Messages pass unchanged, also large ones and errors; global variables are the run's own; a kill is survived."""
    warned: list[str] = []
    service = ProcessService(CountingSetup(), Counting(), warned.append)
    with pytest.raises(InvalidRequest, match="it cannot be used") as refused:
        service.open_run(tmp_path / "strange", b"strange")
    assert refused.value.detail == "for the silo alone"
    one, two = (service.open_run(tmp_path / name, name.encode()) for name in ("one", "two"))
    try:
        for number in (1, 2):
            for name, run in (("one", one), ("two", two)):
                found = run(CollectVocabulary(1))
                assert isinstance(found, VocabularyCounts)
                assert found.pieces[name] == number
        model = Tensors.of({"w": torch.arange(300_000.0), "nothing": torch.empty(0)})
        sent = one(Train(1, model))
        assert isinstance(sent, Update)
        assert torch.equal(sent.gradient["w"], model["w"])
        with pytest.raises(DataError, match="the notes are missing"):
            one(DescribeData())
        failed = one(CollectVocabulary(0))
        assert isinstance(failed, Failure)
        assert "secret" not in failed.reason
        assert len(warned) == 1
        assert "ValueError" in warned[0]
        os.kill(one._process.pid, signal.SIGKILL)
        with pytest.raises(ProcessEnded):
            one(CollectVocabulary(1))
        again = one(CollectVocabulary(1))
        assert isinstance(again, VocabularyCounts)
        assert again.pieces["one"] == 1, "it is a new process"
    finally:
        one.close()
        two.close()
