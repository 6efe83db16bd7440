"""The queue of a standing coordinator, without a network: order, restarts, stops, failures."""

import threading
from pathlib import Path
from threading import Timer
from time import sleep
from typing import Any

import pytest

from hansa.core.errors import RunFailed, UserError
from hansa.deploy import queue_worker
from hansa.deploy.queue_worker import QueueTurn, serve_queue
from hansa.deploy.run_queue import RunQueue
from hansa.runs.callbacks import CurrentRun
from tests.conftest import Build


def work(queue: RunQueue, serve: Any, log: list[str] | None = None) -> None:
    """Work on the queue until it is empty."""
    serve_queue(queue, serve, (log if log is not None else []).append, idle=lambda: False)


def states(queue: RunQueue) -> dict[str, str]:
    return {one.id: one.state for one in queue.all()}


def test_runs_are_served_in_order_and_a_failure_does_not_end_the_queue(federation: Build, tmp_path: Path) -> None:
    queue, served, log = RunQueue(tmp_path / "runs"), list[tuple[int, str]](), list[str]()
    for rounds in (1, 2, 3):
        queue.add(federation(rounds=rounds), "ada")

    def serve(settings: Any, out: Path, stop: QueueTurn) -> None:
        served.append((settings.rounds, out.name))
        if settings.rounds == 2:
            raise RunFailed("round 1: 0 of 3 sent a valid update, 2 needed")

    work(queue, serve, log)
    assert served == [(1, "small-0001"), (2, "small-0002"), (3, "small-0003")]
    assert states(queue) == {"0001": "finished", "0002": "failed", "0003": "finished"}
    assert queue.find("0002").reason == "round 1: 0 of 3 sent a valid update, 2 needed"
    assert any("--retry 0002" in line for line in log)
    queue.retry("0002")
    with pytest.raises(UserError, match="only a run that failed or was stopped"):
        queue.retry("0001")
    work(queue, lambda *_: None)
    assert states(queue)["0002"] == "finished"


def test_a_run_under_way_is_continued_before_the_others(federation: Build, tmp_path: Path) -> None:
    """The first coordinator is killed in the middle: the state of its run stays."""
    queue = RunQueue(tmp_path / "runs")
    first, _ = queue.add(federation(rounds=1), "ada"), queue.add(federation(rounds=2), "ada")
    served: list[int] = []

    def killed(settings: Any, out: Path, stop: QueueTurn) -> None:
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        work(queue, killed)
    assert states(queue) == {"0001": "running", "0002": "queued"}
    work(RunQueue(tmp_path / "runs"), lambda settings, out, stop: served.append(settings.rounds))
    assert served == [1, 2]
    assert queue.find(first.id).state == "finished"


def test_a_stopped_run_ends_after_its_round_and_a_queued_one_never_starts(federation: Build, tmp_path: Path) -> None:
    queue = RunQueue(tmp_path / "runs")
    settings = federation(rounds=5)
    running, waiting = queue.add(settings, "ada"), queue.add(settings, "ada")
    seen: list[int] = []

    def serve(settings: Any, out: Path, stop: QueueTurn) -> None:
        run = CurrentRun(settings, out)
        for number in range(1, settings.rounds + 1):
            stop.on_round_start(run, number)
            if run.stop_reason:
                break
            seen.append(number)
            if number == 2:
                queue.stop(running.id)
                queue.stop(waiting.id)

    work(queue, serve)
    assert seen == [1, 2]
    assert states(queue) == {"0001": "stopped", "0002": "stopped"}
    with pytest.raises(UserError, match="stopped already"):
        queue.stop("0001")


def test_a_run_is_either_taken_out_or_begun(federation: Build, tmp_path: Path) -> None:
    """Many threads stop a run while another begins it: never is one told that it was taken out while it begins."""
    queue, settings = RunQueue(tmp_path / "runs"), federation()
    for _ in range(20):
        one, begun, stopped = queue.add(settings, "ada"), list[Any](), list[Any]()
        both = threading.Barrier(2)

        def begin(both: threading.Barrier = both, begun: list[Any] = begun) -> None:
            both.wait()
            begun.append(RunQueue(queue.runs).begin())

        def stop(both: threading.Barrier = both, id: str = one.id, stopped: list[Any] = stopped) -> None:
            both.wait()
            stopped.append(RunQueue(queue.runs).stop(id, "eve").state)

        threads = [threading.Thread(target=begin), threading.Thread(target=stop)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if stopped == ["stopped"]:
            assert begun == [None]
            assert queue.find(one.id).reason == "stopped by eve"
        else:
            assert stopped == ["running"]
            assert queue.stop_requested(one) == "stopped by eve"
        queue.mark(one, "finished")
        assert queue.stop_requested(one) == ""


@pytest.mark.parametrize("id", ["../0001", "9999", "", "0001.json"])
def test_an_unknown_id_is_one_sentence(federation: Build, tmp_path: Path, id: str) -> None:
    queue = RunQueue(tmp_path / "runs")
    queue.add(federation(), "ada")
    with pytest.raises(UserError, match="has no submitted run"):
        queue.find(id)


def test_two_coordinators_cannot_work_on_one_queue(federation: Build, tmp_path: Path) -> None:
    queue = RunQueue(tmp_path / "runs")
    queue.add(federation(), "ada")

    def serve(settings: Any, out: Path, stop: QueueTurn) -> None:
        with pytest.raises(UserError, match="in use by another"):
            work(queue, lambda *_: None)

    work(queue, serve)


class Silos:
    """Runs of a queue whose silos answer when `answer` is set: only then does the first round begin."""

    def __init__(self, slow: str) -> None:
        self.slow, self.answer = slow, threading.Event()
        self.order: list[str] = []
        self.at_work, self.most = 0, 0
        self._lock = threading.Lock()

    def serve(self, settings: Any, out: Path, turn: QueueTurn) -> None:
        """Wait for the silos, then train for a moment."""
        run = CurrentRun(settings, out)
        while out.name.endswith(self.slow) and not self.answer.is_set():
            turn.on_wait(run)
            if run.stop_reason:
                raise RunFailed(f"{run.stop_reason} before the first round")
            sleep(0.01)
        turn.on_run_start(run)
        with self._lock:
            self.at_work += 1
            self.most = max(self.most, self.at_work)
            self.order.append(out.name)
        sleep(0.05)
        with self._lock:
            self.at_work -= 1


@pytest.fixture
def queue_of_three(federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunQueue:
    monkeypatch.setattr(queue_worker, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(queue_worker, "PATIENCE_SECONDS", 0.1)
    queue = RunQueue(tmp_path / "runs")
    for _ in range(3):
        queue.add(federation(), "ada")
    return queue


def test_a_run_that_waits_for_its_silos_keeps_no_other_from_starting(queue_of_three: RunQueue) -> None:
    queue, silos = queue_of_three, Silos("0001")

    def answered() -> None:
        while states(queue)["0003"] != "finished":
            sleep(0.01)
        assert states(queue)["0001"] == "waiting"
        silos.answer.set()

    other = threading.Thread(target=answered)
    other.start()
    work(queue, silos.serve)
    other.join()
    assert silos.order == ["small-0002", "small-0003", "small-0001"]
    assert set(states(queue).values()) == {"finished"}
    assert silos.most == 1, "one at a time"


def test_control_with_endless_patience_the_others_wait(
    queue_of_three: RunQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_worker, "PATIENCE_SECONDS", 1e9)
    queue, silos = queue_of_three, Silos("0001")
    Timer(0.5, silos.answer.set).start()
    work(queue, silos.serve)
    assert silos.order == ["small-0001", "small-0002", "small-0003"]


def test_a_run_that_waits_for_its_silos_can_be_stopped(queue_of_three: RunQueue) -> None:
    queue, silos = queue_of_three, Silos("0001")

    def stopped() -> None:
        while states(queue)["0001"] != "waiting":
            sleep(0.01)
        queue.stop("0001")

    other = threading.Thread(target=stopped)
    other.start()
    work(queue, silos.serve)
    other.join()
    assert states(queue) == {"0001": "stopped", "0002": "finished", "0003": "finished"}
    assert queue.find("0001").reason == "stopped by the operator"


def test_runs_that_were_waiting_begin_one_after_another(queue_of_three: RunQueue) -> None:
    """All three wait at first; when their silos answer, each takes the place in turn."""
    queue, silos = queue_of_three, Silos("")
    Timer(1.0, silos.answer.set).start()
    work(queue, silos.serve)
    assert sorted(silos.order) == ["small-0001", "small-0002", "small-0003"]
    assert silos.most == 1
