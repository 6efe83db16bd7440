"""Aggregation of low-rank factors: the part of a round that combines products B·A of adapters, not A and B alone.

The average of products is not the product of averages. What is missing, or all of it, is a *residual* that the server
keeps as low-rank factors of its own beside the adapter, W + s·(B·A + B_R·A_R): it travels to the silos with the model,
and they do not train it. A frozen, perhaps quantised, base W never changes.

The residual has a fixed rank. While it has room, the aggregation is exact; then it is the best approximation of that
rank (truncated singular value decomposition).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hansa.core.link import Answer
from hansa.core.messages import Update
from hansa.core.method import FactorRule
from hansa.core.round import Round, RoundPart
from hansa.core.tensors import Layout, Tensors


@dataclass(frozen=True)
class FactorNames:
    """The tensors of one adapted layer: A, B, and the factors of its residual."""

    a: str
    b: str
    residual_a: str
    residual_b: str

    @property
    def all(self) -> tuple[str, str, str, str]:
        """The four names."""
        return self.a, self.b, self.residual_a, self.residual_b


@dataclass
class FactorPart(RoundPart):
    """Combines the silos' products by a rule. ``names``: the adapted layers of the model."""

    rule: FactorRule
    names: Sequence[FactorNames]
    start: Tensors | None = None  # A and B where the round begins
    moves: list[tuple[float, Tensors]] = field(default_factory=list)  # weight and pseudo-gradient of A and B, by silo

    def prepare(self, round: Round) -> None:
        """Expect updates without residuals, and remember where the factors began."""
        whole = round.start.layout
        self.names = [one for one in self.names if set(one.all) <= set(whole.names)]
        residuals = {name for one in self.names for name in (one.residual_a, one.residual_b)}
        self.start = round.start.only([name for one in self.names for name in (one.a, one.b)]).copy()
        round.expected = round.aggregated = whole.only([name for name in whole.names if name not in residuals])
        inner = round.combine
        round.combine = lambda layout, updates: inner(layout, self._noted(round, updates))

    def sift(self, answers: Iterator[Answer]) -> Iterator[Answer]:
        """Fill up the updates of silos whose adapters have a smaller rank: they lack rows of A and columns of B."""
        assert self.start is not None
        for answer in answers:
            reply = answer.reply
            if isinstance(reply, Update) and reply.encoded is None:
                reply = replace(reply, gradient=filled(reply.gradient, self.start.layout))
            yield replace(answer, reply=reply)

    def _noted(self, round: Round, updates: Iterator[Update]) -> Iterator[Update]:
        """The updates, while their factors are remembered: they are valid until the next one comes."""
        assert self.start is not None
        for update in updates:
            weight = round.server.method.weighting.weight(update)
            self.moves.append((weight, update.gradient.only(self.start.layout.names).copy()))
            yield update

    def finish(self, round: Round) -> None:
        """Add to the residuals what the products of this round leave; ``restarts``: B begins at zero again."""
        assert self.start is not None
        total, model = sum(weight for weight, _ in self.moves), round.state.model
        for one in self.names:
            a, b = self.start[one.a], self.start[one.b]
            silos = [(weight / total, a - move[one.a], b - move[one.b]) for weight, move in self.moves]
            left, right = self.rule.residual(silos)
            held_b, held_a = model[one.residual_b], model[one.residual_a]
            new_b, new_a = shortened(torch.cat([held_b, left], 1), torch.cat([held_a, right]), len(held_a))
            held_b.copy_(new_b)
            held_a.copy_(new_a)
            if self.rule.restarts:
                model[one.b].zero_()


def shortened(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The product ``left``·``right`` as factors of a given rank, or its best approximation of that rank.

    Both factors are computed in float64 from the singular value decomposition of a small matrix.
    """
    basis_b, core_b = torch.linalg.qr(left.double())
    basis_a, core_a = torch.linalg.qr(right.double().T)
    u, values, v = torch.linalg.svd(core_b @ core_a.T, full_matrices=False)
    kept = min(rank, len(values))
    root = values[:kept].sqrt()
    b = torch.zeros(len(left), rank)
    a = torch.zeros(rank, right.shape[1])
    b[:, :kept] = basis_b @ (u[:, :kept] * root)
    a[:kept] = (root[:, None] * v[:kept]) @ basis_a.T
    return b, a


def filled(update: Tensors, layout: Layout) -> Tensors:
    """An update with zeros where tensors of ``layout`` have more rows or columns; others stay as they are."""
    wanted = dict(zip(layout.names, layout.shapes, strict=True))
    named, changed = update.named(), False
    for name, values in named.items():
        shape = wanted.get(name, tuple(values.shape))
        smaller = len(shape) == values.ndim == 2 and all(n <= m for n, m in zip(values.shape, shape, strict=True))
        if smaller and tuple(values.shape) != shape:
            changed = True
            named[name] = torch.zeros(shape)
            named[name][: values.shape[0], : values.shape[1]] = values
    return Tensors.of(named) if changed else update
