"""Defaults that follow from the model and the task: stated by `hansa check`, and written down where settings are."""

from dataclasses import dataclass
from typing import Any

from hansa.config.federation import Federation
from hansa.config.model_defaults import model_defaults


@dataclass(frozen=True)
class ChosenDefault:
    """A setting at a default that follows from the model and the task."""

    setting: str
    value: Any
    reason: str


def with_explicit_defaults(federation: Federation, plain: dict[str, Any]) -> dict[str, Any]:
    """Plain settings without defaults, completed by those that another reader would choose by the model."""
    for name, values in model_defaults(federation.model, federation.task.name).items():
        section = getattr(federation, name)
        kept = {key: getattr(section, key) for key in values}
        plain = plain | {name: plain.get(name, {}) | kept}
    return plain


def without_model_defaults(federation: Federation, plain: dict[str, Any]) -> dict[str, Any]:
    """Plain settings without those that follow from the model and the task, for use with another model."""
    for name, values in model_defaults(federation.model, federation.task.name).items():
        section = plain.get(name, {})
        if all(section.get(key) == value for key, value in values.items()):
            plain = plain | {name: {key: value for key, value in section.items() if key not in values}}
    return plain


def chosen_defaults(federation: Federation) -> list[ChosenDefault]:
    """The settings of training that are at their defaults, with the reason for the value."""
    train, plain = federation.train, type(federation.train)()
    chosen = model_defaults(federation.model, federation.task.name)
    start = "a pre-trained model" if chosen else "a model with random weights"
    trained = {
        "lora": "adapters",
        "frozen": "a head",
        "frozen-embeddings": "all weights but the embeddings",
    }.get(federation.model.adapt, "all weights")
    rate = chosen.get("train", {"optimizer": plain.optimizer, "lr": plain.lr})
    length = chosen.get("data", {}).get("max_length", type(federation.data)().max_length)
    found = [
        ChosenDefault("train.optimizer", train.optimizer, start) if train.optimizer == rate["optimizer"] else None,
        ChosenDefault(
            "train.lr", train.lr, f"{start}, of which {trained} are trained".replace("a head are", "a head is")
        )
        if train.lr == rate["lr"] and train.optimizer == rate["optimizer"]
        else None,
        ChosenDefault("data.max_length", length, f"task '{federation.task.name}' and {start}")
        if federation.data.max_length == length
        else None,
        ChosenDefault("train.samples", "one pass over the silo's samples", "every silo trains on all it has")
        if train.samples == plain.samples and "samples" not in train.model_fields_set and train.max_batches is None
        else None,
        ChosenDefault("train.batch", train.batch, "fits most machines")
        if train.batch == plain.batch and "batch" not in train.model_fields_set
        else None,
    ]
    return [one for one in found if one is not None]
