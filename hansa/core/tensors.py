"""Arithmetic on named tensors that lie side by side in one flat buffer.

A model state, a pseudo-gradient and an optimiser moment are all `Tensors`: a `Layout` (names and shapes) and one
contiguous float32 vector. Whole-model arithmetic is then one pass over memory, and a message body is the
vector itself.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, prod

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Names and shapes of tensors that lie side by side in one flat vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def spans(self) -> dict[str, slice]:
        """Where each tensor lies in the flat vector."""
        spans, start = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            spans[name] = slice(start, start + prod(shape))
            start += prod(shape)
        return spans

    @cached_property
    def size(self) -> int:
        """The number of values."""
        return sum(prod(shape) for shape in self.shapes)

    @cached_property
    def text(self) -> str:
        """The layout as one line of JSON, written once: it goes with every message."""
        return json.dumps([self.names, self.shapes], ensure_ascii=False)

    def only(self, names: Iterable[str]) -> "Layout":
        """The part of this layout that the given names occupy, in this layout's order."""
        if names == self.names:
            return self
        wanted = set(names)
        kept = [(n, s) for n, s in zip(self.names, self.shapes, strict=True) if n in wanted]
        return Layout(tuple(n for n, _ in kept), tuple(s for _, s in kept))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self.shapes[self.names.index(name)]


@dataclass(frozen=True, eq=False)
class Tensors:
    """Named float32 tensors in one flat vector."""

    layout: Layout
    flat: Tensor

    @staticmethod
    def zeros(layout: Layout) -> "Tensors":
        """Tensors of a layout, all zero."""
        return Tensors(layout, torch.zeros(layout.size))

    @staticmethod
    def of(named: Mapping[str, Tensor]) -> "Tensors":
        """Copy named tensors into one flat float32 vector."""
        layout = Layout(tuple(named), tuple(tuple(t.shape) for t in named.values()))
        parts = [t.detach().to(torch.float32).reshape(-1) for t in named.values()]
        return Tensors(layout, torch.cat(parts) if parts else torch.zeros(0))

    def __getitem__(self, name: str) -> Tensor:
        return self.flat[self.layout.spans[name]].view(self.layout.shape(name))

    def named(self) -> dict[str, Tensor]:
        """Name → tensor; the tensors are views into the flat vector."""
        pairs = zip(self.layout.spans.items(), self.layout.shapes, strict=True)
        return {name: self.flat[span].view(shape) for (name, span), shape in pairs}

    def copy(self) -> "Tensors":
        """A copy with memory of its own."""
        return Tensors(self.layout, self.flat.clone())

    def to(self, device: torch.device) -> "Tensors":
        """The tensors on a device; itself if they are there."""
        return self if self.flat.device == device else Tensors(self.layout, self.flat.to(device))

    def only(self, names: Iterable[str]) -> "Tensors":
        """The tensors with the given names, in this layout's order; itself if these are all."""
        layout = self.layout.only(names)
        if layout == self.layout:
            return self
        parts = [self.flat[self.layout.spans[name]] for name in layout.names]
        return Tensors(layout, torch.cat(parts) if parts else torch.zeros(0))

    def write(self, other: "Tensors") -> None:
        """Overwrite, in place, the tensors that ``other`` has."""
        if other.layout == self.layout:
            self.flat.copy_(other.flat)
            return
        for name, span in other.layout.spans.items():
            self.flat[self.layout.spans[name]].copy_(other.flat[span])

    def same_bits(self, other: "Tensors") -> bool:
        """Whether two are equal bit for bit."""
        return self.layout == other.layout and torch.equal(self.flat.view(torch.int32), other.flat.view(torch.int32))


WIDE = 1e18  # of two weights this far apart the smaller one counts for nothing
NOTHING = Tensors.zeros(Layout((), ()))


@dataclass
class WeightedMean:
    """Σ wᵢ·xᵢ / Σ sᵢ as a running sum: memory for one sum, however many silos there are. sᵢ is wᵢ unless it is given.

    An xᵢ may hold only some of the tensors; each tensor is averaged over those that sent it, and a tensor that
    nobody sent stays zero.
    """

    layout: Layout
    _sum: Tensor = field(init=False)
    _weights: list[float] = field(init=False)
    _unit: float = 1.0

    def __post_init__(self) -> None:
        self._sum = torch.zeros(self.layout.size)
        self._weights = [0.0] * len(self.layout.names)

    def add(self, update: Tensors, weight: float, share: float | None = None) -> None:
        """Add an update with its weight; ``share``: what it adds to the denominator, by default the weight."""
        weight, share = self._in_units(weight, weight if share is None else share)
        if update.layout == self.layout:
            self._sum.add_(update.flat, alpha=weight)
            self._weights = [total + share for total in self._weights]
            return
        position = {name: i for i, name in enumerate(self.layout.names)}
        for name, span in update.layout.spans.items():
            self._sum[self.layout.spans[name]].add_(update.flat[span], alpha=weight)
            self._weights[position[name]] += share

    def _in_units(self, weight: float, share: float) -> tuple[float, float]:
        """Only ratios of weights count. Where they leave float32's range (a softmax may), the largest is the unit."""
        begun = any(self._weights)
        if weight > WIDE * self._unit or (not begun and 0 < weight * WIDE < self._unit):
            if begun:
                self._sum.mul_(self._unit / weight)
                self._weights = [total * (self._unit / weight) for total in self._weights]
            self._unit = weight
        return weight / self._unit, share / self._unit

    def mean(self) -> Tensors:
        """The mean so far; it takes over the sum's buffer, so ask once."""
        if len(set(self._weights)) == 1:
            if self._weights[0] > 0:
                self._sum.div_(self._weights[0])
        else:
            for name, weight in zip(self.layout.names, self._weights, strict=True):
                if weight > 0:
                    self._sum[self.layout.spans[name]].div_(weight)
        return Tensors(self.layout, self._sum)


def is_finite(flat: Tensor) -> bool:
    """One pass, no temporary: a sum is NaN or infinite exactly when a value is, or when values are absurdly large."""
    return isfinite(float(flat.sum(dtype=torch.float32))) if flat.numel() else True


def stack(updates: Sequence[Tensors]) -> Tensor:
    """Updates as rows, for rules that must see each one on its own."""
    return torch.stack([u.flat for u in updates])
