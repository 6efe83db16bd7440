"""Passban et al. (2022), Training Mixed-Domain Translation Models via Federated Learning, Section 4.

    d_t = ‖w_t(r) − w_t(r−1)‖        how far a silo's tensor t moved between the ends of its last two rounds
    DP_g: send t where d_t ≥ θ       (Equation 2: `active`)
    DP_l: send t where d_t < θ       (Equation 3: `calm`)
    θ = median of d                  separately for the encoder's and the decoder's tensors

In its first round a silo has no earlier state and sends all tensors. Tensors that a silo does not send keep their local
value there ("protected from external updates"); the server averages every tensor over the silos that sent it. `random`
sends as many parameters as the rule it is compared with (``like``), chosen at random.

``keep`` other than ½ puts θ at another quantile. The raw norm ranks tensors mostly by their size, and half of the
tensors may contain nearly none of the parameters, or nearly all; so the fraction may be counted ``by`` parameters, and
the norm may be ``relative`` (‖Δ‖/‖w‖) or per value (``rms``); `raw` by `tensors` is the paper's rule. The paper
does not name its norm: ``raw`` is the Euclidean one, ``l1`` the sum of absolute differences. With ``both`` the server
also sends a silo only the tensors that it sent last (Section 5.5): the result is the same, with fewer bytes.
Deviations: ties between equal d are broken by the position in the model, so that exactly the fraction ``keep`` is sent.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, prod, sqrt
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from torch import Tensor

from hansa.compressors.basic import Kept
from hansa.core.compression import COMPRESSORS, Compressor, EncodedTensors, Kind, OutgoingUpdate
from hansa.core.seeds import stream
from hansa.core.settings import Section

Norm = Literal["raw", "l1", "relative", "rms"]
Unit = Literal["tensors", "parameters"]


@dataclass(frozen=True)
class DynamicPulling:
    """Selects the tensors that a silo sends by how far they moved; the settings below describe the fields."""

    choose: Literal["active", "calm", "random"]
    keep: float = 0.5
    by: Unit = "tensors"
    norm: Norm = "raw"
    embeddings: bool = True
    local: bool = True
    both: bool = False
    like: Literal["active", "calm"] = "calm"
    kind: ClassVar[Kind] = "tensors"

    @property
    def keeps_local(self) -> bool:
        """True unless the setting ``local`` is false: then the server's values replace tensors that were not sent."""
        return self.local

    @property
    def both_ways(self) -> bool:
        """True if the setting ``both`` restricts the download, too."""
        return self.both

    def compress(self, tensors: EncodedTensors, update: OutgoingUpdate) -> EncodedTensors:
        """Select tensors by their movement since the silo's last round, for each side of the model separately.

        Without a last round all tensors leave. Sets ``update.movement``.
        """
        before = update.before.last_model() if update.before is not None else {}
        if not before:
            return tensors
        moved = {name: movement(t, before[name], self.norm) for name, t in update.model.named().items()}
        update.movement = tuple(float(f"{d:.4g}") for d in moved.values())
        sizes = {name: prod(part.shape) for name, part in tensors.items()}
        chosen: set[str] = set()
        for side in sorted(set(update.sides.values())):
            names = [n for n in tensors if update.sides[n] == side and (self.embeddings or n not in update.embeddings)]
            chosen.update(self._choose(names, moved, sizes, update))
        return {name: part for name, part in tensors.items() if name in chosen}

    def _choose(
        self, names: list[str], moved: Mapping[str, float], sizes: Mapping[str, int], update: OutgoingUpdate
    ) -> Collection[str]:
        rule = self.like if self.choose == "random" else self.choose
        order = sorted(names, key=lambda name: moved[name], reverse=rule == "active")
        if self.by == "tensors":
            count = round(self.keep * len(order), 6)  # 0.07·100 is 7
            chosen = order[: ceil(count) if rule == "active" else int(count)]
        else:
            chosen = list(_filling(order, sizes, self.keep * sum(sizes[n] for n in order)))
        if self.choose != "random":
            return chosen
        shuffled = stream(update.seed, update.round, update.node, "random tensors").permutation(len(names))
        return list(_filling([names[i] for i in shuffled], sizes, sum(sizes[n] for n in chosen)))


def movement(now: Tensor, before: Tensor, norm: Norm) -> float:
    """How far a tensor moved: d_t in the given norm."""
    if norm == "l1":
        return float((now - before).abs().sum())
    distance = float((now - before).norm())
    if norm == "relative":
        return distance / max(float(before.norm()), 1e-12)
    return distance / sqrt(max(1, now.numel())) if norm == "rms" else distance


def _filling(order: list[str], sizes: Mapping[str, int], budget: float) -> Iterator[str]:
    """The tensors, in this order, that fit into a budget of parameters."""
    for name in order:
        if sizes[name] <= budget:
            budget -= sizes[name]
            yield name


class PullingSettings(Section):
    """What the three rules have in common."""

    keep: Kept = Field(default=0.5, description="Fraction of the tensors, or parameters, to send.")
    by: Unit = Field(default="tensors", description="What `keep` is a fraction of.")
    norm: Norm = Field(default="raw", description="‖Δ‖₂ (raw), ‖Δ‖₁ (l1), ‖Δ‖₂/‖w‖₂ (relative) or per value (rms).")
    embeddings: bool = Field(
        default=True, description="Whether embedding tables may be sent; false: only in the first round."
    )
    local: bool = Field(
        default=True, description="Tensors that were not sent keep the silo's own value; false: they take the server's."
    )
    both: bool = Field(default=False, description="The server also sends a silo only the tensors that it sent last.")

    @model_validator(mode="after")
    def _both_needs_local(self) -> "PullingSettings":
        if self.both and not self.local:
            raise ValueError("with 'both: true' a silo does not receive the other tensors: leave 'local: false' out")
        return self


@COMPRESSORS.register("active")
class Active(PullingSettings):
    """Dynamic pulling (Passban et al., 2022): sends the tensors that moved most."""

    def build(self) -> Compressor:
        """The selection of the tensors with the largest movement."""
        return DynamicPulling("active", **dict(self))


@COMPRESSORS.register("calm")
class Calm(PullingSettings):
    """Dynamic pulling (Passban et al., 2022): sends the tensors that moved least."""

    def build(self) -> Compressor:
        """The selection of the tensors with the smallest movement."""
        return DynamicPulling("calm", **dict(self))


@COMPRESSORS.register("random")
class Random(PullingSettings):
    """Random tensors, as many parameters as dynamic pulling would send."""

    like: Literal["active", "calm"] = Field(default="calm", description="Rule whose number of parameters is matched.")

    def build(self) -> Compressor:
        """The random selection with as many parameters as the rule ``like`` would send."""
        return DynamicPulling("random", **dict(self))
