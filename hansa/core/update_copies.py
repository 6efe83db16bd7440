"""Copies of the updates of a round, which `hansa.rounds` returns with the record of the round."""

from torch import Tensor

from hansa.core.messages import NodeId, Update
from hansa.core.participation import Assignment
from hansa.core.round import Round, RoundPart


class UpdateCopies(RoundPart):
    """Keeps a copy of every accepted update; of masked ones, which tell nothing, it keeps none."""

    def __init__(self) -> None:
        self.updates: dict[NodeId, dict[str, Tensor]] = {}  # silo → tensor name → pseudo-gradient
        self._masked = False

    def clear(self) -> None:
        """Forget the updates of the last round."""
        self.updates = {}

    def prepare(self, round: Round) -> None:
        """Note whether updates come under masks."""
        self._masked = round.masked

    def accept(self, assignment: Assignment, update: Update) -> Update:
        """Copy an update; the update itself goes on unchanged."""
        if not self._masked:
            self.updates[assignment.node] = dict(update.gradient.copy().named())
        return update
