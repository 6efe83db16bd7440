"""Which tensors of a model are trained and sent: all, all but the embeddings, the head, or LoRA adapters and the head.

    LoRA: W ← W + (α/r)·B·A, A random, B zero at the start; W stays as it came (Hu et al., 2022, Section 4.1), by PEFT.

The head is everything outside `base_model`. Every linear layer of every block gets an adapter. The update of trained
embeddings reveals which tokens a silo used (`hansa.attacks`); frozen embeddings do not.
"""

from copy import deepcopy
from typing import Any

from torch import nn

from hansa.core.errors import ConfigError
from hansa.core.model_parts import block_lists, parts
from hansa.core.seeds import torch_seeded
from hansa.models.settings import Model


def adapt(model: Any, settings: Model, seed: int) -> Any:
    """Freeze the tensors that are not trained, and add adapters if ``settings.adapt`` is ``lora``.

    The adapters' initial values depend on the seed only, so that all nodes start with the same.
    """
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
    """The model with its adapters merged into the weights, so that it can be loaded without PEFT."""
    if not any("lora_" in name for name, _ in model.named_parameters()):
        return model
    plain = deepcopy(model)
    for name, module in list(plain.named_modules()):
        if hasattr(module, "get_base_layer"):
            module.merge()
            parent, _, child = name.rpartition(".")
            setattr(plain.get_submodule(parent), child, module.get_base_layer())
    return plain
