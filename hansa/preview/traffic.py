"""What a round will send, worked out before anything is sent: for `hansa check`. The ledger has what was really sent.

    the model to each of the n silos that take part, their updates back, as 'upload' leaves them
    in an exchange, p numbers told by each silo at most: n·p up, and to each silo those of the others, n·(n − 1)·p down

For FedKC p is q·(d + k), or q·(T·d + k) with all layers; the paper counts a broadcast once and so has 2·n·p in all.
Headers are not counted.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch
from torch import nn

from hansa.core import representations as inside
from hansa.core import wire
from hansa.core.compression import Compression, OutgoingUpdate, UploadState
from hansa.core.encoding import EncodedUpdate
from hansa.core.knowledge import Sizes
from hansa.core.messages import Update
from hansa.core.method import Method
from hansa.core.model_parts import parts, sides
from hansa.core.tensors import NOTHING, Layout, Tensors

NUMBER = 4  # bytes
TRIED = 5_000_000  # numbers, at most, on which an upload is tried


@dataclass(frozen=True)
class Traffic:
    """Bytes of one round, in all."""

    model: int  # down
    updates: int  # up
    told: int  # up
    heard: int  # down

    @property
    def total(self) -> int:
        return self.model + self.updates + self.told + self.heard

    @property
    def line(self) -> str:
        told = f", the exchange {self.told / 1e6:,.2f} up and {self.heard / 1e6:,.2f} down" if self.told else ""
        return (
            f"{self.total / 1e6:,.1f} MB per round: the model {self.model / 1e6:,.1f} down, updates "
            f"{self.updates / 1e6:,.1f} up{told}"
        )


def foretell(model: Any, method: Method, silos: int, labels: int, length: int) -> Traffic:
    """The traffic of a round with so many silos, of a model whose values need not be there."""
    trained = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    whole = Layout(tuple(trained), tuple(trained.values()))
    layout = whole.only(method.scope.shared(whole, parts(model)))
    left = share(method.upload, layout, model) if layout.names else 0.0
    size = NUMBER * layout.size * silos
    told = 0
    if method.exchange is not None and silos > 1:
        width = model.get_input_embeddings().weight.shape[1]
        sizes = Sizes(width, inside.last_linear(model).in_features, labels, length)
        told = NUMBER * method.exchange.numbers(sizes) * silos
    return Traffic(
        round(size * (left if method.upload.both_ways else 1.0)), round(size * left), told, told * (silos - 1)
    )


def share(upload: Compression, layout: Layout, model: Any) -> float:
    """What an upload leaves of an update's bytes, tried twice on random values, since some begin with everything. A
    large model is tried on a part of every tensor."""
    part = ceil(layout.size / TRIED)
    shapes = tuple((ceil(shape[0] / part), *shape[1:]) if shape else () for shape in layout.shapes)
    small, generator = Layout(layout.names, shapes), torch.Generator().manual_seed(0)
    tables = frozenset(
        f"{name}.{weight}"
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        for weight, _ in module.named_parameters()
    )
    before: UploadState | None = None
    sent: Tensors | EncodedUpdate = NOTHING
    for round in (1, 2):
        gradient = Tensors(small, torch.randn(small.size, generator=generator))
        state = Tensors(small, torch.randn(small.size, generator=generator))
        leaving = OutgoingUpdate(gradient, state, round, "silo", 0, sides(model), tables, before)
        sent, before = upload.compress(leaving), leaving.kept
    plain = Update(NOTHING, 0, 0, 0, 0.0, 0.0)
    left = replace(plain, encoded=sent) if isinstance(sent, EncodedUpdate) else replace(plain, gradient=sent)
    return wire.payload(left) / (NUMBER * small.size)
