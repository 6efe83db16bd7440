"""A silo's part in one run, in a process of its own, where an agent works on several runs at once.

Torch has one random generator for a process, and plug-ins may have global variables: in one process, runs would change
each other's results. So each run that is open has a process, which ends when the run is closed, or when the agent ends.
Requests and replies pass through a pipe as the messages of `hansa.core.wire`. The process holds the lock of the run's
folder, so that the process of an agent that was killed never works beside that of its successor.
"""

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

import torch
from torch import Tensor

from hansa.core import errors, wire
from hansa.core.errors import UserError, place
from hansa.core.messages import Reply, Request
from hansa.deploy.lock_file import lock_folder
from hansa.deploy.network.blob_protocol import InvalidRequest
from hansa.deploy.request_reader import NodeService
from hansa.links.local import attempt, withheld_reason
from hansa.links.preload import preload, without_main
from hansa.privacy.policy.audit_heads import Anchors

LOCK_SECONDS = 60.0  # for which the process of a killed agent may still hold the run

Log = Callable[[str], None]


class Setup(Protocol):
    """Makes a service in another process, to which it is sent."""

    def service(self) -> NodeService:
        """The service."""


class ProcessEnded(Exception):
    """The process of a run ended in the middle of its work, or failed in a way that is a mistake of ours."""


class ProcessService:
    """Opens every run in a process of its own; implements `hansa.deploy.request_reader.NodeService`.

    ``setup`` makes the service there; ``own`` is the same service in this process, for its log; ``warn`` receives
    problems.
    """

    def __init__(self, setup: Setup, own: NodeService, warn: Log) -> None:
        self._setup, self._own, self._warn = setup, own, warn
        preload()

    @property
    def anchors(self) -> Anchors | None:
        """The node's audit log and the heads of its parent's."""
        return self._own.anchors

    def log_refusal(self, message: str, round: int, reason: str) -> None:
        """Log a request that could not be used."""
        self._own.log_refusal(message, round, reason)

    def open_run(self, folder: Path, settings: bytes) -> "RunProcess":
        """Start the process of a run; raises `InvalidRequest` if the settings cannot be used."""
        return RunProcess(self._setup, folder, settings, self._warn)


class RunProcess:
    """The process of one open run, which answers its requests; it is started again if it ends."""

    def __init__(self, setup: Setup, folder: Path, settings: bytes, warn: Log) -> None:
        self._arguments, self._warn = (setup, str(folder), settings), warn
        self._process: Any = None
        self._pipe: Connection | None = None
        self._start()

    def __call__(self, request: Request) -> Reply:
        """The reply of the node; raises `UserError` for mistakes in its data or settings."""
        pipe = self._pipe or self._start()
        try:
            _send(pipe, {}, request)
            found, vectors = _receive(pipe)
        except (EOFError, OSError):
            self.close()
            raise ProcessEnded("the process of the run has ended; it is started again") from None
        self._check(found)
        reply: Reply = wire.join(found["text"], vectors)
        return reply

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def _start(self) -> Connection:
        context = get_context("forkserver")
        own, other = context.Pipe()
        self._pipe = own
        with without_main():
            self._process = context.Process(target=work, args=(other, *self._arguments), name="hansa-run")
            self._process.start()
        other.close()
        try:
            self._check(_receive(own)[0])
        except (EOFError, OSError):
            self.close()
            raise ProcessEnded("the process of the run ended while it opened the run") from None
        except BaseException:
            self.close()
            raise
        return own

    def _check(self, found: dict[str, Any]) -> None:
        """Log what the process warns of; raise the error that it reports, if any."""
        for text in found.get("warnings", ()):
            self._warn(text)
        match found.get("error"):
            case ["invalid", str(reason), str(detail)]:
                raise InvalidRequest(reason, detail)
            case ["user", str(kind), str(text)]:
                known = getattr(errors, kind, UserError)
                raise (known if isinstance(known, type) and issubclass(known, UserError) else UserError)(text)
            case ["other", str(text)]:
                raise ProcessEnded(text)


def work(pipe: Connection, setup: Setup, folder: str, settings: bytes) -> None:
    """The main function of the process: open the run, and answer requests until the agent ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the agent decides when it ends
    torch.set_num_threads(1)
    waiting = _Inbox(pipe)
    with ExitStack() as stack:
        try:
            _lock(stack, Path(folder))
            answer = setup.service().open_run(Path(folder), settings)
        except Exception as error:
            _report(pipe, error, [])
            os._exit(0)
        _send(pipe, {}, None)
        while True:
            request, warnings = waiting.next(), list[str]()

            def withheld(error: BaseException, to: list[str] = warnings) -> str:
                """Keep the type and place of an error as a warning; return the reason that may leave the silo."""
                to.append(f"failed twice: {type(error).__name__} ({place(error)})")
                return withheld_reason(error)

            try:
                reply = attempt(answer, request, withheld)
                _send(pipe, {"warnings": warnings}, reply)
            except Exception as error:
                _report(pipe, error, warnings)


class _Inbox:
    """Receives requests in a thread, which ends the process as soon as the agent is gone, also in the middle of work.

    There is one request at a time.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._found = pipe, list[Request]()
        self._arrived = threading.Semaphore(0)
        threading.Thread(target=self._listen, daemon=True).start()

    def next(self) -> Request:
        """The next request; waits until there is one."""
        self._arrived.acquire()
        return self._found.pop()

    def _listen(self) -> None:
        while True:
            try:
                header, vectors = _receive(self._pipe)
            except (EOFError, OSError):
                os._exit(0)
            self._found.append(wire.join(header["text"], vectors))
            self._arrived.release()


def _lock(stack: ExitStack, folder: Path) -> None:
    until = monotonic() + LOCK_SECONDS
    while True:
        try:
            stack.enter_context(lock_folder(folder, "hansa join"))
            return
        except UserError:
            if monotonic() > until:
                raise
            sleep(0.05)


def _report(pipe: Connection, error: Exception, warnings: list[str]) -> None:
    if isinstance(error, InvalidRequest):
        told = ["invalid", str(error), error.detail]
    elif isinstance(error, UserError):
        told = ["user", type(error).__name__, str(error)]
    else:
        told = ["other", f"{type(error).__name__}: {error} ({place(error)})"]
    _send(pipe, {"error": told, "warnings": warnings}, None)


def _send(pipe: Connection, header: dict[str, Any], message: Request | Reply | None) -> None:
    """Send a line of JSON, then the vectors of a message, as they are in memory."""
    text, vectors = wire.split(message) if message is not None else ("", {})
    views = {name: wire.as_bytes(vector) for name, vector in vectors.items()}
    sizes = {name: len(view) for name, view in views.items()}
    pipe.send_bytes(json.dumps(header | {"text": text, "vectors": sizes}).encode())
    for view in views.values():
        if len(view):
            pipe.send_bytes(view)


def _receive(pipe: Connection) -> tuple[dict[str, Any], dict[str, Tensor]]:
    header: dict[str, Any] = json.loads(pipe.recv_bytes())
    vectors = {name: torch.empty(size // 4) for name, size in header["vectors"].items()}
    for vector in vectors.values():
        if vector.numel():
            pipe.recv_bytes_into(wire.as_bytes(vector))
    return header, vectors
