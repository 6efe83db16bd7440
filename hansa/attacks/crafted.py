"""Crafted models: weights chosen so that the update of a silo spells out the tokens that it trained on.

Fowl et al. (2022), Robbing the Fed; Fowl et al. (2023), Decepticons, Section 4. They rebuild the first block:

    attention   its output layer is zero, so that every position passes through by itself: x
    bins        row k of the first feed-forward layer is s·m, its bias −s·cₖ, c₁ < c₂ < …: neuron k fires where the
                measurement m·x exceeds cₖ, so the gradient of row k is ±Σ gₜ·xₜ over the tokens t with m·xₜ > cₖ
    difference  of rows k and k + 1: gₜ·xₜ of the tokens between two thresholds; where it is a single one, its direction
                is that of x, and the nearest of all (token, position) gives both

    m: a random direction; cₖ: quantiles of m·x over the vocabulary and all positions; s: sharpness, since GELU is a
    smooth gate; gₜ: the loss gradient of token t along the layer behind, whose columns are ±v

An update is a difference of float32 weights, so it must not be small beside them: the norm behind the attention
multiplies x by `Craft.stretch`, so that rows are small and their gradients large; the columns of the layer behind the
bins alternate in sign, so that the outputs of neighbouring neurons cancel; the attention of later blocks passes the
mean of all positions on, so that every token has a gradient; the head is multiplied by `Craft.amplify`.

Where only adapters are trained (LoRA), the base weights do not travel and there are no rows for bins. The crafted
adapters then have a second matrix that is not zero, so that the first one's gradient lies in the span of the inputs.

`within` limits the distance from the honest model, part by part: the knob that a check of received models turns.

Deviations: tokens and positions are recovered, not which text they belong to (Decepticons, Section 4.3).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hansa.attacks.gradient import CHUNK, input_of
from hansa.attacks.victim import embedding_table
from hansa.core.errors import UserError
from hansa.core.model_parts import block_lists
from hansa.core.seeds import derive
from hansa.core.tensors import Tensors

MIN_COSINE = 0.9  # of a difference of rows and the input that it is taken for; mixtures of tokens lie below


@dataclass(frozen=True)
class Craft:
    """How a crafted model is made: how many neurons become bins, their sharpness s, and the factor on the head."""

    bins: int | None = None  # None: every neuron of the layer
    sharpness: float = 1000.0
    stretch: float = 1000.0
    amplify: float = 10.0
    mix: bool = True  # whether the attention of later blocks is replaced, too
    seed: int = 0


@dataclass(frozen=True)
class FirstBlock:
    """The names of the modules of the first block that are rebuilt."""

    attention: str  # its output layer
    norm: str  # the layer norm behind it
    up: str  # the first feed-forward layer
    down: str  # the second
    later: tuple[tuple[str, str], ...]  # of every later block: value and output layer of its attention


def first_block(model: Any) -> FirstBlock:
    """Find the layers by their shapes; raises `UserError` for a block without a plain feed-forward network."""
    found = block_lists(model)
    blocks = [_layers(model, f"{found[0]}.{i}.") for i in range(len(model.get_submodule(found[0])))] if found else []
    fits = [len(square) >= 2 and len(up) == len(down) == 1 and bool(norms) for square, up, down, norms in blocks]
    if len(blocks) < 2 or not all(fits):
        raise UserError(
            "a crafted model needs an encoder of at least two blocks, each with attention, layer norms and a "
            "feed-forward network of two layers (BERT, RoBERTa, …); attack a run with such a model"
        )
    square, [up], [down], norms = blocks[0]
    return FirstBlock(square[-1], norms[0], up, down, tuple((one[-2], one[-1]) for one, *_ in blocks[1:]))


def _layers(model: Any, block: str) -> tuple[list[str], list[str], list[str], list[str]]:
    """The linear layers of a block that keep the width, enlarge it and reduce it, and its layer norms, in order."""
    shapes = [
        (name.removesuffix(".base_layer"), m.in_features, m.out_features)
        for name, m in model.named_modules()
        if name.startswith(block) and isinstance(m, nn.Linear) and "lora_" not in name
    ]
    norms = [n for n, m in model.named_modules() if n.startswith(block) and isinstance(m, nn.LayerNorm)]
    return (
        [name for name, inner, outer in shapes if inner == outer],
        [name for name, inner, outer in shapes if inner < outer],
        [name for name, inner, outer in shapes if inner > outer],
        norms,
    )


def measurement(width: int, seed: int) -> Tensor:
    """The random direction m, of length one."""
    drawn = torch.randn(width, generator=torch.Generator().manual_seed(derive(seed, "measurement")))
    found: Tensor = drawn / drawn.norm()
    return found


def craft(model: Any, honest: Tensors, how: Craft, length: int, vocabulary: int, types: int = 1) -> Tensors:
    """The crafted values of the tensors that travel; ``model`` holds the honest ones.

    ``length``: positions of a text. Raises `UserError` for a model that the attack does not apply to.
    """
    names, crafted = first_block(model), honest.copy()
    if f"{names.up}.weight" not in honest.layout.spans:
        return _adapters(crafted, how)
    crafted[f"{names.attention}.weight"].zero_()
    crafted[f"{names.attention}.bias"].zero_()
    crafted[f"{names.norm}.weight"].fill_(how.stretch)
    crafted[f"{names.norm}.bias"].zero_()
    for value, output in names.later if how.mix else ():
        for name in (value, output):
            crafted[f"{name}.weight"].copy_(torch.eye(crafted[f"{name}.weight"].shape[0]))
            crafted[f"{name}.bias"].zero_()
    up, bias, down = crafted[f"{names.up}.weight"], crafted[f"{names.up}.bias"], crafted[f"{names.down}.weight"]
    bins = min(how.bins or len(up), len(up))
    m = measurement(up.shape[1], how.seed)
    with loaded(model, crafted, honest):
        measured = inputs(model, names.up, length, vocabulary, types).reshape(-1, up.shape[1]) @ m
    # A single bin is the upper tail: the thresholds of few bins are those of the largest measurements.
    levels = torch.linspace(1 / len(up), 1 - 1 / len(up), len(up))[-bins:]
    limits = torch.from_numpy(np.quantile(measured.double().numpy(), levels.double().numpy())).float()
    sharpness = how.sharpness / how.stretch  # in units of x before it is stretched
    span = float(measured.max() - limits[0])
    v = torch.randn(len(down), generator=torch.Generator().manual_seed(derive(how.seed, "behind")))
    v *= 4.0 * how.stretch / (v.norm() * sharpness * max(span, 1e-6))
    up[:bins] = sharpness * m
    bias[:bins] = -sharpness * limits
    if bins == len(up):
        crafted[f"{names.down}.bias"].zero_()
    down[:, :bins] = v.unsqueeze(1) * signs(bins)
    _amplify(model, crafted, how.amplify)
    return crafted


def signs(bins: int) -> Tensor:
    """+1, −1, +1, … for the columns of the layer behind the bins."""
    return 1.0 - 2.0 * (torch.arange(bins) % 2)


def _adapters(crafted: Tensors, how: Craft) -> Tensors:
    """Adapters with a second matrix that is not zero; raises `UserError` where no adapters are trained."""
    second = [name for name in crafted.layout.names if "lora_B" in name]
    if not second:
        raise UserError("no layer inside the blocks is trained, so no crafted model can read their inputs")
    generator = torch.Generator().manual_seed(derive(how.seed, "adapters"))
    for name in second:
        crafted[name].copy_(torch.randn(crafted.layout.shape(name), generator=generator))
    return crafted


def _amplify(model: Any, crafted: Tensors, factor: float) -> None:
    """Multiply the last weight of the head that is not the embedding table: the gradients behind it grow with it."""
    base = {id(p) for p in model.base_model.parameters()}
    named = [n for n, p in model.named_parameters() if id(p) not in base and n.endswith("weight")]
    if (last := [n for n in named if n in crafted.layout.spans]) != []:
        crafted[last[-1]].mul_(factor)


class loaded:
    """Within the context, the model holds the crafted values; afterwards the honest ones."""

    def __init__(self, model: Any, crafted: Tensors, honest: Tensors) -> None:
        self.model, self.crafted, self.honest = model, crafted, honest

    def __enter__(self) -> None:
        _write(self.model, self.crafted)

    def __exit__(self, *_: object) -> None:
        _write(self.model, self.honest)


def _write(model: Any, values: Tensors) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in values.layout.spans:
                parameter.copy_(values[name])


def inputs(model: Any, layer: str, length: int, vocabulary: int, types: int = 1) -> Tensor:
    """What a layer receives of every token at every position: tokens × positions × width."""
    table = embedding_table(model, vocabulary, types)
    found = [
        input_of(model, layer, table[start : start + CHUNK].unsqueeze(1).expand(-1, length, -1))
        for start in range(0, len(table), CHUNK)
    ]
    return torch.cat(found)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────


def read_bins(
    update: Mapping[str, Tensor], model: Any, how: Craft, special: NDArray[np.bool_], length: int, types: int = 1
) -> set[tuple[int, int]] | None:
    """The (token, position) pairs that an update spells out; None if the layer of the bins is not in it.

    ``model`` holds the crafted weights.
    """
    layer = first_block(model).up
    if f"{layer}.weight" not in update:
        return None
    rows = update[f"{layer}.weight"]
    bins = min(how.bins or len(rows), len(rows))
    signed = rows[:bins] * signs(bins).unsqueeze(1)
    between = signed - torch.cat([signed[1:], torch.zeros_like(signed[:1])])
    sizes = between.norm(dim=1)
    between = between[sizes > 1e-30] / sizes[sizes > 1e-30].unsqueeze(1)
    known = inputs(model, layer, length, len(special), types)
    best = torch.zeros(len(between))
    which = torch.zeros(len(between), dtype=torch.long)
    flat = known.reshape(-1, known.shape[-1])
    for start in range(0, len(flat), 1 << 16):
        part = flat[start : start + (1 << 16)]
        cosines = (between @ (part / part.norm(dim=1, keepdim=True).clamp_min(1e-30)).T).abs()
        top = cosines.max(dim=1)
        better = top.values > best
        best = torch.where(better, top.values, best)
        which = torch.where(better, top.indices + start, which)
    found = which[best > MIN_COSINE].tolist()
    pairs = {(index // length % len(special), index % length) for index in found}
    return {(token, position) for token, position in pairs if not special[token]}


# ── distance ──────────────────────────────────────────────────────────────────────────────────────────────────────


def distances(crafted: Tensors, honest: Tensors, parts: Mapping[str, str]) -> dict[str, float]:
    """Part of the model → ‖crafted − honest‖ / ‖honest‖, over the tensors of the part that travel."""
    moved: dict[str, float] = {}
    whole: dict[str, float] = {}
    for name in honest.layout.names:
        part = parts[name]
        moved[part] = moved.get(part, 0.0) + float((crafted[name] - honest[name]).square().sum())
        whole[part] = whole.get(part, 0.0) + float(honest[name].square().sum())
    return {part: (moved[part] / max(whole[part], 1e-30)) ** 0.5 for part in moved}


def within(crafted: Tensors, honest: Tensors, parts: Mapping[str, str], limit: float) -> Tensors:
    """The crafted model, drawn towards the honest one until each part is within a relative distance of it."""
    near, far = crafted.copy(), distances(crafted, honest, parts)
    for name in honest.layout.names:
        share = min(1.0, limit / max(far[parts[name]], 1e-30))
        near[name].copy_(torch.lerp(honest[name], crafted[name], share))
    return near
