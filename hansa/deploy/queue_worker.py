"""The work of a standing coordinator on its queue: up to so many runs at the same time, each in a thread.

A run takes one of the places when its first round begins. Until then it asks its silos, whose administrators may need
days to approve it, or which may be switched off; a run that has waited for longer than a moment keeps no other run
from starting.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from hansa.config.federation import Federation
from hansa.config.file import read
from hansa.core.errors import HansaError, UserError, place, printable
from hansa.deploy.lock_file import lock_folder
from hansa.deploy.run_queue import FAILED, FINISHED, RUNNING, STOPPED, WAITING, QueuedRun, RunQueue
from hansa.runs.callbacks import CurrentRun

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 20.0  # after this a run whose silos have not answered lets the next one begin
MOST_WAITING = 16  # runs whose silos are asked at the same time, beside those that take a place

Serve = Callable[[Federation, Path, "QueueTurn"], object]


class Places:
    """How many runs may be trained at the same time, and which are."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._changed = threading.Condition()
        self._taken: set[str] = set()

    def take(self, id: str, given_up: Callable[[], bool]) -> None:
        """Wait for a free place and take it; returns without one once ``given_up`` is true."""
        with self._changed:
            while len(self._taken) >= self._count and not given_up():
                self._changed.wait(POLL_SECONDS)
            self._taken.add(id)

    def give_back(self, id: str) -> None:
        """Free the place of a run, if it has one."""
        with self._changed:
            self._taken.discard(id)
            self._changed.notify_all()

    def free(self, waiting: int) -> bool:
        """Whether another run may begin beside ``waiting`` ones that will take a place in a moment."""
        with self._changed:
            return len(self._taken) + waiting < self._count

    def has(self, id: str) -> bool:
        """Whether a run has a place."""
        with self._changed:
            return id in self._taken


class QueueTurn:
    """A callback of a run of the queue: it takes a place for it, and ends it when `RunQueue.stop` was called."""

    required = True

    def __init__(self, queue: RunQueue, one: QueuedRun, places: Places) -> None:
        self._queue, self._one, self._places = queue, one, places
        self._began = monotonic()
        self._state = RUNNING

    def on_wait(self, run: CurrentRun) -> None:
        """Silos are awaited before the first round: note it, and look for the request to stop."""
        if self.waits_long and self._state != WAITING:
            self._note(WAITING)
        self._stop_if_asked(run)

    def on_run_start(self, run: CurrentRun) -> None:
        """The silos have answered: wait until there is a place for the run."""
        self._places.take(self._one.id, lambda: bool(self._queue.stop_requested(self._one)))
        if self._state != RUNNING:
            self._note(RUNNING)

    def on_round_start(self, run: CurrentRun, number: int) -> None:
        """Look for the request to stop before a round."""
        self._stop_if_asked(run)

    @property
    def waits_long(self) -> bool:
        """Whether the run has no place yet and has waited for longer than a moment."""
        return not self._places.has(self._one.id) and monotonic() - self._began > PATIENCE_SECONDS

    def _stop_if_asked(self, run: CurrentRun) -> None:
        if reason := self._queue.stop_requested(self._one):
            run.stop(reason)

    def _note(self, state: str) -> None:
        self._state = state
        self._queue.mark(self._one, state)


def serve_queue(
    queue: RunQueue,
    serve: Serve,
    log: Callable[[str], None],
    idle: Callable[[], bool] = lambda: True,
    at_once: int = 1,
) -> None:
    """Work on the runs of a queue, up to ``at_once`` at the same time, in threads.

    It goes on as long as ``idle`` is true whenever there is nothing to do. ``serve`` runs a federation file to its end
    in a directory, with a callback. A run that fails does not end the queue. Raises `UserError` if another process
    works on the queue.
    """
    with lock_folder(queue.folder, "hansa serve --queue"):
        _serve_locked(queue, serve, log, idle, at_once)


def _serve_locked(
    queue: RunQueue, serve: Serve, log: Callable[[str], None], idle: Callable[[], bool], at_once: int
) -> None:
    log(f"waiting for runs in {queue.runs}: 'hansa submit FED.yaml --queue {queue.runs}'")
    working: dict[str, tuple[threading.Thread, QueueTurn]] = {}
    changed, errors, places = threading.Event(), list[BaseException](), Places(at_once)

    def work(one: QueuedRun, turn: QueueTurn) -> None:
        """Serve one run in its thread, and keep its error for the main thread."""
        try:
            _work_on(queue, one, turn, serve, log)
        except BaseException as error:  # the main thread raises it
            errors.append(error)
        finally:
            places.give_back(one.id)
            changed.set()

    while True:
        changed.clear()
        working = {id: (thread, turn) for id, (thread, turn) in working.items() if thread.is_alive()}
        if errors:
            raise errors[0]
        soon = sum(not places.has(id) and not turn.waits_long for id, (_, turn) in working.items())
        may_begin = places.free(soon) and len(working) < at_once + MOST_WAITING
        one = queue.begin(working) if may_begin else None
        if one is not None:
            turn = QueueTurn(queue, one, places)
            thread = threading.Thread(target=work, args=(one, turn), name=f"hansa-run-{one.id}", daemon=True)
            working[one.id] = thread, turn
            thread.start()
        elif working or idle():
            changed.wait(POLL_SECONDS)
        else:
            return


def _work_on(queue: RunQueue, one: QueuedRun, turn: QueueTurn, serve: Serve, log: Callable[[str], None]) -> None:
    log(f"run {one.id} of '{printable(one.name)}', submitted by {printable(one.by)}: {queue.directory(one)}")
    try:
        serve(read(queue.file(one)), queue.directory(one), turn)
    except Exception as error:  # whatever ends one run must not end the others
        reason = str(error) if isinstance(error, HansaError) else f"{type(error).__name__} ({place(error)})"
        if stopped := queue.stop_requested(one):
            queue.mark(one, STOPPED, stopped)
            log(f"run {one.id} has {STOPPED}: {reason}")
            return
        again = f"; 'hansa runs {queue.runs} --retry {one.id}' continues it"
        queue.mark(one, FAILED, reason)
        log(f"run {one.id} failed: {reason}{'' if isinstance(error, UserError) else again}")
        return
    stopped = queue.stop_requested(one)
    queue.mark(one, STOPPED if stopped else FINISHED, stopped)
    log(f"run {one.id} has {STOPPED if stopped else FINISHED}")
