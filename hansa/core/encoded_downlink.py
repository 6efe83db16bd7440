"""Encoded downlink: silos are sent how far the model has moved, in few bits.

    server   keeps θ in full precision, and θ̂, the model that the silos hold;  q = C(θ − θ̂);  θ̂ ← θ̂ + q
    silo     θ̂ ← θ̂ + q, trains from θ̂, sends θ̂ − θᵢ

C: the compressors of ``download``. What C loses stays in θ − θ̂ and is sent with a later q, so that it needs no other
error feedback (Mishchenko et al. (2019), Distributed Learning with Compressed Gradient Differences, Algorithm 1, at the
server). θ̂ is the same at all silos. A silo that does not hold the last θ̂, because it was not asked in the last round or
did not answer, is sent all of the new one in float32. Of tensors that did not move in the last round nothing is sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hansa.core.compression import Compressor, EncodedTensors, OutgoingUpdate
from hansa.core.encoding import EncodedTensor, EncodedUpdate
from hansa.core.messages import NodeId, Train
from hansa.core.participation import Assignment
from hansa.core.round import Round, RoundPart
from hansa.core.state import SENT
from hansa.core.tensors import Tensors, is_finite


@dataclass(frozen=True)
class SentModel:
    """The model that silos hold, the round in which it was sent, who holds it, and which tensors moved since."""

    model: Tensors
    round: int
    holders: tuple[NodeId, ...]
    moved: tuple[str, ...]


@dataclass
class EncodedDownlink(RoundPart):
    """The part of a round that sends silos how far the model has moved."""

    compressors: Sequence[Compressor]
    before: SentModel | None = None
    difference: EncodedUpdate | None = None
    _requests: dict[int, Train] = field(default_factory=dict)  # one for all holders, so that it is written once

    def prepare(self, round: Round) -> None:
        """Encode how far the model has moved; the round starts from what silos will hold."""
        self.before, self._requests = round.state.slots.get(SENT), {}
        exact = round.moved = round.start
        if self.before is None:
            round.start = exact.copy()
            return
        self.difference, round.start = encode_difference(self.compressors, exact, self.before, round.number)

    def extend(self, assignment: Assignment, request: Train) -> Train:
        """Send those that hold the last model the difference alone."""
        before = self.before
        if before is None or self.difference is None or assignment.node not in before.holders:
            return request
        if id(request) not in self._requests:
            empty = request.model.only(())
            self._requests[id(request)] = replace(
                request, model=empty, moved=self.difference, held=before.round, capacity=request.model.layout.size
            )
        return self._requests[id(request)]

    def finish(self, round: Round) -> None:
        """Remember what the silos hold now."""
        holders = tuple(node for node in round.record.updates if node not in round.record.failures)
        moved = {name for layout in round.record.tensors.values() for name in layout.names}
        names = tuple(name for name in round.start.layout.names if name in moved)
        round.state.slots[SENT] = SentModel(round.start, round.number, holders, names)


def encode_difference(
    compressors: Sequence[Compressor], exact: Tensors, before: SentModel, number: int
) -> tuple[EncodedUpdate, Tensors]:
    """How far the model lies from what the silos hold, encoded, and what they will hold after it."""
    names = before.moved
    apart = Tensors(exact.layout, exact.flat - before.model.flat).only(names)
    update = OutgoingUpdate(apart, exact, number, "", 0, {}, frozenset())
    parts: EncodedTensors = {n: EncodedTensor(tuple(t.shape), t.reshape(-1)) for n, t in apart.named().items()}
    assert is_finite(apart.flat), "a model that is not finite is refused after the round that made it"
    for compressor in compressors:
        parts = compressor.compress(parts, update)
    encoded = EncodedUpdate.of(parts)
    return encoded, advanced(before.model, encoded)


def advanced(held: Tensors, difference: EncodedUpdate) -> Tensors:
    """The model of a silo that held another one; raises `EncodingError` if the difference does not fit it."""
    model, moved = held.copy(), difference.open(held.layout)
    for name, span in moved.layout.spans.items():
        model.flat[held.layout.spans[name]].add_(moved.flat[span])
    return model
