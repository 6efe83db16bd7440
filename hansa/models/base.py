"""The start of a run on a frozen base: everything but the base itself, and the digest of the base's files.

Each silo has its own copy of the base, so the base does not travel. The start has the configuration, the tokenizer, the
tensors that the base's files lack (adapters, a new head), and `base.json` with the SHA-256 of the base's files.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from hansa.core.errors import ConfigError
from hansa.models.build import new_tensors
from hansa.models.library import transformers
from hansa.models.settings import Model

ADAPTER, BASE = "adapter.safetensors", "base.json"
KINDS = ("*.safetensors", "pytorch_model*.bin")  # files with weights; the first kind that a folder has is the one used
CHUNK = 1 << 22


def own_tensors(model: Any) -> dict[str, torch.Tensor]:
    """The tensors of an adapted model that the files of its base lack: adapters, and new tensors such as a head's."""
    new = new_tensors(model) or frozenset()
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if "lora_" in name or name.replace(".base_layer.", ".") in new
    }


def save_start(model: Any, settings: Model, folder: Path) -> None:
    """Write the start of an adapted ``model`` into a folder, without the base."""
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    tensors = {
        name: values.detach().to("cpu", torch.float32).contiguous() for name, values in own_tensors(model).items()
    }
    save_file(tensors, folder / ADAPTER)
    (folder / BASE).write_text(json.dumps({"sha256": digest(settings)}), encoding="utf-8")


def load_start(model: Any, folder: Path) -> None:
    """Give an adapted ``model``, built from a copy of the base, the values of a start; raises `ConfigError`."""
    values, own = load_file(folder / ADAPTER), own_tensors(model)
    if any(name not in values or values[name].shape != parameter.shape for name, parameter in own.items()):
        raise ConfigError(
            "the run's initial model has other adapter tensors than the settings imply: use the base and the 'model' "
            "section that the run began with (model.lora.residual_rank, unless it is set, follows from the rounds)"
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(values[name])


def check_base(folder: Path, settings: Model) -> None:
    """Raise `ConfigError` unless the base in ``settings`` is the one that the start in ``folder`` is for."""
    expected = json.loads((folder / BASE).read_text(encoding="utf-8")).get("sha256")
    found = digest(settings)
    if found != expected:
        raise ConfigError(
            f"the model in {settings.path} has the digest {found[:12]}…, and the run began with a base of the digest "
            f"{str(expected)[:12]}…: give a folder with the same weight files (hansa join --model)"
        )


def digest(settings: Model) -> str:
    """SHA-256 over names and content of the base's files with weights; raises `ConfigError` if there are none."""
    folder = _folder(settings)
    files = [folder / settings.gguf] if settings.gguf is not None else []
    for kind in KINDS:
        files = files or sorted(folder.glob(kind))
    if not files or not all(file.is_file() for file in files):
        raise ConfigError(f"model.path: {settings.path} has no files with weights (safetensors, bin or gguf)")
    whole = sha256()
    for file in files:
        whole.update(f"{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                whole.update(chunk)
    return whole.hexdigest()


def _folder(settings: Model) -> Path:
    """The folder with the base's files: a folder of the user's, or the snapshot that the hub's client downloaded."""
    path = str(settings.path)
    if Path(path).is_dir():
        return Path(path)
    found = transformers().utils.cached_file(
        path, settings.gguf or "config.json", revision=settings.revision or "main", local_files_only=True
    )
    return Path(found).parent
