"""Enrolment between organisations: a run waits for administrators who have not decided, and not for those who have."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hansa.core.errors import RunFailed
from hansa.core.link import Answer
from hansa.core.messages import NOT_APPROVED, DataCard, Failure, NodeId, Reply, Request
from hansa.core.participation import Participation
from hansa.runs import callbacks, enrolment
from hansa.runs.callbacks import CurrentRun, RunEvents
from hansa.runs.ledger import Ledger
from tests.conftest import Build

CARD = DataCard({"train": {"en": 10}, "valid": {}, "test": {}}, 10)
PENDING = Failure(f"the request cannot be used: {NOT_APPROVED}")


class Scripted:
    """A link between organisations whose silos give these replies, one after another; the last one stays."""

    remote = True

    def __init__(self, **replies: list[Reply]) -> None:
        self.replies, self.asked = replies, list[list[NodeId]]()

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        self.asked.append(list(asks))
        for name in asks:
            left = self.replies[name]
            yield Answer(name, left.pop(0) if len(left) > 1 else left[0])


class Said:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_message(self, run: CurrentRun, text: str) -> None:
        self.lines.append(text)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "ASK_AGAIN_SECONDS", 0.01)


def enrol(link: Any, folder: Path, said: Said | None = None, **settings: Any) -> dict[NodeId, DataCard]:
    ledger = Ledger(folder)
    try:
        events = RunEvents([said] if said is not None else [])
        names = list(link.replies)
        return enrolment.described(link, names, "", Participation(**settings), ledger, events, {})
    finally:
        ledger.close()


def test_a_run_waits_for_an_administrator_who_has_not_decided(tmp_path: Path) -> None:
    link, said = Scripted(north=[CARD], south=[PENDING, PENDING, CARD]), Said()
    assert set(enrol(link, tmp_path, said, quorum=1.0)) == {"north", "south"}
    assert link.asked == [["north", "south"], ["south"], ["south"]], "those that have answered are not asked again"
    assert said.lines == ["1 of 2 silos have answered, 2 needed: not approved yet by south"], "said once"


class Stops:
    """A callback that stops the run while it waits."""

    def __init__(self) -> None:
        self.waited = 0

    def on_wait(self, run: CurrentRun) -> None:
        self.waited += 1
        if self.waited == 2:
            run.stop("stopped by the operator")


def test_a_run_that_waits_for_an_administrator_can_be_stopped(
    tmp_path: Path, federation: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(enrolment, "ASK_AGAIN_SECONDS", 60.0)
    link: Any = Scripted(north=[CARD], south=[PENDING])
    stops, ledger = Stops(), Ledger(tmp_path)
    events = RunEvents([stops], CurrentRun(federation(), tmp_path))
    with pytest.raises(RunFailed, match="stopped by the operator before the first round"):
        enrolment.described(link, ["north", "south"], "", Participation(quorum=1.0), ledger, events, {})
    ledger.close()
    assert stops.waited == 2, "it does not wait to the end of the pause"
    assert link.asked == [["north", "south"]]


def test_the_quorum_does_not_end_the_time_to_decide(tmp_path: Path) -> None:
    link = Scripted(north=[CARD], south=[PENDING, CARD])
    assert set(enrol(link, tmp_path, quorum=0.5, enrolment=60.0)) == {"north", "south"}


def test_after_the_time_for_enrolment_the_quorum_begins(tmp_path: Path) -> None:
    link = Scripted(north=[CARD], south=[PENDING])
    assert set(enrol(link, tmp_path, quorum=0.5, enrolment=0.05)) == {"north"}
    assert len(link.asked) > 1


def test_a_refusal_is_a_decision(tmp_path: Path) -> None:
    """Negative control: the run ends at once."""
    link = Scripted(north=[CARD], south=[Failure("the silo's administrator has refused this run"), CARD])
    with pytest.raises(RunFailed, match=r"south.*administrator has refused this run"):
        enrol(link, tmp_path, quorum=1.0)
    assert len(link.asked) == 1
