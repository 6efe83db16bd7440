"""The tensors that safetensors files list, read from their headers, and the tensors that a configuration implies.

A configuration is checked against the files before a model is built: the model is laid out on torch's device ``meta``,
which allocates nothing, and building stops as soon as it has more parameters than the files can hold.
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from hansa.core.errors import ConfigError, printable
from hansa.models.build import ONE_AT_A_TIME
from hansa.models.library import transformers

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors", re.ASCII)
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}
MAX_HEADER_BYTES = 32 << 20
MAX_TENSORS = 100_000
SPARE_PARAMETERS = 64  # that may be registered and then tied or replaced
HEADS = {
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "AutoModelForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING",
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
}


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as a header lists it."""

    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Footprint:
    """The memory of a model in float32: bytes of its parameters, and of its buffers."""

    parameters: int
    buffers: int


def shards(files: Mapping[str, memoryview], index: Callable[[], dict[str, Any]]) -> list[str]:
    """The names of the files with weights; raises `ConfigError` if the index names a file that is not among them."""
    found = sorted(name for name in files if SHARD.fullmatch(name))
    if WEIGHTS in files and (found or INDEX in files):
        raise ConfigError(f"it has both {WEIGHTS} and weights in several files")
    if WEIGHTS in files:
        return [WEIGHTS]
    if not found or INDEX not in files:
        raise ConfigError(f"it has neither {WEIGHTS} nor weights in several files with {INDEX}")
    given = index()
    places = given.get("weight_map")
    if set(given) - {"metadata", "weight_map"} or not isinstance(places, dict):
        raise ConfigError(f"its {INDEX} is not an index of weights")
    if not all(isinstance(place, str) for place in places.values()) or set(places.values()) != set(found):
        raise ConfigError(f"its {INDEX} does not name exactly the files with weights beside it")
    for shard in found:
        named = {tensor for tensor, place in places.items() if place == shard}
        if named != read_header(files[shard], shard).keys():
            raise ConfigError(f"its {INDEX} and its {shard} list different tensors")
    return found


def read_header(data: memoryview, name: str) -> dict[str, TensorInfo]:
    """The tensors of a safetensors file; raises `ConfigError` unless they fill the file without gaps and overlaps."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(MAX_HEADER_BYTES, len(data) - 8):
        raise ConfigError(f"its {name} is not a safetensors file")
    try:
        listed = json.loads(bytes(data[8 : 8 + size]))
        listed.pop("__metadata__", None)
        ordered = sorted(listed.items(), key=lambda item: item[1]["data_offsets"])
        found, end = {}, 0
        for tensor, info in ordered:
            shape, (first, last) = tuple(info["shape"]), info["data_offsets"]
            needed = prod(shape) * BYTES[info["dtype"]]
            if first != end or last - first != needed or not all(type(n) is int and n >= 0 for n in shape):
                raise ValueError(tensor)
            found[tensor], end = TensorInfo(shape, needed), last
        if end != len(data) - 8 - size or len(found) > MAX_TENSORS:
            raise ValueError(end)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ConfigError(f"its {name} is not a safetensors file that is filled by its tensors") from None
    return found


def check_tensors(config: Any, tensors: Mapping[str, TensorInfo]) -> Footprint:
    """Compare the tensors of the files with those that a configuration implies; return the memory that they need.

    Raises `ConfigError` if the files lack a tensor, have another one, or have one of another shape.
    """
    model = _layout(config, len(tensors))
    aliases: dict[int, list[str]] = {}  # tied tensors have several names, and files have one of them
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        aliases.setdefault(id(tensor), []).append(name)
    for name in tensors.keys() & state.keys():
        if tensors[name].shape != tuple(state[name].shape):
            raise ConfigError(
                f"its tensor {printable(name, 100)!r} has the shape {list(tensors[name].shape)}, and its configuration "
                f"implies {list(state[name].shape)}"
            )
    left_out = set(getattr(model, "_keys_to_ignore_on_save", None) or ())  # constants, such as sinusoidal positions
    missing = [names[0] for names in aliases.values() if not tensors.keys() & {*names} and not left_out & {*names}]
    extra = [name for name in tensors if name not in state]
    # Some families have other names in their files than in memory; how many there are and their shapes must agree.
    if Counter(tensors[name].shape for name in extra) != Counter(tuple(state[name].shape) for name in missing):
        named = printable(min(extra or missing), 100)
        raise ConfigError(f"its files {'have' if extra else 'lack'} a tensor {named!r}, unlike its configuration")
    parameters = {id(tensor): tensor.numel() for tensor in model.parameters()}
    return Footprint(
        4 * sum(parameters.values()), sum(tensor.numel() * tensor.element_size() for tensor in model.buffers())
    )


def _layout(config: Any, listed: int) -> nn.Module:
    """The model of a configuration on the device ``meta``, if it has about as many parameters as there are tensors."""
    named = config.architectures or []
    library = transformers()
    heads = {auto: _names(getattr(library, mapping), config) for auto, mapping in HEADS.items()}
    auto = next((auto for auto, names in heads.items() if len(named) == 1 and named[0] in names), None)
    if auto is None:
        raise ConfigError("its config.json names an architecture that transformers does not have for a task of Hansa")
    try:
        with ONE_AT_A_TIME, torch.device("meta"), _at_most(2 * listed + SPARE_PARAMETERS):
            model: nn.Module = getattr(library, auto).from_config(
                config, attn_implementation="eager", trust_remote_code=False
            )
    except ConfigError:
        raise
    except Exception as error:  # a configuration can contradict itself in many ways
        raise ConfigError(f"no model can be built from its config.json ({type(error).__name__})") from None
    return model


def _names(mapping: Any, config: Any) -> tuple[str, ...]:
    """The names of the classes that a mapping of transformers has for a configuration."""
    found = mapping.get(type(config), None)
    classes = found if isinstance(found, tuple) else (found,) if found is not None else ()
    return tuple(cls.__name__ for cls in classes)


@contextmanager
def _at_most(parameters: int) -> Iterator[None]:
    """Raise `ConfigError` in this thread when more parameters are made, however many layers a configuration names."""
    made, thread = 0, threading.get_ident()

    def count(_module: nn.Module, _name: str, _parameter: nn.Parameter) -> None:
        """Count a tensor that this thread registers; raises `ConfigError` beyond the limit."""
        nonlocal made
        if threading.get_ident() != thread:
            return
        made += 1
        if made > parameters:
            raise ConfigError("its config.json implies more tensors than its files have")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
