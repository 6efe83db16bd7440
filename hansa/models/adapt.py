"""What of a model is trained, and so travels: all of it, all but its embeddings, its head alone, or low-rank additions
and the head.

    LoRA: W ← W + (α/r)·B·A, A random, B zero at the start; W stays as it came (Hu et al., 2022, Section 4.1), by PEFT.

The head is what lies outside `base_model`. Additions are made in every linear layer of every block. Embeddings that
stay as they came do not tell which tokens a silo used (privacy/gradient.py).
"""

from copy import deepcopy
from typing import Any

from torch import nn

from hansa.core.errors import ConfigError
from hansa.core.model_parts import block_lists, parts
from hansa.core.seeds import torch_seeded
from hansa.models.settings import Model


def adapt(model: Any, settings: Model, seed: int) -> Any:
    """Freeze what is not trained; additions depend on the seed alone, so that every site has the same."""
    if settings.adapt == "full":
        return model
    if settings.adapt == "frozen-embeddings":
        part = parts(model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(part[name] != "embeddings")
        return model
    inside = {id(p) for p in model.base_model.parameters()}
    if settings.adapt == "lora":
        with torch_seeded(seed, "low-rank additions"):
            _add_lora(model, settings)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name or id(parameter) not in inside)
    return model


def _add_lora(model: Any, settings: Model) -> None:
    try:
        from peft import LoraConfig
        from peft.tuners.lora import LoraModel
    except ImportError:
        raise ConfigError("model.adapt is 'lora', which needs PEFT: pip install 'hansa[lora]'") from None
    blocks = tuple(f"{name}." for name in block_lists(model))
    targets = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name.startswith(blocks)
    ]
    chosen = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=targets)
    LoraModel(model, {"default": chosen}, "default")


def merge_adapters(model: Any) -> Any:
    """The model with its additions worked into the weights: a plain one that needs no PEFT to load."""
    if not any("lora_" in name for name, _ in model.named_parameters()):
        return model
    plain = deepcopy(model)
    for name, module in list(plain.named_modules()):
        if hasattr(module, "get_base_layer"):
            module.merge()
            parent, _, child = name.rpartition(".")
            setattr(plain.get_submodule(parent), child, module.get_base_layer())
    return plain
