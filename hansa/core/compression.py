"""Compression of updates: what of an update leaves a silo, and in how many bytes. Step 4 of a round.

    NoCompression()                                     everything, as it is
    CompressorChain((DynamicPulling("calm"),))          some tensors only; the others keep their local value in the silo
    CompressorChain((TopK(0.01), Quantize(127)))        choose tensors, then values, then how numbers are written

`CompressorChain` passes an update through compressors, each of which makes it smaller. What they lose of the tensors
that leave is remembered and added to the next update (error feedback; Karimireddy et al. (2019), Error Feedback Fixes
SignSGD, Algorithm 2): e ← (g + e) − decoded(encoded(g + e)), so that over the rounds nothing is lost.

Compressors register in `COMPRESSORS` under the name that a federation file uses, as methods do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from hansa.core.encoding import EncodedTensor, EncodedUpdate
from hansa.core.messages import no_tensors
from hansa.core.registry import Registry
from hansa.core.tensors import Tensors, is_finite

KINDS = ("tensors", "values", "numbers")

Kind = Literal["tensors", "values", "numbers"]
EncodedTensors = dict[str, EncodedTensor]


@dataclass(frozen=True)
class UploadState:
    """What a silo remembers of its last update.

    ``local``: its own values of the tensors that did not leave and that it keeps; ``sent``: its values of the others,
    where compressors choose tensors; ``residual``: what compressors lost.
    """

    local: Tensors = field(default_factory=no_tensors)
    sent: Tensors = field(default_factory=no_tensors)
    residual: Tensors | None = None

    def restore_local(self, model: Tensors) -> list[str]:
        """Put the silo's own values of the tensors that did not leave it back into ``model``; return their names."""
        model.write(self.local)
        return list(self.local.layout.names)

    def last_model(self) -> dict[str, Tensor]:
        """The silo's model as it was after its last round; empty if that was not kept."""
        return self.local.named() | self.sent.named()


@dataclass
class OutgoingUpdate:
    """An update on its way out of a silo, and what the silo knows about it."""

    gradient: Tensors  # θ − θᵢ
    model: Tensors  # θᵢ
    round: int
    node: str
    seed: int
    sides: Mapping[str, str]  # tensor → encoder, decoder or model
    embeddings: frozenset[str]  # tensors that are tables of embeddings
    before: UploadState | None = None  # what the silo kept from its last round
    kept: UploadState | None = None  # what it keeps for its next
    movement: tuple[float, ...] = ()  # how far each tensor moved since the silo's last round, where that was measured


class Compressor(Protocol):
    """Makes an update smaller: chooses tensors, chooses values in them, or writes numbers in fewer bits."""

    @property
    def kind(self) -> Kind:
        """What it decides about: ``tensors``, ``values`` or ``numbers``. A chain has them in this order."""

    @property
    def keeps_local(self) -> bool:
        """Whether tensors that it leaves out keep the silo's own value."""

    @property
    def both_ways(self) -> bool:
        """Whether a silo is also sent only the tensors that it sent last."""

    def compress(self, tensors: EncodedTensors, update: OutgoingUpdate) -> EncodedTensors:
        """The tensors that still leave, as they leave. It may set ``update.movement``."""


class Compression(Protocol):
    """The upload slot of a method."""

    @property
    def selects(self) -> bool:
        """Whether tensors may be left out: which ones tells about the data."""

    @property
    def keeps_local(self) -> bool:
        """Whether tensors that were left out keep the silo's own value."""

    @property
    def both_ways(self) -> bool:
        """Whether a silo is also sent only the tensors that it sent last."""

    @property
    def lossy(self) -> bool:
        """Whether values of the tensors that leave may get lost."""

    def compress(self, update: OutgoingUpdate) -> Tensors | EncodedUpdate:
        """What leaves of an update; sets ``update.kept``."""


@dataclass(frozen=True)
class NoCompression:
    """Everything leaves, as it is."""

    selects: ClassVar[bool] = False
    keeps_local: ClassVar[bool] = False
    both_ways: ClassVar[bool] = False
    lossy: ClassVar[bool] = False

    def compress(self, update: OutgoingUpdate) -> Tensors | EncodedUpdate:
        """Return the update as it is."""
        return update.gradient


@dataclass(frozen=True)
class CompressorChain:
    """Compressors one after another, with error ``feedback`` for what they lose."""

    compressors: tuple[Compressor, ...]
    feedback: bool = True

    @property
    def selects(self) -> bool:
        """Whether some compressor leaves tensors out."""
        return any(one.kind == "tensors" for one in self.compressors)

    @property
    def keeps_local(self) -> bool:
        """Whether tensors that were left out keep the silo's own value."""
        return any(one.keeps_local for one in self.compressors)

    @property
    def both_ways(self) -> bool:
        """Whether a silo is also sent only the tensors that it sent last."""
        return any(one.both_ways for one in self.compressors)

    @property
    def lossy(self) -> bool:
        """Whether values of the tensors that leave may get lost."""
        return any(one.kind != "tensors" for one in self.compressors)

    def compress(self, update: OutgoingUpdate) -> Tensors | EncodedUpdate:
        """Pass an update through all compressors; what they lose is added to the silo's next update."""
        gradient, before = update.gradient, update.before
        if not is_finite(gradient.flat):  # the server will refuse it: do not let it into the state
            update.kept = before
            return gradient
        missing = before.residual if before is not None and self.feedback else None
        target = gradient if missing is None else Tensors(gradient.layout, gradient.flat + missing.flat)
        tensors = {name: EncodedTensor(tuple(t.shape), t.reshape(-1)) for name, t in target.named().items()}
        for compressor in self.compressors:
            tensors = compressor.compress(tensors, update)
        update.kept = self._state(update, target, tensors, missing)
        if all(one.plain for one in tensors.values()):
            return target.only(tensors)
        return EncodedUpdate.of(tensors)

    def _state(
        self, update: OutgoingUpdate, target: Tensors, tensors: EncodedTensors, missing: Tensors | None
    ) -> UploadState | None:
        """What the silo keeps for its next round."""
        if not self.selects and not (self.feedback and self.lossy):
            return None
        local = sent = no_tensors()
        if self.selects:
            stay = [name for name in update.model.layout.names if name not in tensors] if self.keeps_local else []
            local = update.model.only(stay)
            sent = update.model.only([name for name in update.model.layout.names if name not in set(stay)])
        residual = _residual(target, tensors, missing) if self.feedback and self.lossy else None
        return UploadState(local, sent, residual)


def _residual(target: Tensors, tensors: EncodedTensors, missing: Tensors | None) -> Tensors:
    """What the encoding lost of the tensors that left; of the others, what was already missing."""
    lost = torch.zeros_like(target.flat) if missing is None else missing.flat.clone()
    for name, one in tensors.items():
        span = target.layout.spans[name]
        torch.sub(target.flat[span], one.dense(), out=lost[span])
    return Tensors(target.layout, lost)


COMPRESSORS: Registry[Compressor] = Registry("upload")
