"""Silos on a Ray cluster, for simulations that outgrow one machine: one actor per core, each with a resident model.

A broadcast lies once in Ray's object store; updates wait there until it is their turn, and only as many as fit. With
RAY_ADDRESS set the cluster there is used, otherwise one is started on this machine. Every machine needs Hansa, the data
and the run directory under the same paths, as on a shared file system. The result has the same bits as over any link.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

import numpy as np
import torch

from hansa.config.federation import Federation
from hansa.config.in_memory import pack_definitions, register_definitions
from hansa.core import device, wire
from hansa.core.errors import ConfigError, DataError, UserError
from hansa.core.link import Answer
from hansa.core.messages import Failure, NodeId, Request
from hansa.links.local import attempt

TRIES = 2
LOOK = 0.2  # seconds between looks at the clock and at who is free
SHARE = 0.5  # of the object store, for updates that came early

Watch = Callable[[NodeId, str], None]
Packed = tuple[str, dict[str, Any]]  # a message's text, and its vectors as arrays


def library() -> Any:
    """The `ray` package; raises `ConfigError` if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError("--link ray needs Ray: pip install 'hansa[ray]'") from None
    return ray


def unpack(packed: Packed) -> Any:
    """The message, in memory of its own: what lies in the object store cannot be written to."""
    text, arrays = packed
    return wire.join(text, {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})


class SiloActor:
    """The other end, in an actor: a site with one resident model that answers for any silo."""

    def __init__(self, federation: str, folder: str, definitions: bytes) -> None:
        register_definitions(definitions)
        from hansa.client.host import SiloHost
        from hansa.client.runtime import Runtime

        torch.set_num_threads(1)
        self.host = SiloHost(Runtime(Federation.model_validate_json(federation), Path(folder), device=device.choose()))

    def answer(self, node: NodeId, text: str, names: list[str], *arrays: Any) -> tuple[str, Packed | None]:
        """A user's mistake in words, or the reply."""
        request = unpack((text, dict(zip(names, arrays, strict=True))))
        try:
            reply = attempt(lambda asked: self.host.answer(node)(asked), request)
        except UserError as error:
            return str(error), None
        told, vectors = wire.split(reply)
        return "", (told, {name: vector.numpy() for name, vector in vectors.items()})


@dataclass
class Job:
    """A request for one silo, on its way through the cluster."""

    node: NodeId
    index: int
    text: str
    vectors: dict[str, Any]  # references into the object store
    sent: int
    tries: int = 0


@dataclass
class Call:
    """One `ask`: what is queued, who works on what, and answers whose turn has not come."""

    until: float | None
    window: int
    queue: deque[Job]
    running: dict[Any, tuple[Job, Any]] = field(default_factory=dict)  # reference of a reply → job and actor
    early: dict[int, Answer] = field(default_factory=dict)

    @property
    def late(self) -> bool:
        """Whether its deadline has passed."""
        return self.until is not None and monotonic() >= self.until


class RayLink:
    """Silos on the actors of a Ray cluster; see the module."""

    remote = False
    posting = None

    def __init__(
        self,
        federation: Federation,
        folder: Path,
        workers: int | None = None,
        watch: Watch | None = None,
        store: int | None = None,
    ) -> None:
        """``store``: bytes of shared memory for a cluster that is started here."""
        self._ray = library()
        ours: dict[str, Any] = {"num_cpus": workers, "object_store_memory": store, "include_dashboard": False}
        ours |= {"_node_ip_address": "127.0.0.1"}
        self._ray.init(logging_level="ERROR", log_to_driver=False, **({} if "RAY_ADDRESS" in os.environ else ours))
        resources = self._ray.cluster_resources()
        self.size = workers or int(resources.get("CPU", 1))
        self._store = int(resources.get("object_store_memory", 1 << 30))
        self._watch: Watch = watch or (lambda node, state: None)
        self._arguments = (federation.model_dump_json(), str(folder.resolve()), pack_definitions())
        self._actor_class = self._ray.remote(num_cpus=1)(SiloActor)
        self._free: SimpleQueue[Any] = SimpleQueue()  # regions of a tree ask from threads of their own
        for _ in range(self.size):
            self._start_actor()

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        """Ask the silos on the cluster; see `Link.ask`."""
        call = self._enqueue(asks, until)
        try:
            for turn in range(len(asks)):
                while turn not in call.early:
                    self._expire(call)
                    self._hand_out(call, turn)
                    self._collect(call)
                yield call.early.pop(turn)
        finally:
            for _, actor in call.running.values():  # an asker that stops early leaves nothing at work
                self._stop_actor(actor)

    def close(self) -> None:
        """Leave the cluster; one that was started here is stopped."""
        self._ray.shutdown()

    def __enter__(self) -> "RayLink":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enqueue(self, asks: Mapping[NodeId, Request], until: float | None) -> Call:
        """Put each distinct vector into the store once: requests that differ may share a model."""
        stored: dict[int, Any] = {}
        jobs = []
        for index, (node, request) in enumerate(asks.items()):
            text, vectors = wire.split(request, whole=True)  # an actor keeps nothing between requests
            for vector in vectors.values():
                if id(vector) not in stored:
                    stored[id(vector)] = self._ray.put(vector.contiguous().numpy())
            references = {name: stored[id(vector)] for name, vector in vectors.items()}
            jobs.append(Job(node, index, text, references, wire.size(request)))
        largest = max((job.sent for job in jobs), default=1)
        return Call(until, max(2 * self.size, int(SHARE * self._store) // largest), deque(jobs))

    def _hand_out(self, call: Call, turn: int) -> None:
        while call.queue and call.queue[0].index < turn + call.window:
            try:
                actor = self._free.get(block=not call.running, timeout=LOOK)
            except Empty:
                return
            job = call.queue.popleft()
            self._watch(job.node, "working")
            reply = actor.answer.remote(job.node, job.text, list(job.vectors), *job.vectors.values())
            call.running[reply] = job, actor

    def _collect(self, call: Call) -> None:
        """Take what is done; an actor that died is replaced, and its silo asked once more."""
        if not call.running:
            return
        done, _ = self._ray.wait(list(call.running), num_returns=1, timeout=LOOK)
        for reference in done:
            job, actor = call.running.pop(reference)
            try:
                error, packed = self._ray.get(reference)
            except self._ray.exceptions.RayError as failure:
                self._stop_actor(actor)
                job.tries += 1
                if job.tries < TRIES:
                    call.queue.appendleft(job)
                else:
                    self._lose(call, job, f"its worker died ({type(failure).__name__}), twice")
                continue
            self._free.put(actor)
            if error:
                raise DataError(error)
            reply = unpack(packed)
            call.early[job.index] = Answer(job.node, reply, job.sent, wire.size(reply))
            self._watch(job.node, "done")

    def _expire(self, call: Call) -> None:
        if not call.late:
            return
        for job in call.queue:
            self._lose(call, job, "the deadline passed before a worker was free")
        for job, actor in call.running.values():
            self._stop_actor(actor)
            self._lose(call, job, "it did not answer before the deadline")
        call.queue.clear()
        call.running.clear()

    def _lose(self, call: Call, job: Job, reason: str) -> None:
        call.early[job.index] = Answer(job.node, Failure(reason))
        self._watch(job.node, "lost")

    def _start_actor(self) -> None:
        self._free.put(self._actor_class.remote(*self._arguments))

    def _stop_actor(self, actor: Any) -> None:
        self._ray.kill(actor)
        self._start_actor()
