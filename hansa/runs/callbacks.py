"""Callbacks of a run: who is told what happens while it goes on. The progress display is one."""

from collections.abc import Mapping
from typing import Protocol

from hansa.config.federation import Federation
from hansa.core.messages import NodeId
from hansa.core.round import Record

Metrics = Mapping[str, Mapping[str, float]]  # group → metric → value


class RunCallbacks(Protocol):
    """What a run calls while it goes on."""

    def say(self, text: str) -> None:
        """Something for a person to read."""

    def begin(self, federation: Federation, done: int, samples: Mapping[NodeId, int]) -> None:
        """Before the first round; ``done`` rounds were done before, ``samples``: the silos' training samples."""

    def silo(self, node: NodeId, state: str) -> None:
        """A silo started working, is done, or was lost."""

    def round(self, record: Record, seconds: Mapping[str, float]) -> None:
        """After a round; ``seconds``: by phase."""

    def scores(self, round: int, metrics: Metrics, headline: str) -> None:
        """After an evaluation of the shared model; ``headline``: the metric that a table shows."""

    def own(self, round: int, metrics: Metrics, headline: str) -> None:
        """On a tree of models, after an evaluation of every node's own model, by node."""

    def end(self) -> None:
        """After the last round, with all models saved."""


class NoCallbacks:
    """Does nothing; a base for callbacks that need only some of the calls."""

    def say(self, text: str) -> None:
        """Do nothing."""

    def begin(self, federation: Federation, done: int, samples: Mapping[NodeId, int]) -> None:
        """Do nothing."""

    def silo(self, node: NodeId, state: str) -> None:
        """Do nothing."""

    def round(self, record: Record, seconds: Mapping[str, float]) -> None:
        """Do nothing."""

    def scores(self, round: int, metrics: Metrics, headline: str) -> None:
        """Do nothing."""

    def own(self, round: int, metrics: Metrics, headline: str) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""
