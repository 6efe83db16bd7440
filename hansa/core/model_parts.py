"""Name the parts of any transformer by structure, not by one architecture's names.

    embeddings · block.0 … block.n (of an encoder–decoder: encoder.block.i, decoder.block.i) · norm · head

A *block list* is an outermost ModuleList whose members have parameters and are all of one class. The head is what lies
outside `base_model`. What is left beside the embeddings (final norms, poolers) is `norm`.
"""

import re
from collections.abc import Iterable
from typing import Any

from torch import nn


def parts(model: Any) -> dict[str, str]:
    """Parameter name → part name, for every parameter of a Hugging Face model."""
    lists = block_lists(model)
    encoder, decoder = _sides(model)
    base = getattr(model, "base_model", model)
    base_ids = {id(p) for p in base.parameters()}
    embedding_ids = _embedding_parameters(model, base)

    def part(name: str, parameter: nn.Parameter) -> str:
        """The part that a parameter belongs to: a block, the embeddings, a norm or the head."""
        for prefix in lists:
            if name.startswith(prefix + "."):
                index = name[len(prefix) + 1 :].split(".")[0]
                module = model.get_submodule(prefix)
                side = "encoder." if id(module) in encoder else "decoder." if id(module) in decoder else ""
                return f"{side}block.{index}"
        if id(parameter) in embedding_ids:
            return "embeddings"
        return "norm" if id(parameter) in base_ids else "head"

    return {name: part(name, parameter) for name, parameter in model.named_parameters()}


def sides(model: Any) -> dict[str, str]:
    """Parameter name → the side it belongs to: encoder, decoder, or `model` where there are no sides.

    A shared table is the encoder's, the head the decoder's.
    """
    encoder = {id(p) for p in model.get_encoder().parameters()} if _two_sided(model) else set()

    def side(parameter: nn.Parameter) -> str:
        """The side of one parameter: encoder, decoder, or `model` in a model without sides."""
        return "encoder" if id(parameter) in encoder else "decoder" if encoder else "model"

    return {name: side(parameter) for name, parameter in model.named_parameters()}


def matching(model: Any, patterns: Iterable[str]) -> list[str]:
    """Parameter names whose part is, or lies inside, one of the given parts (`encoder` has all encoder blocks)."""
    wanted = list(patterns)
    return [n for n, p in parts(model).items() if any(p == w or p.startswith(w + ".") for w in wanted)]


def block_lists(model: nn.Module) -> list[str]:
    """The names of the module lists that hold the model's transformer blocks."""
    found: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or any(name.startswith(outer + ".") for outer in found):
            continue
        kinds = {type(child) for child in module}
        if len(kinds) == 1 and all(any(True for _ in child.parameters()) for child in module):
            found.append(name)
    # A head may keep a small list of its own: block lists are those with the most parameters inside.
    size = {n: sum(p.numel() for p in model.get_submodule(n).parameters()) for n in found}
    largest = max(size.values(), default=0)
    return [n for n in found if size[n] >= 0.2 * largest]


def _sides(model: Any) -> tuple[set[int], set[int]]:
    if not _two_sided(model):
        return set(), set()
    encoder, decoder = model.get_encoder(), model.get_decoder()
    return {id(m) for m in encoder.modules()}, {id(m) for m in decoder.modules()}


def _two_sided(model: Any) -> bool:
    return bool(getattr(model.config, "is_encoder_decoder", False))


def _embedding_parameters(model: Any, base: nn.Module) -> set[int]:
    """Every embedding table, and the norms and projections beside the input table in an embedding module."""
    found = {id(p) for m in base.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    table = model.get_input_embeddings()
    for name, module in base.named_modules():
        owns_table = any(child is table for child in module.children())
        if owns_table and re.search(r"embed", name.rsplit(".", 1)[-1]):
            found |= {id(p) for p in module.parameters()}
    return found
