"""Adapters as PEFT's own folders: `adapter_config.json` and `adapter_model.safetensors`, for plain PEFT to load.

A residual (`lora.aggregate: exact | stack`) is written as further rows of A and columns of B: s·(B·A + B_R·A_R) =
[s·B, s·B_R]·[A; A_R]. A new head is one of PEFT's ``modules_to_save``.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from hansa.models.adapt import ADAPTER, RESIDUAL, lora_config, merge_adapters
from hansa.models.base import own_tensors
from hansa.models.settings import Model

CONFIG = "adapter_config.json"
PREFIX = "base_model.model."  # PEFT's, before the names of a transformers model


def save_model(model: Any, settings: Model, folder: Path) -> None:
    """Write a trained model: adapters by themselves if they are on a frozen base, else a plain model, merged."""
    if settings.keeps_base and settings.adapt == "lora":
        save_adapter(model, settings, folder)
    else:
        merge_adapters(model).save_pretrained(folder)


def is_adapter(folder: Path) -> bool:
    """Whether a folder has an adapter, and not a whole model."""
    return (folder / CONFIG).is_file()


def save_adapter(model: Any, settings: Model, folder: Path) -> None:
    """Write the adapters of a model, and its new head, as a folder that ``PeftModel.from_pretrained`` loads."""
    own = {name: values.detach().to("cpu", torch.float32) for name, values in own_tensors(model).items()}
    layers = sorted({name.split(".lora_")[0] for name in own if ".lora_" in name})
    config = lora_config(settings.lora, layers)
    tensors: dict[str, Tensor] = {}
    for layer in layers:
        module = model.get_submodule(layer)
        if RESIDUAL in module.lora_A:
            # The scale goes into B, so that PEFT's own scale is one.
            joined = _joined(own, layer, float(module.scaling[ADAPTER]))
            config.rank_pattern[layer] = config.alpha_pattern[layer] = len(joined["lora_A"])
            config.use_rslora = False
        else:
            joined = {name: own[f"{layer}.{name}.{ADAPTER}.weight"] for name in ("lora_A", "lora_B")}
        tensors |= {f"{PREFIX}{layer}.{name}.weight": values.contiguous() for name, values in joined.items()}
        if (magnitude := own.get(f"{layer}.lora_magnitude_vector.{ADAPTER}.weight")) is not None:
            tensors[f"{PREFIX}{layer}.lora_magnitude_vector"] = magnitude.contiguous()
    new = {name: values for name, values in own.items() if ".lora_" not in name}
    tensors |= {f"{PREFIX}{name}": values.contiguous() for name, values in new.items()}
    config.modules_to_save = sorted({name.rpartition(".")[0] for name in new}) or None
    config.base_model_name_or_path, config.revision = settings.path, settings.revision
    config.inference_mode = True
    config.save_pretrained(folder)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _joined(own: dict[str, Tensor], layer: str, scale: float) -> dict[str, Tensor]:
    """An adapter and its residual as one adapter of a larger rank."""
    parts = [
        {name: own[f"{layer}.{name}.{which}.weight"] for name in ("lora_A", "lora_B")} for which in (ADAPTER, RESIDUAL)
    ]
    return {
        "lora_A": torch.cat([part["lora_A"] for part in parts]),
        "lora_B": scale * torch.cat([part["lora_B"] for part in parts], dim=1),
    }


def load_adapter(base: Any, folder: Path) -> Any:
    """A base with the adapters of a folder, as a transformers model."""
    from peft import PeftModel

    with warnings.catch_warnings():
        # PEFT asks transformers for a property under its old name.
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
        return PeftModel.from_pretrained(base, str(folder)).get_base_model()
