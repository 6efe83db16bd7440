"""Iacob et al. (2024), Worldwide Federated Training of Language Models (WorldLM), Algorithm 1 and Appendix A.3.

    A_{q,i,l} = softmax_i(cos(Q_{q,l}, K_{i,l}))                              LayerAttn, lines 5 and 6
    K′_{q,l}  = Σ_i A_{q,i,l}·V_{i,l}
    AggParent       K_q ← LayerAttn(K_q; {K_q, K_p, K_r for every residual r})
    line 14         K_q ← 1/|P| Σ_{c∈P} LayerAttn(K_c; P),   P = children's key layers and one's own
    RouteResiduals  (v, l) goes to the child c with the highest cos(v, K_{c,l})
    PartResiduals   for each l, the v children's layers with the lowest cos(K_{q,l}, K_{c,l})

q: a node; p: its parent; l: a key layer, here a whole transformer block as one vector; K_{q,l}: its values at q. Key
layers are the last blocks (about 30%, at least one); all other tensors are the backbone, which is averaged (line 10,
uniformly) and moved by server momentum (line 11, η 0.2, μ 0.9). `hansa/core/hierarchy.py` is its part of a round.
Deviations: the residuals that the root keeps (PartResiduals, line 8) are routed once, in the next round, and then
dropped; as long as a child's layers are not known, its parent's are used.
Additions, off by default: ``similarity: moved`` compares how layers changed since they were last the same;
``temperature`` of the softmax; ``back: false`` does not route residuals to the branch that sent them; a ``server``
section at every node; ``buffer``: a region that is slow in virtual time contributes when it is done, damped by its
staleness as in FedBuff, also its key layers: K_c ← K_q + s(τ)·(K_c − K_q).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from hansa.core.errors import ConfigError
from hansa.core.messages import NodeId
from hansa.core.method import METHODS, Filter, Layers, Method, Residual
from hansa.core.method import Attention as Shares
from hansa.core.participation import BufferedRegions, round_half_up
from hansa.core.settings import Positive, Section, Share
from hansa.methods.fedavg import BySamples, fedavg
from hansa.methods.fedbuff import ByStaleness, DampedMean
from hansa.methods.fedopt import Momentum
from hansa.methods.fltrust import TrustFilter

TINY = 1e-12
CHUNK = 1 << 14  # values of a layer that are compared at a time

Order = Literal["sequential", "parallel"]
# Descriptions of settings that the methods on trees have in common.
KEY_LAYERS = "Key layers: a fraction of the blocks, counted from the last, or names of blocks (block.3)."
ORDER = "Whether a node trains on its own data before its children do (sequential) or in parallel with them."
FILTER = "Reject updates of children that look malicious (methods/fltrust.py); default: accept all."


@dataclass(frozen=True)
class Cosine:
    """Cosine similarity of layers; with ``moved``, of their changes since they were last the same."""

    moved: bool = False

    def between(self, queries: Sequence[Tensor], members: Sequence[Tensor], base: Tensor) -> Tensor:
        """The cosine of every query with every member; a layer that has not moved has cosine 0 with all, also itself.

        Sums are in double precision, over one chunk of the layers at a time, so that the chunks stay in the cache.
        """
        dots = torch.zeros(len(queries), len(members), dtype=torch.float64)
        query_squares = torch.zeros(len(queries), dtype=torch.float64)
        member_squares = torch.zeros(len(members), dtype=torch.float64)
        for span in (slice(begin, begin + CHUNK) for begin in range(0, base.numel(), CHUNK)):
            theirs = self._rows(members, base, span)
            ours = theirs if queries is members else self._rows(queries, base, span)
            dots += torch.mm(ours, theirs.T)
            query_squares += ours.square().sum(1)
            member_squares += theirs.square().sum(1)
        lengths = query_squares.sqrt().clamp_min(TINY)[:, None] * member_squares.sqrt().clamp_min(TINY)
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
    """WorldLM's hierarchy: nodes exchange key layers and combine them by attention."""

    key_layers: float | tuple[str, ...] = 0.3
    residuals: int = 1
    order: Order = "sequential"
    cosine: Cosine = Cosine()
    temperature: float = 1.0
    back: bool = True
    filter: Filter | None = None
    keys_travel: ClassVar[bool] = True
    forwards_layers: ClassVar[bool] = True

    @property
    def compares_moves(self) -> bool:
        """True with the setting ``similarity: moved``."""
        return self.cosine.moved

    def keys(self, parts: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """The blocks that ``key_layers`` selects, with their tensors; raises `ConfigError` if the model lacks them."""
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
        """Lines 12 to 14: every member attends to all; the mean of the results is one sum with averaged weights."""
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
        """RouteResiduals: each residual goes to the child whose layer has the highest cosine with it.

        With ``back: false`` the branch that sent it is excluded; a residual for which no child is left is dropped.
        """
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
        """PartResiduals: of each key layer, the ``residuals`` children's versions with the lowest cosine to ``new``."""
        found, names = [], sorted(children)
        for layer, mine in new.items() if self.residuals else ():
            alike = self.cosine.between([mine], [children[name][layer] for name in names], base[layer])[0]
            for index in alike.argsort(stable=True)[: self.residuals].tolist():
                found.append(Residual(layer, names[index], children[names[index]][layer]))
        return found


def key_tensors(parts: Mapping[str, str], wanted: float | Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The key layers that ``wanted`` names, each with its tensors; ``parts``: tensor → part of the model."""
    return {layer: tuple(n for n, p in parts.items() if p == layer) for layer in last_blocks(parts, wanted)}


def last_blocks(parts: Mapping[str, str], wanted: float | Sequence[str]) -> list[str]:
    """The named blocks, or the given fraction of the blocks, counted from the last: at least one, for 0 none.

    Raises `ConfigError` if the model does not have them.
    """
    stacks = list(dict.fromkeys(p.rpartition(".")[0] for p in parts.values()))  # in the model's order: encoder, decoder
    blocks = sorted(
        {p for p in parts.values() if "block." in p}, key=lambda p: (stacks.index(p.rpartition(".")[0]), _index(p))
    )
    if not isinstance(wanted, float):
        missing = [name for name in wanted if name not in blocks]
        if missing:
            have = f"it has {blocks[0]} to {blocks[-1]}" if blocks else "none of its blocks is trained"
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
    """WorldLM (Iacob et al., 2024): a tree of models with attention between key layers."""

    key_layers: Share | tuple[str, ...] = Field(default=0.3, description=KEY_LAYERS)
    residuals: int = Field(default=1, ge=0, description="Number v of children per key layer whose layer is passed on.")
    order: Order = Field(default="sequential", description=ORDER)
    similarity: Literal["layers", "moved"] = Field(
        default="layers", description="Compare layers by their values, or by how they moved since they were the same."
    )
    temperature: Positive = Field(default=1.0, description="Temperature of the softmax over cosines.")
    back: bool = Field(default=True, description="Whether residuals may return to the branch that sent them.")
    buffer: int = Field(
        default=0, ge=0, description="Number of children that end a round of the root, by the virtual clock; 0: all."
    )
    power: float = Field(
        default=0.5, ge=0.0, description="buffer: a reply that is τ versions old counts (1 + τ)^−power."
    )
    filter: TrustFilter | None = Field(default=None, description=FILTER)

    def build(self) -> Method:
        """FedAvg on a tree with uniform weights, server momentum and attention between key layers.

        With ``buffer``, the root does not wait for slow children, and stale replies are damped as in FedBuff.
        """
        cosine = Cosine(self.similarity == "moved")
        tree = LayerAttention(
            self.key_layers, self.residuals, self.order, cosine, self.temperature, self.back, self.filter
        )
        method = replace(fedavg(), name="worldlm", weighting=BySamples(0.0), server=Momentum(0.2, 0.9), hierarchy=tree)
        if not self.buffer:
            return method
        weighting, mean = ByStaleness(self.power), DampedMean(self.power)
        return replace(
            method, participation=BufferedRegions(self.buffer, self.power), weighting=weighting, aggregator=mean
        )
