"""The newest request of every run in which an agent takes part, and which of its workers has which run.

A run is open at one worker at a time: its model and its state in memory are there. A worker has one run open; when it
takes another one, the first is closed, and opened again from its files for its next request, as after a restart. So a
run ends in the same bits, whatever other runs do.
"""

import threading
from collections.abc import Callable

from hansa.deploy.network.envelope import Envelope


class RunRequests:
    """The requests of an agent with ``workers`` workers, which are numbered from 0. Several threads may use it."""

    def __init__(self, workers: int) -> None:
        self._changed = threading.Condition()
        self._newest: dict[str, Envelope] = {}  # by run, in the order in which the runs asked last
        self._taken: dict[str, tuple[str, int]] = {}  # the position of the request that was taken up last
        self._holder: dict[str, int] = {}  # run → the worker that has it open
        self._idle = set(range(workers))

    def put(self, envelope: Envelope) -> None:
        """Note the newest request of its run."""
        with self._changed:
            known = self._newest.get(envelope.run)
            if known is None or known.position != envelope.position:
                self._newest.pop(envelope.run, None)
                self._newest[envelope.run] = envelope
                self._changed.notify_all()

    def newest(self, run: str | None = None) -> Envelope | None:
        """The newest request, of a run or of all; None if there is none."""
        with self._changed:
            return self._newest.get(run) if run is not None else next(reversed(self._newest.values()), None)

    def open(self) -> list[Envelope]:
        """The requests that are not answered, the one that is worked on or waits for the longest time first."""
        with self._changed:
            busy = {run for run, worker in self._holder.items() if worker not in self._idle}
            found = [one for run, one in self._newest.items() if run in busy or self._waits(run)]
            return sorted(found, key=lambda one: one.run not in busy)

    def working(self) -> list[str]:
        """The runs that workers work on now."""
        with self._changed:
            return sorted(run for run, worker in self._holder.items() if worker not in self._idle)

    def superseded(self, envelope: Envelope) -> bool:
        """Whether there is a newer request of the same run."""
        newest = self._newest.get(envelope.run)
        return newest is not None and newest.position != envelope.position

    def take(
        self, worker: int, stopped: Callable[[], bool], allowed: Callable[[], bool], seconds: float
    ) -> tuple[Envelope, bool] | None:
        """Wait for a request that a worker should work on, and take it up; None if there is none in time.

        Returns also whether the worker must open the run anew. While not ``allowed``, or once ``stopped``, there is
        none.
        """
        with self._changed:
            self._idle.add(worker)
            self._changed.notify_all()
            self._changed.wait_for(lambda: stopped() or (self._next(worker) is not None and allowed()), seconds)
            run = self._next(worker) if allowed() and not stopped() else None
            if run is None:
                return None
            self._idle.discard(worker)
            fresh = self._holder.get(run) != worker
            self._holder = {other: holder for other, holder in self._holder.items() if holder != worker}
            self._holder[run] = worker
            envelope = self._newest[run]
            self._taken[run] = envelope.position
            return envelope, fresh

    def repeat(self, run: str) -> None:
        """Let the newest request of a run be taken up again."""
        with self._changed:
            self._taken.pop(run, None)
            self._changed.notify_all()

    def end(self, run: str) -> bool:
        """Forget a run that has ended at the parent, so that its model leaves the memory; False: it is worked on."""
        with self._changed:
            if run in self._holder and self._holder[run] not in self._idle:
                return False
            for known in (self._newest, self._taken, self._holder):
                known.pop(run, None)
            self._changed.notify_all()
            return True

    def holds(self, worker: int) -> bool:
        """Whether a worker should have a run open."""
        with self._changed:
            return worker in self._holder.values()

    def wake(self) -> None:
        """Let workers that wait look again."""
        with self._changed:
            self._changed.notify_all()

    def _waits(self, run: str) -> bool:
        return self._newest[run].position != self._taken.get(run)

    def _next(self, worker: int) -> str | None:
        """The run that a worker should take: of those that no other has open, the one that has waited longest.

        A worker that has a run open leaves other runs to idle workers that have none.
        """
        holders = set(self._holder.values())
        only_own = worker in holders and bool(self._idle - holders)
        for run in self._newest:
            holder = self._holder.get(run)
            if self._waits(run) and (holder == worker or (holder is None and not only_own)):
                return run
        return None
