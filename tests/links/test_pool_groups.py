"""Brief jobs travel to a worker in groups; nothing that a run shows may depend on it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.core import wire
from hansa.core.link import Link
from hansa.core.messages import Failure, Train, Update
from hansa.links import pool
from hansa.links.local import LocalLink
from hansa.links.pool import Job, PoolLink, Worker
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.start import begin
from tests.conftest import Build

COUNT = 12

# A task that kills its process as often as there are marks left, while it makes a batch of silo north-7.
PLUGIN = """
import os, signal
from dataclasses import dataclass
from pathlib import Path
from hansa.core.settings import Section
from hansa.tasks.base import TASKS
from hansa.tasks.mlm import MaskedLM

@dataclass(frozen=True)
class DeadlyTask(MaskedLM):
    marks: str = ""

    def batch(self, examples, indices, rng, vocabulary):
        marks = sorted(Path(self.marks).glob("mark-*"))
        if marks and examples.groups == ("north-7",):
            marks[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().batch(examples, indices, rng, vocabulary)

@TASKS.register("deadly")
class Settings(Section):
    marks: str
    def build(self):
        return DeadlyTask(marks=self.marks)
"""


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the groups that are sent; every job counts as brief, however busy the machine is."""
    found, send = list[int](), PoolLink._send

    def noted(link: PoolLink, worker: Worker, group: list[Job]) -> None:
        found.append(len(group))
        send(link, worker, group)

    monkeypatch.setattr(PoolLink, "_send", noted)
    monkeypatch.setattr(pool, "BRIEF", 1e6)
    monkeypatch.setattr(pool, "GROUP_SECONDS", 1e6)
    return found


@pytest.fixture
def started(federation: Build, tmp_path: Path) -> Callable[..., tuple[Federation, Path]]:
    def start(**settings: Any) -> tuple[Federation, Path]:
        names = {f"north-{number}": 20 for number in range(COUNT)}
        small = federation(sizes=names, **settings)
        directory = RunDirectory.create(small, tmp_path / "run", False)
        ledger = Ledger(directory.path)
        begin(small, directory, LocalLink(SiloHost(Runtime(small, directory.path)).answer), ledger, RunEvents())
        ledger.close()
        return small, directory.path

    return start


def replies(link: Link, request: Train, names: list[str], until: float | None = None) -> dict[str, bytes | Failure]:
    """Every reply, in bytes but for the time that it took."""
    found: dict[str, bytes | Failure] = {}
    for answer in link.ask(dict.fromkeys(names, request), until):
        reply = answer.reply
        assert isinstance(reply, Update | Failure)
        found[answer.node] = reply if isinstance(reply, Failure) else wire.encode(replace(reply, seconds=0.0))
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"train": {"lr": 0.01, "batch": 8, "samples": {"floor": 16}, "optimizer": "adamw", "keep_optimizer": True}},
        {"upload": ["top-k"]},
        {"method": "scaffold"},
    ],
    ids=["plain", "optimizer state", "compressed", "shared state"],
)
def test_groups_give_the_bits_of_silos_asked_one_after_another(
    started: Any, sizes: list[int], settings: dict[str, Any]
) -> None:
    federation, folder = started(**settings)
    names, alone = list(federation.silos), LocalLink(SiloHost(Runtime(federation, folder)).answer)
    model = Runtime(federation, folder).start
    with PoolLink(federation, folder, 1) as link:
        for number in (1, 2):
            request = Train(number, model, shared_state=model if settings.get("method") == "scaffold" else None)
            assert replies(link, request, names) == replies(alone, request, names)
    assert max(sizes) > 2, "the test is about groups"


@pytest.mark.parametrize(("deaths", "lost"), [(1, False), (2, True)])
def test_a_silo_that_kills_its_worker_in_a_group_is_tried_once_more_and_alone(
    started: Any, sizes: list[int], tmp_path: Path, deaths: int, lost: bool
) -> None:
    (tmp_path / "deadly.py").write_text(PLUGIN)
    marks = tmp_path / "marks"
    marks.mkdir()
    task = {"name": "deadly", "marks": str(marks)}
    federation, folder = started(task=task, plugins=[str(tmp_path / "deadly.py")])
    for number in range(deaths):
        (marks / f"mark-{number}").touch()
    with PoolLink(federation, folder, 1) as link:
        found = replies(link, Train(1, Runtime(federation, folder).start), list(federation.silos))
    failed = {name: reply.reason for name, reply in found.items() if isinstance(reply, Failure)}
    assert failed == ({"north-7": "its worker died (exit code -9), twice"} if lost else {})
    assert list(marks.iterdir()) == []
    assert max(sizes) > 1


def test_with_a_deadline_there_are_no_groups(started: Any, sizes: list[int]) -> None:
    """At the deadline a job that hangs is lost, and with it everything that travelled in its group."""
    federation, folder = started()
    with PoolLink(federation, folder, 1) as link:
        found = replies(
            link, Train(1, Runtime(federation, folder).start), list(federation.silos), until=monotonic() + 600
        )
    assert not any(isinstance(reply, Failure) for reply in found.values())
    assert set(sizes) == {1}
