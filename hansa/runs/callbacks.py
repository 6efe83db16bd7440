"""Callbacks of a run: objects whose methods the run calls while it goes on.

The progress display, trackers and early stopping are callbacks (`hansa.callbacks`). A callback is any object with some
of the methods of `CallbackMethods`; those that it lacks are skipped. Each gets the run as a `CurrentRun` first, by
which it can also stop the run:

    class StopAtNight:
        required = False                            # if it fails, the run says so and goes on without it

        def on_round_end(self, run, record):
            if time.localtime().tm_hour < 6:
                run.stop("it is night")
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

from torch import Tensor

from hansa.config.federation import Federation
from hansa.core.errors import HansaError, RunFailed, UserError, did_you_mean, place, printable
from hansa.core.messages import NodeId
from hansa.core.registry import origin
from hansa.core.round import Record

Metrics = Mapping[str, Mapping[str, float]]  # group → metric → value


@dataclass
class CurrentRun:
    """A run that is going on, as callbacks see it."""

    federation: Federation
    folder: Path
    samples: dict[NodeId, int] = field(default_factory=dict)  # training samples of every silo
    round: int = 0  # rounds that are done
    resumed_after: int = 0  # rounds that were done before the run was resumed
    stop_reason: str = ""
    say: Callable[[str], None] = lambda text: None  # a message for people, which every callback gets

    @property
    def name(self) -> str:
        """The name of the federation."""
        return self.federation.name

    def stop(self, reason: str) -> None:
        """End the run after this round: the model is evaluated and saved as after the last round.

        Before the first round, while silos are awaited, the run fails with the reason.
        """
        self.stop_reason = reason or "stopped by a callback"


@dataclass(frozen=True)
class Evaluation:
    """The scores of one evaluation.

    ``metrics``: group (language or domain) → metric → value over all silos; ``silos``: the same for each silo that
    released scores of its own. ``own``: of every node's own model on its own data, by node instead of group.
    """

    round: int
    split: str
    share: float  # of the split that was evaluated
    headline: str  # the metric that tables show
    metrics: Metrics
    silos: Mapping[NodeId, Metrics] = field(default_factory=dict)
    own: bool = False


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round.

    ``updates``: silo → tensor name → pseudo-gradient as the server received it; only in `hansa.rounds`, and empty under
    secure aggregation. ``losses``: silo → training loss. ``scores``: silo → metric → value, if the round was evaluated.
    ``phases``: seconds by phase.
    """

    number: int
    participants: tuple[NodeId, ...]
    loss: float  # mean training loss, weighted by samples
    losses: Mapping[NodeId, float]
    updates: Mapping[NodeId, Mapping[str, Tensor]]
    scores: Mapping[NodeId, Mapping[str, float]]
    evaluations: tuple[Evaluation, ...]
    failures: Mapping[NodeId, str]  # silo → why it has no part in the round
    bytes_down: Mapping[NodeId, int]
    bytes_up: Mapping[NodeId, int]
    seconds: float
    phases: Mapping[str, float]

    @property
    def bytes(self) -> dict[NodeId, int]:
        """Silo → bytes in both directions."""
        names = dict.fromkeys([*self.bytes_down, *self.bytes_up])
        return {name: self.bytes_down.get(name, 0) + self.bytes_up.get(name, 0) for name in names}

    @staticmethod
    def of(
        record: Record,
        seconds: Mapping[str, float],
        evaluations: Iterable[Evaluation],
        updates: Mapping[NodeId, Mapping[str, Tensor]],
    ) -> "RoundRecord":
        """The record of a round of the server."""
        seen = tuple(evaluations)
        by_silo = [one for one in seen if not one.own]
        losses = {} if record.hidden is not None else {node: update.loss for node, update in record.updates.items()}
        return RoundRecord(
            number=record.round,
            participants=tuple(dict.fromkeys(record.cohort)),
            loss=record.loss,
            losses=losses,
            updates=updates,
            scores={silo: _flat(metrics) for one in by_silo for silo, metrics in one.silos.items()},
            evaluations=seen,
            failures=dict(record.failures),
            bytes_down=dict(record.sent),
            bytes_up=dict(record.received),
            seconds=sum(seconds.values()),
            phases=dict(seconds),
        )


def _flat(metrics: Metrics) -> dict[str, float]:
    """The metrics of a silo; of several languages, each metric by language."""
    if len(metrics) == 1:
        return dict(next(iter(metrics.values())))
    return {f"{metric} ({group})": value for group, values in metrics.items() for metric, value in values.items()}


class CallbackMethods(Protocol):
    """Every method that a callback may have; it needs none of them.

    It may also have ``required: bool``. A required callback that raises an exception stops the run, which can be
    resumed; one that is not required (the default) is dropped, with a message, and the run goes on.
    """

    def on_message(self, run: CurrentRun, text: str) -> None:
        """The run has something for a person to read."""

    def on_run_start(self, run: CurrentRun) -> None:
        """Before the first round."""

    def on_wait(self, run: CurrentRun) -> None:
        """Every second while the run waits for silos before the first round; `CurrentRun.stop` ends the wait."""

    def on_round_start(self, run: CurrentRun, number: int) -> None:
        """Before a round."""

    def on_silo(self, run: CurrentRun, silo: NodeId, state: str) -> None:
        """A silo is ``working``, ``done`` or ``lost``; called from another thread."""

    def on_evaluate(self, run: CurrentRun, scores: Evaluation) -> None:
        """After an evaluation: of the shared model and, on a tree of models, of every node's own."""

    def on_checkpoint(self, run: CurrentRun, path: Path) -> None:
        """A checkpoint was written."""

    def on_round_end(self, run: CurrentRun, record: RoundRecord) -> None:
        """After a round."""

    def on_phase(self, run: CurrentRun, phase: str, done: int, total: int) -> None:
        """Work after the last round, such as silos' personal models: ``done`` of ``total`` answers have come."""

    def on_failure(self, run: CurrentRun, error: BaseException) -> None:
        """The run ends with an error, or was interrupted."""

    def on_run_end(self, run: CurrentRun, result: Any) -> None:
        """After the last round, with all models saved; ``result``: a `hansa.Result`."""


WAIT_SECONDS = 1.0  # between two calls of `on_wait`
EVENTS = tuple(name for name in vars(CallbackMethods) if name.startswith("on_"))


class RunEvents:
    """Tells the callbacks of a run what happens."""

    def __init__(self, callbacks: Iterable[object] = (), run: CurrentRun | None = None) -> None:
        """Take callbacks; raise `UserError` for an object that has none of the methods."""
        self._callbacks = list(callbacks)
        self.run: CurrentRun | None = None
        self._pending: RunFailed | None = None
        if run is not None:
            self.begin(run)
        for one in self._callbacks:
            if not any(callable(getattr(one, event, None)) for event in EVENTS):
                raise UserError(
                    f"the callback {type(one).__name__} has none of the methods of a callback: {', '.join(EVENTS)}"
                )
        self._silo_callbacks = [one for one in self._callbacks if hasattr(one, "on_silo")]

    def begin(self, run: CurrentRun) -> None:
        """Speak of ``run`` from now on."""
        self.run = run
        run.say = self.say

    def say(self, text: str) -> None:
        """Something for a person to read."""
        self.tell("on_message", text)

    def wait(self, seconds: float) -> None:
        """Wait, and tell the callbacks so; returns earlier if one of them stops the run."""
        until = monotonic() + seconds
        while (left := until - monotonic()) > 0 and not (self.run is not None and self.run.stop_reason):
            self.tell("on_wait")
            sleep(min(WAIT_SECONDS, left))

    def silo(self, node: NodeId, state: str) -> None:
        """A silo started working, is done, or was lost. Called for every silo of every round: keep it cheap."""
        if self._silo_callbacks:
            self.tell("on_silo", node, state)

    def tell(self, event: str, *arguments: Any) -> None:
        """Call the method ``event`` of every callback that has it.

        A callback that fails is dropped with a message, or raises `RunFailed` if it is required.
        """
        if self._pending is not None and event not in ("on_silo", "on_failure"):
            pending, self._pending = self._pending, None
            raise pending
        for one in tuple(self._callbacks):
            method = getattr(one, event, None)
            if method is None:
                continue
            try:
                method(self.run, *arguments)
            except Exception as error:
                self._failed(one, event, error)

    def _failed(self, callback: object, event: str, error: Exception) -> None:
        cause = str(error) if isinstance(error, HansaError) else f"{type(error).__name__}: {error} ({place(error)})"
        said = f"the callback {type(callback).__name__} failed in {event}: {printable(cause, 500)}"
        if event == "on_failure":  # the run ends anyway, by an error of its own
            return
        if getattr(callback, "required", False):
            failure = RunFailed(
                f"{said}; it is required, so the run stops: correct it, then continue from the last checkpoint with "
                "resume"
            )
            if event != "on_silo":
                raise failure from error
            self._pending = failure  # this is another thread: the run stops at its next event
            return
        self._callbacks.remove(callback)
        if callback in self._silo_callbacks:
            self._silo_callbacks.remove(callback)
        self.say(f"{said}; the run goes on without it")


# ── callbacks by name ─────────────────────────────────────────────────────────────────────────────────────────────


class CallbackRegistry:
    """Callbacks that the command line finds by name: ``hansa run --track NAME``."""

    def __init__(self) -> None:
        self.entries: dict[str, type[Any]] = {}

    def register(self, name: str) -> Any:
        """A decorator that registers a class, which is built without arguments; raises `UserError` if it is taken."""

        def add(kind: type[Any]) -> type[Any]:
            """Register the class and return it; raises `UserError` if another class has the name."""
            taken = self.entries.get(name)
            if taken is not None and origin(taken) != origin(kind):
                raise UserError(
                    f"the callback '{name}' is registered twice, by {origin(taken)} and by {origin(kind)}: rename "
                    "one of them"
                )
            self.entries[name] = kind
            return kind

        return add

    def build(self, name: str) -> Any:
        """The callback of a name; raises `UserError` if there is none."""
        if name not in self.entries:
            raise UserError(f"--track {name} is not known; {did_you_mean(name, self.entries)}")
        return self.entries[name]()


CALLBACKS = CallbackRegistry()
