"""Defaults that depend on the kind of model and on the task.

They depend on the settings alone, never on files: a silo's administrator, who may not have the model's folder, must
arrive at the same settings as the coordinator.
"""

from typing import Any

from pydantic import BaseModel

from hansa.models.settings import Model

DECODERS = ("causal-lm", "instruct")
LENGTHS = {"causal-lm": 256, "instruct": 512}  # tokens of a sample, by task
LENGTH = 128
RATES = {"lora": 2e-4, "frozen": 1e-3}  # AdamW's, by what is trained
RATE, DECODER_RATE = 5e-5, 2e-5
SGD_RATE = 0.01  # no pre-trained model is trained with AdamW at such a rate


def is_pretrained(model: Model) -> bool:
    """Whether training starts from weights that were trained before."""
    return model.path is not None and not model.fresh


def model_defaults(model: Model, task: str) -> dict[str, dict[str, Any]]:
    """Section → setting → default, for a pre-trained model; empty for one with random weights."""
    if not is_pretrained(model):
        return {}
    rate = RATES.get(model.adapt, DECODER_RATE if task in DECODERS else RATE)
    return {
        "train": {"optimizer": "adamw", "lr": rate},
        "baseline": {"optimizer": "adamw", "lr": rate},
        "data": {"max_length": LENGTHS.get(task, LENGTH)},
    }


def unset_defaults(given: BaseModel, model: Model, task: str) -> dict[str, BaseModel]:
    """The sections of a federation file that change by `model_defaults`, where the file says nothing.

    A learning rate from `SGD_RATE` on without an optimizer is one for SGD: then neither changes. Baselines have the
    learning rate that the file gives the silos, unless it gives them one of their own: both train the same model.
    """
    defaults, sections = model_defaults(model, task), dict(given)
    if not defaults:
        return {}
    known = {name: sections[name].model_fields_set if name in given.model_fields_set else set() for name in defaults}
    if "lr" in known["train"] and not _for_sgd(sections["train"], known["train"]):
        defaults["baseline"]["lr"] = sections["train"].lr
    changes: dict[str, BaseModel] = {}
    for name, values in defaults.items():
        if "lr" in values and _for_sgd(sections[name], known[name]):
            continue
        if unset := {key: value for key, value in values.items() if key not in known[name]}:
            changes[name] = sections[name].model_copy(update=unset)
    return changes


def _for_sgd(train: Any, known: set[str]) -> bool:
    """Whether the settings that are known of a section ``train`` are those of SGD."""
    return train.optimizer == "sgd" if "optimizer" in known else "lr" in known and train.lr >= SGD_RATE
