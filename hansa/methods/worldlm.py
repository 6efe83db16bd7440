"""Iacob et al. (2024), Worldwide Federated Training of Language Models (WorldLM), Algorithm 1 and Appendix A.3.

    A_{q,i,l} = softmax_i(cos(Q_{q,l}, K_{i,l}))                              LayerAttn, lines 5 and 6
    K′_{q,l}  = Σ_i A_{q,i,l}·V_{i,l}
    AggParent       K_q ← LayerAttn(K_q; {K_q, K_p, K_r for every residual r})
    line 14         K_q ← 1/|P| Σ_{c∈P} LayerAttn(K_c; P),   P = children's key layers and one's own
    RouteResiduals  (v, l) goes to the child c with the highest cos(v, K_{c,l})
    PartResiduals   for each l, the v children's layers with the lowest cos(K_{q,l}, K_{c,l})

q: a node; p: its parent; l: a key layer, here a whole transformer block as one vector; K_{q,l}: its values at q. Key
layers are the last blocks (about 30%, never fewer than one); all else is the backbone, which is averaged (line 10,
uniformly) and moved by server momentum (line 11, η 0.2, μ 0.9). `hansa/core/hierarchy.py` is its part of a round.
Deviations: the residuals a root keeps (PartResiduals, line 8) are routed once, in the next round, instead of being
gathered for ever; a child whose layers are not known yet is taken to have its parent's.
Ours, off by default: ``similarity: moved`` compares what layers moved since they were last the same; ``temperature``
of the softmax; ``back: false`` keeps residuals from returning to the branch they came from; ``server`` of every node;
``buffer``: a region that is slow in virtual time contributes when it is done, damped by its staleness as in FedBuff;
its key layers too, K_c ← K_q + s(τ)·(K_c − K_q).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from hansa.core.errors import ConfigError
from hansa.core.messages import NodeId
from hansa.core.method import METHODS, Filter, Layers, Method, Residual
from hansa.core.method import LayerAttention as Shares
from hansa.core.participation import BufferedRegions, round_half_up
from hansa.core.settings import Positive, Section, Share
from hansa.methods.fedavg import BySamples, fedavg
from hansa.methods.fedbuff import ByStaleness, DampedMean
from hansa.methods.fedopt import Momentum
from hansa.methods.fltrust import TrustFilter

TINY = 1e-12
CHUNK = 1 << 14  # values of a layer that are compared at a time


@dataclass(frozen=True)
class Cosine:
    """s(a, b); with ``moved``, of how far both have come from where they were last the same."""

    moved: bool = False

    def between(self, queries: Sequence[Tensor], members: Sequence[Tensor], base: Tensor) -> Tensor:
        """Cosines of every query with every member; a layer that has not moved is like nobody, itself included. Sums
        are kept in double precision, a piece at a time: whole layers of that width would not stay in the cache.
        """
        dots = torch.zeros(len(queries), len(members), dtype=torch.float64)
        asking, asked = torch.zeros(len(queries), dtype=torch.float64), torch.zeros(len(members), dtype=torch.float64)
        for span in (slice(begin, begin + CHUNK) for begin in range(0, base.numel(), CHUNK)):
            theirs = self._rows(members, base, span)
            ours = theirs if queries is members else self._rows(queries, base, span)
            dots += torch.mm(ours, theirs.T)
            asking += ours.square().sum(1)
            asked += theirs.square().sum(1)
        lengths = asking.sqrt().clamp_min(TINY)[:, None] * asked.sqrt().clamp_min(TINY)
        return dots / lengths

    def _rows(self, layers: Sequence[Tensor], base: Tensor, span: slice) -> Tensor:
        rows = torch.stack([layer[span] for layer in layers]).double()
        return rows - base[span].double() if self.moved else rows


def weighted_sum(weights: Tensor, members: Sequence[Tensor]) -> Tensor:
    """Σ_i A_i·V_i."""
    total = torch.zeros_like(members[0])
    for weight, member in zip(weights.tolist(), members, strict=True):
        total.add_(member, alpha=weight)
    return total


@dataclass(frozen=True)
class LayerAttention:
    """Key layers travel and are combined by attention."""

    key_layers: float | tuple[str, ...] = 0.3
    residuals: int = 1
    order: Literal["sequential", "parallel"] = "sequential"
    cosine: Cosine = Cosine()
    temperature: float = 1.0
    back: bool = True
    filter: Filter | None = None
    keys_travel: ClassVar[bool] = True
    forwards_layers: ClassVar[bool] = True

    @property
    def compares_moves(self) -> bool:
        return self.cosine.moved

    def keys(self, parts: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        return key_tensors(parts, self.key_layers)

    def adopt(self, own: Layers, others: Mapping[str, Layers], base: Layers) -> tuple[Layers, Shares]:
        """AggParent, line 6."""
        new, weights = {}, {}
        for layer, mine in own.items():
            who = ["", *(name for name, layers in others.items() if layer in layers)]
            members = [mine, *(others[name][layer] for name in who[1:])]
            alike = self.cosine.between(members[:1], members, base[layer])[0]
            shares = torch.softmax(alike / self.temperature, 0)
            new[layer] = weighted_sum(shares, members)
            weights[layer] = dict(zip(who, shares.tolist(), strict=True))
        return new, weights

    def merge(self, own: str, members: Mapping[str, Layers], base: Layers) -> tuple[Layers, Shares]:
        """Lines 12 to 14: every member asks all; the mean of what they hear is one mean with averaged weights."""
        new, weights = {}, {}
        for layer in members[own]:
            values = [layers[layer] for layers in members.values()]
            shares = torch.softmax(self.cosine.between(values, values, base[layer]) / self.temperature, 1).mean(0)
            new[layer] = weighted_sum(shares, values)
            weights[layer] = dict(zip(members, shares.tolist(), strict=True))
        return new, weights

    def route(
        self, residuals: Sequence[Residual], children: Mapping[NodeId, Layers], base: Layers
    ) -> dict[NodeId, list[Residual]]:
        routed: dict[NodeId, list[Residual]] = {}
        names = sorted(children)
        for layer in dict.fromkeys(residual.layer for residual in residuals):
            some = [residual for residual in residuals if residual.layer == layer]
            members = [children[name][layer] for name in names]
            alike = self.cosine.between([residual.values for residual in some], members, base[layer])
            for residual, row in zip(some, alike.tolist(), strict=True):
                sender = residual.origin.partition("/")[0]
                able = [(-score, name) for score, name in zip(row, names, strict=True) if self.back or name != sender]
                if able:
                    routed.setdefault(min(able)[1], []).append(residual)
        return routed

    def select_residuals(self, new: Layers, children: Mapping[NodeId, Layers], base: Layers) -> list[Residual]:
        found, names = [], sorted(children)
        for layer, mine in new.items() if self.residuals else ():
            alike = self.cosine.between([mine], [children[name][layer] for name in names], base[layer])[0]
            for index in alike.argsort(stable=True)[: self.residuals].tolist():
                found.append(Residual(layer, names[index], children[names[index]][layer]))
        return found


def key_tensors(parts: Mapping[str, str], wanted: float | Sequence[str]) -> dict[str, tuple[str, ...]]:
    return {layer: tuple(n for n, p in parts.items() if p == layer) for layer in last_blocks(parts, wanted)}


def last_blocks(parts: Mapping[str, str], wanted: float | Sequence[str]) -> list[str]:
    """The named blocks, or the last share of them, and at least one (of a share of 0, none)."""
    blocks = sorted({p for p in parts.values() if "block." in p}, key=lambda p: (p.rpartition(".")[0], _index(p)))
    if not isinstance(wanted, float):
        missing = [name for name in wanted if name not in blocks]
        if missing:
            have = f"it has {blocks[0]} to {blocks[-1]}" if blocks else "nothing in its blocks is trained"
            raise ConfigError(f"method.key_layers names '{missing[0]}', which the model does not have; {have}")
        return list(wanted)
    if wanted and not blocks:
        raise ConfigError(
            "key layers are blocks of the model, and none of its blocks is trained (model.adapt: frozen): "
            "use adapt: full or lora, or method.key_layers: 0"
        )
    return blocks[len(blocks) - max(1, round_half_up(wanted * len(blocks))) :] if wanted else []


def _index(part: str) -> int:
    return int(part.rpartition(".")[2])


@METHODS.register("worldlm")
class WorldLM(Section):
    key_layers: Share | tuple[str, ...] = 0.3  # a share of the blocks, the last ones; or their names (block.3)
    residuals: Annotated[int, Field(ge=0)] = 1  # v
    order: Literal["sequential", "parallel"] = "sequential"
    similarity: Literal["layers", "moved"] = "layers"
    temperature: Positive = 1.0
    back: bool = True
    buffer: Annotated[int, Field(ge=0)] = 0  # the root waits for so many children, by the virtual clock; 0: for all
    power: Annotated[float, Field(ge=0.0)] = 0.5  # buffer: an update that is τ versions old counts (1 + τ)^−power
    filter: TrustFilter | None = None  # leave out children that lie; see fltrust.py

    def build(self) -> Method:
        keys = float(self.key_layers) if isinstance(self.key_layers, float) else self.key_layers
        cosine = Cosine(self.similarity == "moved")
        tree = LayerAttention(keys, self.residuals, self.order, cosine, self.temperature, self.back, self.filter)
        method = replace(fedavg(), name="worldlm", weighting=BySamples(0.0), server=Momentum(0.2, 0.9), hierarchy=tree)
        if not self.buffer:
            return method
        weighting, mean = ByStaleness(self.power), DampedMean(self.power)
        return replace(
            method, participation=BufferedRegions(self.buffer, self.power), weighting=weighting, aggregator=mean
        )
