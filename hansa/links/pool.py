"""Silos on a pool of worker processes of this machine: one per core, one thread each.

Small things (JSON) go through pipes, tensors through shared memory: a broadcast is written once, an update is read
where the worker left it. A dispatcher thread hands out work in the order asked; a worker that dies is replaced and its
silo asked once more. Several threads may ask at once (regions of a tree share the pool).
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from time import monotonic
from typing import Any

from hansa.config.federation import Federation
from hansa.config.in_memory import pack_definitions
from hansa.core import device, wire
from hansa.core.errors import DataError
from hansa.core.link import Answer
from hansa.core.memory import peak_memory
from hansa.core.messages import NO_ANSWER, Evaluate, Failure, NodeId, Request, ShareKnowledge, Train
from hansa.links.preload import preload, without_main
from hansa.links.shared_memory import Block, Blocks, Place, Views, look
from hansa.links.worker import pack, unpack, work

TRIES = 2
BRIEF = 0.05  # seconds: jobs shorter than this are handed out ahead, so that a worker never waits for the next
GROUP = 8  # brief jobs that travel together, at most: see `worker._do`; more would take more memory for their updates
GROUP_SECONDS = 0.2  # that a group takes, at most
OFFER = 1 << 22  # floats: room for an offer, which may be larger than a very small model
NUMBERS = 1 << 14  # values beside an update, or in place of scores, that are masked with it
WAITING_BYTES = 2 << 30  # shared memory for updates that came early; beyond it, workers pause

Watch = Callable[[NodeId, str], None]


@dataclass(eq=False)
class Job:
    """A request for one silo, on its way through the pool."""

    node: NodeId
    text: str
    places: dict[str, Place]
    room: int
    size: int  # bytes on a wire
    index: int
    call: "Call"
    tries: int = 0
    block: Block | None = None
    answer: Answer | None = None
    error: str = ""

    @property
    def done(self) -> bool:
        """Whether there is an answer, or an error."""
        return self.answer is not None or bool(self.error)


@dataclass
class Call:
    """One `ask`: its jobs, and how many of their answers have been taken."""

    until: float | None
    jobs: list[Job] = field(default_factory=list)
    taken: int = 0
    window: int = 1  # how far workers may run ahead of the taker
    pace: float = inf  # seconds that the last job took


@dataclass
class Worker:
    """A worker process, the pipe to it, and the groups of jobs that it has; it answers each group at once."""

    process: Any
    connection: Connection
    groups: deque[list[Job]] = field(default_factory=deque)
    began: float = 0.0  # when the first of them did

    @property
    def jobs(self) -> list[Job]:
        """All jobs that it has."""
        return [job for group in self.groups for job in group]


class PoolLink:
    """Silos on worker processes; see the module."""

    remote = False
    posting = None

    def __init__(self, federation: Federation, folder: Path, workers: int | None = None, watch: Watch | None = None):
        self._context = get_context("forkserver")
        preload()
        self._arguments = (federation.model_dump_json(), str(folder), pack_definitions())
        self._watch: Watch = watch or (lambda node, state: None)
        self._blocks, self._views = Blocks(), Views()
        self._queue: deque[Job] = deque()
        self._calls: list[Call] = []
        self._selector = DefaultSelector()
        self._changed = threading.Condition()
        self._wake_out, self._wake_in = os.pipe()
        self._closing = False
        self._brief = False
        self._workers = [self._start(number) for number in range(workers or device.workers())]
        self._dispatcher = threading.Thread(target=self._dispatch, name="hansa-pool", daemon=True)
        self._dispatcher.start()

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self._workers)

    def peak_memory(self) -> list[int]:
        """The most bytes of memory that each worker has taken."""
        return [peak_memory(worker.process.pid) for worker in self._workers]

    # ── the asker's side ──────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        """Work begins now, not when the first answer is taken: beside silos, a tree waits for its regions."""
        return self._answers(*self._enqueue(asks, until))

    def _answers(self, call: Call, borrowed: list[Block]) -> Iterator[Answer]:
        try:
            for job in call.jobs:
                with self._changed:
                    self._changed.wait_for(lambda job=job: job.done)  # type: ignore[misc]
                if job.error:
                    raise DataError(job.error)
                assert job.answer is not None
                yield job.answer
                self._taken(call, job)
        finally:
            self._forget(call, borrowed)

    def _enqueue(self, asks: Mapping[NodeId, Request], until: float | None) -> tuple[Call, list[Block]]:
        """Write each distinct request once, then queue one job per node."""
        written: dict[int, tuple[str, dict[str, Place], int, int]] = {}
        blocks: dict[int, Block] = {}  # by vector: requests that differ may share a model
        call = Call(until)
        with self._changed:
            for index, (node, request) in enumerate(asks.items()):
                if id(request) not in written:
                    # A worker keeps nothing between requests, so a model that the silo would hold goes along; it
                    # does not count as sent.
                    text, vectors = wire.split(request, whole=True)
                    for vector in vectors.values():
                        if id(vector) not in blocks:
                            blocks[id(vector)] = block = self._blocks.take(vector.numel())
                            look(block.memory, 0, vector.numel()).copy_(vector)
                    places = {name: (blocks[id(v)].name, 0, v.numel()) for name, v in vectors.items()}
                    room = max(
                        sum(v.numel() for v in vectors.values()), OFFER if isinstance(request, ShareKnowledge) else 0
                    )
                    room = max(room, request.capacity) if isinstance(request, Train) else room
                    if isinstance(request, Train | Evaluate) and request.masking is not None:
                        room += NUMBERS
                    written[id(request)] = (text, places, room, wire.size(request))
                call.jobs.append(Job(node, *written[id(request)], index, call))
            largest = max((job.room for job in call.jobs), default=0)
            call.window = max(2 * len(self._workers), WAITING_BYTES // max(1, 4 * largest))
            self._calls.append(call)
            self._queue.extend(call.jobs)
        self._wake()
        return call, list(blocks.values())

    def _taken(self, call: Call, job: Job) -> None:
        """The asker is done with this answer: its block may be used again."""
        with self._changed:
            call.taken += 1
            if job.block is not None:
                self._blocks.give_back(job.block)
                job.block = None
        if call.taken + call.window <= len(call.jobs):
            self._wake()

    def _forget(self, call: Call, borrowed: list[Block]) -> None:
        """An asker that stops early leaves nothing behind: queued jobs go, running ones stop with their worker."""
        with self._changed:
            self._calls.remove(call)
            self._queue = deque(job for job in self._queue if job.call is not call)
            for worker in self._workers:
                mine = [job for job in worker.jobs if job.call is call]
                for job in mine:
                    job.answer = Answer(job.node, Failure("no longer wanted"))
                if mine:
                    worker.process.kill()
                    worker.process.join()
            for job in call.jobs:
                if job.block is not None:
                    self._blocks.give_back(job.block)
                    job.block = None
            for block in borrowed:
                self._blocks.give_back(block)

    def close(self) -> None:
        """Stop the workers and free the shared memory."""
        self._closing = True
        self._wake()
        self._dispatcher.join()
        for worker in self._workers:
            worker.connection.close()
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
        self._selector.close()
        self._blocks.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def __enter__(self) -> "PoolLink":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── the dispatcher's side ─────────────────────────────────────────────────────────────────────────────────────

    def _start(self, number: int) -> Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=work, args=(theirs, number, *self._arguments), daemon=True)
        with without_main():
            process.start()
        theirs.close()
        worker = Worker(process, ours)
        self._selector.register(ours, EVENT_READ, worker)
        return worker

    def _wake(self) -> None:
        os.write(self._wake_in, b"!")

    def _dispatch(self) -> None:
        self._selector.register(self._wake_out, EVENT_READ)
        while not self._closing:
            with self._changed:
                self._hand_out()
                patience = self._patience()
            for key, _ in self._selector.select(patience):
                if key.data is None:
                    os.read(self._wake_out, 65536)
                    continue
                try:
                    message = key.data.connection.recv_bytes()
                except (EOFError, ConnectionError):
                    self._replace(key.data, "its worker died")
                else:
                    self._finish(key.data, *unpack(message))
            self._expire()

    def _hand_out(self) -> None:
        """Give queued jobs to workers: first to idle ones, then, where jobs are brief, one group ahead."""
        for depth in (1, 2) if self._brief else (1,):
            for worker in self._workers:
                if len(worker.groups) < depth and (group := self._next()):
                    self._send(worker, group)

    def _next(self) -> list[Job]:
        """The next jobs of the queue that may begin: one, or several with the same request where jobs are brief."""
        group: list[Job] = []
        for job in self._queue:
            if group and (job.call is not group[0].call or job.text is not group[0].text or job.tries):
                break
            if job.index < job.call.taken + job.call.window:
                group.append(job)
            if group and len(group) >= self._most(group[0]):
                break
        for job in group:
            self._queue.remove(job)
        return group

    def _most(self, job: Job) -> int:
        """How many jobs may form a group.

        Few towards the end, so that workers end together. One where a worker died, to find out whose fault it was, and
        one where there is a deadline: a job that hangs must not take others with it.
        """
        if job.tries or job.call.until is not None:
            return 1
        return max(1, min(GROUP, int(GROUP_SECONDS / job.call.pace), len(self._queue) // (2 * len(self._workers))))

    def _send(self, worker: Worker, group: list[Job]) -> None:
        for job in group:
            job.block = self._blocks.take(job.room) if job.room else None
            self._watch(job.node, "working")
        envelope = {
            "vectors": group[0].places,
            "jobs": [(job.node, job.block.name if job.block else "", job.room) for job in group],
        }
        if not worker.groups:
            worker.began = monotonic()
        worker.groups.append(group)
        with suppress(OSError):  # a closed pipe is found, and its worker replaced, where it is read
            worker.connection.send_bytes(pack(envelope, group[0].text))

    def _finish(self, worker: Worker, envelope: dict[str, Any], texts: list[str]) -> None:
        with self._changed:
            group, now = worker.groups.popleft(), monotonic()
            group[0].call.pace = (now - worker.began) / len(group)
            self._brief, worker.began = group[0].call.pace < BRIEF, now
            for job, told, text in zip(group, envelope["replies"], texts, strict=True):
                if "user_error" in told:
                    job.error = told["user_error"]
                else:
                    vectors = {name: self._views.view(tuple(place)) for name, place in told["vectors"].items()}
                    received = len(text) + sum(4 * v.numel() for v in vectors.values())
                    job.answer = Answer(job.node, wire.join(text, vectors), job.size, received)
                self._watch(job.node, "done")
            self._changed.notify_all()

    def _replace(self, worker: Worker, why: str, by_itself: bool = True) -> None:
        """Start a new worker in the place of a dead one; its jobs are tried again, the running ones at most once."""
        worker.process.join(timeout=5)
        why = f"{why} (exit code {worker.process.exitcode})"
        with self._changed:
            for job in reversed(worker.jobs):
                if job.block is not None:
                    self._blocks.give_back(job.block)
                    job.block = None
                if job.done:
                    continue
                job.tries += by_itself and job in worker.groups[0]
                if job.tries >= TRIES:
                    self._lose(job, f"{why}, twice")
                else:
                    self._queue.appendleft(job)
            self._selector.unregister(worker.connection)
            worker.connection.close()
            number = self._workers.index(worker)
            self._workers[number] = self._start(number)

    def _lose(self, job: Job, reason: str) -> None:
        job.answer = Answer(job.node, Failure(reason))
        self._watch(job.node, "lost")
        self._changed.notify_all()

    def _patience(self) -> float | None:
        """Seconds until the next deadline."""
        deadlines = [call.until for call in self._calls if call.until is not None]
        return max(0.0, min(deadlines) - monotonic()) if deadlines else None

    def _expire(self) -> None:
        """End jobs whose deadline has passed.

        A queued job fails. A worker that still has such a job is stopped before the failure is reported: it
        must not write where another answer will lie.
        """
        now = monotonic()
        late = {id(call) for call in self._calls if call.until is not None and call.until <= now}
        if not late:
            return
        with self._changed:
            for job in [job for job in self._queue if id(job.call) in late]:
                self._queue.remove(job)
                self._lose(job, "the deadline passed before a worker was free")
            stuck = [worker for worker in self._workers if any(id(job.call) in late for job in worker.jobs)]
            for worker in stuck:
                worker.process.kill()
                worker.process.join()
                for job in worker.jobs:
                    if id(job.call) in late:
                        self._lose(job, NO_ANSWER)
            for call in [call for call in self._calls if id(call) in late]:
                call.until = None  # everything of it is answered now
        for worker in stuck:
            self._replace(worker, "stopped at the deadline", by_itself=False)
