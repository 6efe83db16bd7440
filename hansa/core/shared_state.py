"""State that flows between the server and the silos beside the model: the part of a round that carries it.

The server's value goes out with every `Train`; the silos' contributions come back with their updates, are averaged
uniformly, and the method's `SharedState` slot makes the new value of their mean.
"""

from dataclasses import dataclass, field, replace

from hansa.core.messages import Train, Update
from hansa.core.method import SharedState
from hansa.core.participation import Assignment
from hansa.core.round import Round, RoundPart
from hansa.core.state import SHARED
from hansa.core.tensors import Tensors, WeightedMean, is_finite


@dataclass(frozen=True)
class SharedValue:
    """The server's value, as it is kept in checkpoints."""

    value: Tensors


@dataclass
class SharedStatePart(RoundPart):
    """The part of a round that sends the shared state out and merges what comes back."""

    slot: SharedState
    value: Tensors | None = None
    mean: WeightedMean | None = None
    contributions: int = 0
    extended: dict[int, Train] = field(default_factory=dict)  # by request: silos that get the same share one object

    def prepare(self, round: Round) -> None:
        """Recall the server's value."""
        self.value = round.state.slots[SHARED].value
        self.mean = WeightedMean(self.value.layout)

    def extend(self, assignment: Assignment, request: Train) -> Train:
        """Send the server's value along."""
        if id(request) not in self.extended:
            self.extended[id(request)] = replace(request, shared_state=self.value)
        return self.extended[id(request)]

    def accept(self, assignment: Assignment, update: Update) -> Update:
        """Add a silo's contribution, if it fits the server's value."""
        sent = update.shared_state
        assert self.mean is not None
        if sent is not None and sent.layout == self.mean.layout and is_finite(sent.flat):
            self.mean.add(sent, 1.0)
            self.contributions += 1
        return update

    def finish(self, round: Round) -> None:
        """Merge the contributions into the server's value."""
        assert self.value is not None
        assert self.mean is not None
        if self.contributions:
            share = self.contributions / len(round.server.children)
            round.state.slots[SHARED] = SharedValue(self.slot.merge(self.value, self.mean.mean(), share))
