"""Which tensors of a model are trained and sent: all, all but the embeddings, the head, or LoRA adapters.

    LoRA: W ← W + s·B·A, A random, B zero at the start; W stays as it came (Hu et al., 2022, Section 4.1), by PEFT.

The head is everything outside `base_model`. With LoRA, only a head that is *new* is trained: the language-model head
of a pre-trained causal model has its values already. Every linear layer of every block gets an adapter, or those that
``lora.targets`` names. The update of trained embeddings reveals which tokens a silo used (`hansa.attacks`); frozen
embeddings do not.

Where products of adapters are aggregated (``lora.aggregate: exact | stack``), every adapted layer has a second factor,
the *residual*: W + s·(B·A + B_R·A_R). The server computes it; silos receive it and do not train it.
"""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from hansa.core.errors import ConfigError, did_you_mean
from hansa.core.factors import FactorNames
from hansa.core.model_parts import block_lists, parts
from hansa.core.seeds import torch_seeded
from hansa.models.build import new_tensors
from hansa.models.settings import Lora, Model

ADAPTER, RESIDUAL = "default", "residual"  # names of PEFT's adapters


def adapt(model: Any, settings: Model, seed: int) -> Any:
    """Freeze the tensors that are not trained, and add adapters if ``settings.adapt`` is ``lora``.

    The adapters' initial values depend on the seed only, so that all nodes start with the same. Raises `ConfigError` if
    the model has no such layers, or a rank is above a layer's width.
    """
    if settings.adapt == "full":
        return model
    if settings.adapt == "frozen-embeddings":
        part = parts(model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(part[name] != "embeddings")
        return model
    inside = {id(p) for p in model.base_model.parameters()}
    head = {id(p) for p in model.parameters() if id(p) not in inside}
    new, lora = new_tensors(model), settings.lora
    if settings.adapt == "lora":
        if new is not None:
            head = {id(p) for name, p in model.named_parameters() if name in new}
        with torch_seeded(seed, "low-rank additions"):
            _add_lora(model, lora)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_trained(name, lora) if "lora_" in name else id(parameter) in head)
    _match_dtypes(model, inside)
    return model


def is_trained(name: str, lora: Lora) -> bool:
    """Whether a tensor of an adapter is trained: the residual is not, nor is A with ``aggregate: freeze-a``."""
    return f".{RESIDUAL}." not in name and not (lora.aggregate == "freeze-a" and ".lora_A." in name)


def carried(model: nn.Module) -> tuple[str, ...]:
    """The tensors that travel to the silos although no silo trains them: the residuals of adapters."""
    return tuple(name for name, _ in model.named_parameters() if "lora_" in name and f".{RESIDUAL}." in name)


def factor_names(names: Iterable[str]) -> tuple[FactorNames, ...]:
    """The adapted layers that have a residual, by the names of their tensors."""
    layers = [name.removesuffix(f".lora_A.{RESIDUAL}.weight") for name in names if f".lora_A.{RESIDUAL}." in name]
    return tuple(
        FactorNames(*(f"{layer}.lora_{matrix}.{which}.weight" for which in (ADAPTER, RESIDUAL) for matrix in "AB"))
        for layer in layers
    )


def _add_lora(model: Any, lora: Lora) -> None:
    try:
        import peft  # noqa: F401
        from peft.tuners.lora import LoraModel
    except ImportError:
        raise ConfigError("model.adapt is 'lora', which needs PEFT: pip install 'hansa[lora]'") from None
    layers = _targets(model, lora)
    config = lora_config(lora, list(layers))
    tuner = LoraModel(model, {ADAPTER: config}, ADAPTER)
    if lora.aggregate not in ("exact", "stack"):
        return
    assert lora.residual_rank is not None, "the federation's settings resolve it"
    ranks = {name: min(lora.residual_rank, *widths) for name, widths in layers.items()}
    tuner.peft_config[RESIDUAL] = residual = lora_config(lora, list(layers))
    residual.r, residual.rank_pattern, residual.lora_dropout = lora.residual_rank, ranks, 0.0
    tuner.inject_adapter(model, RESIDUAL)
    tuner.set_adapter([ADAPTER, RESIDUAL])
    for name in layers:
        layer = model.get_submodule(name)
        layer.scaling[RESIDUAL] = layer.scaling[ADAPTER]
        nn.init.zeros_(layer.lora_A[RESIDUAL].weight)


def lora_config(lora: Lora, targets: list[str]) -> Any:
    """The settings as PEFT has them."""
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        target_modules=targets,
    )


def _targets(model: Any, lora: Lora) -> dict[str, tuple[int, int]]:
    """The layers that get an adapter, with their widths; raises `ConfigError` if there are none, or one is narrow."""
    blocks = tuple(f"{name}." for name in block_lists(model))
    linear = {
        name: (module.in_features, module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.startswith(blocks)
    }
    known = {name.rsplit(".", 1)[-1] for name in linear}
    for target in lora.targets:
        if not any(_named(name, target) for name in linear):
            raise ConfigError(
                f"model.lora.targets names '{target}', which is no linear layer of the model's blocks; "
                f"{did_you_mean(target, known)}"
            )
    chosen = {
        name: widths
        for name, widths in linear.items()
        if not lora.targets or any(_named(name, target) for target in lora.targets)
    }
    if not chosen:
        raise ConfigError(
            f"model.adapt is 'lora', and the blocks of a {type(model).__name__} have no linear layers: use adapt "
            "'full' or 'frozen'"
        )
    name, widths = min(chosen.items(), key=lambda one: min(one[1]))
    if lora.rank > min(widths):
        raise ConfigError(
            f"model.lora.rank is {lora.rank}, and layer '{name}' is {widths[0]} × {widths[1]}: a rank above "
            f"{min(widths)} adds nothing; lower model.lora.rank"
        )
    return chosen


def _named(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _match_dtypes(model: Any, inside: set[int]) -> None:
    """Let modules of the head, and new ones, compute in their own dtype: what is trained is float32.

    The adapters of PEFT do so by themselves.
    """
    if all(p.dtype == torch.float32 for p in model.parameters() if p.is_floating_point()):
        return
    for module in model.modules():
        own = [(name, p) for name, p in module.named_parameters(recurse=False) if p.is_floating_point()]
        if (
            own
            and any(p.requires_grad or id(p) not in inside for _, p in own)
            and "lora" not in type(module).__module__
        ):
            module.register_forward_pre_hook(_cast)


def _cast(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs of a module in the dtype of its own parameters."""
    dtype = next(p.dtype for p in module.parameters(recurse=False) if p.is_floating_point())
    return tuple(x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)


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
