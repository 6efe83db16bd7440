"""The traffic of a round, predicted for `hansa check`; the ledger has the measured traffic.

    down     the model, to each of the n silos that take part; as a difference, encoded as ``download`` says
    up       their updates, compressed as the ``upload`` section says
    exchange at most p numbers from each silo: n·p up, and to each silo those of the other silos, n·(n − 1)·p down

For FedKC p is q·(d + k), or q·(T·d + k) with all layers; the paper counts a broadcast once, which gives 2·n·p in total.
Headers are not counted.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch
from torch import nn

from hansa.core import representations as inside
from hansa.core import wire
from hansa.core.compression import Compression, CompressorChain, OutgoingUpdate, UploadState
from hansa.core.encoding import EncodedUpdate
from hansa.core.knowledge import Sizes
from hansa.core.messages import Update
from hansa.core.method import Method
from hansa.core.model_parts import parts, sides
from hansa.core.tensors import NOTHING, Layout, Tensors
from hansa.models.adapt import carried

NUMBER = 4  # bytes
TRIED = 5_000_000  # numbers at most that are compressed to measure the compression ratio


@dataclass(frozen=True)
class Traffic:
    """Bytes of one round, over all silos."""

    model: int  # down
    updates: int  # up
    knowledge_up: int
    knowledge_down: int
    residuals: int = 0  # down: part of ``model``, the residuals of adapters whose products are aggregated

    @property
    def total(self) -> int:
        """All bytes of a round."""
        return self.model + self.updates + self.knowledge_up + self.knowledge_down

    @property
    def line(self) -> str:
        """The traffic in words."""
        up, down = self.knowledge_up / 1e6, self.knowledge_down / 1e6
        growth = self.model / max(1, self.model - self.residuals)
        residuals = f" ({growth:.1f} times the adapters, by the residuals of their products)" if self.residuals else ""
        exchange = f", the exchange {up:,.2f} up and {down:,.2f} down" if self.knowledge_up else ""
        return (
            f"{self.total / 1e6:,.1f} MB per round: the model {self.model / 1e6:,.1f} down{residuals}, updates "
            f"{self.updates / 1e6:,.1f} up{exchange}"
        )


def predict_traffic(model: Any, method: Method, silos: int, labels: int, length: int) -> Traffic:
    """The traffic of a round with ``silos`` silos; the model may be on the meta device."""
    trained = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    whole = Layout(tuple(trained), tuple(trained.values()))
    layout = whole.only(method.scope.shared(whole, parts(model)))
    ratio = compression_ratio(method.upload, layout, model) if layout.names else 0.0
    size = NUMBER * layout.size * silos
    shared = 0
    if method.exchange is not None and silos > 1:
        width = model.get_input_embeddings().weight.shape[1]
        sizes = Sizes(width, inside.last_linear(model).in_features, labels, length)
        shared = NUMBER * method.exchange.numbers(sizes) * silos
    down = round(size * (ratio if method.upload.both_ways else 1.0))
    if method.download and layout.names:
        down = round(size * compression_ratio(CompressorChain(method.download), layout, model))
    residuals = NUMBER * silos * sum(model.get_parameter(name).numel() for name in carried(model))
    return Traffic(down + residuals, round(size * ratio), shared, shared * (silos - 1), residuals)


def compression_ratio(upload: Compression, layout: Layout, model: Any) -> float:
    """The share of an update's bytes that a compression sends, measured on random values.

    Two rounds are compressed, because some compressors send everything in the first. Of a large model only a part of
    every tensor is used.
    """
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
        update = OutgoingUpdate(gradient, state, round, "silo", 0, sides(model), tables, before)
        sent, before = upload.compress(update), update.kept
    plain = Update(NOTHING, 0, 0, 0, 0.0, 0.0)
    reply = replace(plain, encoded=sent) if isinstance(sent, EncodedUpdate) else replace(plain, gradient=sent)
    return wire.payload(reply) / (NUMBER * small.size)
