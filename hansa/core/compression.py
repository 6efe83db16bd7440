"""What of an update leaves a silo, and in which code: step 4 of a round.

    Whole()                                         everything, as it is
    Then((Pulling("calm"),))                        some tensors only; the others keep their local value in the silo
    Then((TopK(0.01), Steps(127)))                  choose tensors, then values, then how numbers are written

`CompressorChain` passes an update through steps, each of which makes it smaller. What steps lose of the tensors that leave is
remembered and added to the next update (error feedback; Karimireddy et al. (2019), Error Feedback Fixes SignSGD,
Algorithm 2): e ← (g + e) − decoded(coded(g + e)), so that over the rounds nothing is lost.

Steps register in `COMPRESSORS` under the name a federation file uses, as methods do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from hansa.core.encoding import EncodedTensor, EncodedUpdate
from hansa.core.registry import Registry
from hansa.core.tensors import Tensors, is_finite

LOCAL, SENT, RESIDUAL = "upload.local.", "upload.sent.", "upload.residual"  # in the silo's memory
KINDS = ("tensors", "values", "numbers")

Kind = Literal["tensors", "values", "numbers"]
EncodedTensors = dict[str, EncodedTensor]


@dataclass
class OutgoingUpdate:
    """An update on its way out of a silo, and what the silo knows about it."""

    gradient: Tensors  # θ − θᵢ
    state: Tensors  # θᵢ
    round: int
    node: str
    seed: int
    sides: Mapping[str, str]  # tensor → encoder, decoder or model
    embeddings: frozenset[str]  # tensors that are tables of embeddings
    memory: Mapping[str, Tensor]  # what the silo kept from its last round
    kept: dict[str, Tensor] = field(default_factory=dict)  # what it keeps for its next
    moved: tuple[float, ...] = ()  # how far each tensor moved since the silo's last round, where a step measured it


class Compressor(Protocol):
    """Makes a parcel smaller: by choosing tensors, by choosing values in them, or by writing numbers in fewer bits."""

    @property
    def kind(self) -> Kind: ...

    def code(self, parcel: EncodedTensors, leaving: OutgoingUpdate) -> EncodedTensors: ...


class Compression(Protocol):
    @property
    def selects(self) -> bool:
        """Whether tensors may be left out."""

    @property
    def keeps_local(self) -> bool:
        """Whether tensors that were left out keep the silo's own value."""

    @property
    def both(self) -> bool:
        """Whether a silo is also sent only the tensors that it sent last."""

    def leave(self, leaving: OutgoingUpdate) -> Tensors | EncodedUpdate: ...


@dataclass(frozen=True)
class NoCompression:
    """Everything leaves, as it is."""

    selects: ClassVar[bool] = False
    keeps_local: ClassVar[bool] = False
    both: ClassVar[bool] = False

    def leave(self, leaving: OutgoingUpdate) -> Tensors | EncodedUpdate:
        return leaving.gradient


@dataclass(frozen=True)
class CompressorChain:
    steps: tuple[Compressor, ...]
    feedback: bool = True

    @property
    def selects(self) -> bool:
        return any(step.kind == "tensors" for step in self.steps)

    @property
    def keeps_local(self) -> bool:
        return any(getattr(step, "local", False) for step in self.steps)

    @property
    def both(self) -> bool:
        return any(getattr(step, "both", False) for step in self.steps)

    @property
    def codes(self) -> bool:
        """Whether values of the tensors that leave may get lost."""
        return any(step.kind != "tensors" for step in self.steps)

    def leave(self, leaving: OutgoingUpdate) -> Tensors | EncodedUpdate:
        gradient = leaving.gradient
        before = leaving.memory.get(RESIDUAL) if self.feedback else None
        if not is_finite(gradient.flat):  # the federation will refuse it: do not let it into the memory
            leaving.kept |= {name: t for name, t in leaving.memory.items() if name.startswith("upload.")}
            return gradient
        target = gradient if before is None else Tensors(gradient.layout, gradient.flat + before)
        parcel = {name: EncodedTensor(tuple(t.shape), t.reshape(-1)) for name, t in target.named().items()}
        for step in self.steps:
            parcel = step.code(parcel, leaving)
        if self.selects:
            stay = LOCAL if self.keeps_local else SENT
            leaving.kept |= {(SENT if n in parcel else stay) + n: t for n, t in leaving.state.named().items()}
        if self.feedback and self.codes:
            leaving.kept[RESIDUAL] = _residual(target, parcel, before)
        if all(part.plain for part in parcel.values()):
            return target.only(parcel)
        return EncodedUpdate.of(parcel)


def _residual(target: Tensors, parcel: EncodedTensors, before: Tensor | None) -> Tensor:
    """What the code lost of the tensors that left; of the others, what was already missing."""
    lost = torch.zeros_like(target.flat) if before is None else before.clone()
    for name, part in parcel.items():
        span = target.layout.spans[name]
        torch.sub(target.flat[span], part.dense(), out=lost[span])
    return lost


def restore_local(state: Tensors, memory: Mapping[str, Tensor]) -> list[str]:
    """Put back, over what was received, the silo's own values of the tensors that did not leave it last time."""
    own = {name.removeprefix(LOCAL): value for name, value in memory.items() if name.startswith(LOCAL)}
    for name, value in own.items():
        state[name].copy_(value)
    return list(own)


def last_state(memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The silo's model as it was after its last round."""
    return {n.removeprefix(prefix): t for prefix in (LOCAL, SENT) for n, t in memory.items() if n.startswith(prefix)}


COMPRESSORS: Registry[Compressor] = Registry("upload")
