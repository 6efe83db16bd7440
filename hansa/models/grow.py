"""Add layers to a trained model so that its outputs do not change, or hardly change.

An added layer is a copy of the layer before it (at position 0, of the layer after it) in which the last projection of
each residual branch is zero, so that its output is its input. This is exact in models that normalise before the
branches (T5, Llama, GPT-2); models that normalise after them (BERT, BART, Marian) apply one more normalisation. The
zeros get gradients from the first step, because the rest of the branch is not zero.
"""

import re
from copy import deepcopy
from typing import TYPE_CHECKING

import torch

from hansa.core.errors import ConfigError
from hansa.core.model_parts import block_lists

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COUNTS = ("encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers", "num_hidden_layers")
# Names of the last projection of a residual branch in the model families.
BRANCH_END = re.compile(
    r"(\b|_)(o_proj|out_proj|out_lin|o|[wW]o|fc2|lin2|c_proj|down_proj|dense_4h_to_h|output\.dense|attention\.dense)$"
)


def add_layers(model: "PreTrainedModel", places: tuple[int, ...]) -> "PreTrainedModel":
    """The model with a layer added at every given position of each stack, counted from 0 in the larger stack.

    Raises `ConfigError` if a position does not exist or the architecture is not supported.
    """
    stacks = {name: len(model.get_submodule(name)) for name in block_lists(model)}
    for name, layers in stacks.items():
        if max(places) >= layers + len(places):
            raise ConfigError(
                f"model.added names position {max(places)}, but with {len(places)} more layers '{name}' has "
                f"{layers + len(places)}, counted from 0"
            )
    config = deepcopy(model.config)
    for key in {config.attribute_map.get(key, key) for key in COUNTS}:  # names differ between model families
        if getattr(config, key, None) in stacks.values():
            setattr(config, key, getattr(config, key) + len(places))
    if getattr(config, "layer_types", None):
        [layers] = stacks.values()
        config.layer_types = [config.layer_types[_origin(i, layers, places)] for i in range(layers + len(places))]
    larger: PreTrainedModel = type(model)(config)
    old, new = model.state_dict(), larger.state_dict()
    ends = 0
    for key in new:
        source, added = _source(key, stacks, places)
        if source not in old or old[source].shape != new[key].shape:
            raise ConfigError(f"model.added: layers cannot be added to a {type(model).__name__} ({key} has no source)")
        end = added and BRANCH_END.search(key.rpartition(".")[0]) is not None
        ends += end
        new[key] = torch.zeros_like(new[key]) if end else old[source]
    if not ends or len(new) <= len(old):
        raise ConfigError(f"model.added: layers cannot be added to a {type(model).__name__} (unknown projections)")
    larger.load_state_dict(new)
    return larger


def _source(key: str, stacks: dict[str, int], places: tuple[int, ...]) -> tuple[str, bool]:
    """The tensor of the old model that a new tensor is copied from, and whether it belongs to an added layer."""
    for stack, layers in stacks.items():
        if key.startswith(stack + "."):
            index, _, rest = key.removeprefix(stack + ".").partition(".")
            return f"{stack}.{_origin(int(index), layers, places)}.{rest}", int(index) in places
    return key, False


def _origin(index: int, layers: int, places: tuple[int, ...]) -> int:
    """The old layer that the new layer ``index`` is copied from."""
    below = sum(place < index for place in places)
    return min(max(index - below - (index in places), 0), layers - 1)
