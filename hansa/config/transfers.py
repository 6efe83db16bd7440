"""Refusals of encoded downlinks (`download`) and of training that overlaps transfer (`train.overlap`)."""

from hansa.config.federation import Federation
from hansa.config.tree import is_tree, protected
from hansa.core.errors import ConfigError
from hansa.core.method import Method


def refuse_transfers(federation: Federation, method: Method) -> None:
    """Refuse what an encoded downlink, or overlap, cannot be combined with."""
    if method.download:
        _download(federation, method)
    if method.overlaps:
        _overlap(federation, method)


def _download(federation: Federation, method: Method) -> None:
    reasons = {
        "a region sends its own children whole models, and here are regions": is_tree(federation),
        f"silos of method '{method.name}' start from models of different age": not method.participation.synchronous,
        f"method '{method.name}' also sends the model for its exchange": method.exchange is not None,
        "upload 'both' already sends silos a part of the tensors": method.upload.both_ways,
        f"model.lora.aggregate '{federation.model.lora.aggregate}' changes factors by more than an optimizer's step": (
            method.factors is not None
        ),
    }
    for reason in [reason for reason, given in reasons.items() if given]:
        raise ConfigError(
            f"download: one server sends all silos the difference from the model that they hold, and {reason}: leave "
            "one of the two out"
        )


def _overlap(federation: Federation, method: Method) -> None:
    train = federation.train
    reasons = {
        "a region waits for its children": is_tree(federation),
        f"method '{method.name}' has no common rounds": not method.participation.synchronous,
        f"the objective of method '{method.name}' looks at the model that was received": not getattr(
            method.objective, "adds_no_gradient", False
        ),
        f"method '{method.name}' asks silos for something before they train": method.exchange is not None,
        f"model.lora.aggregate '{federation.model.lora.aggregate}' needs factors of the same round": (
            method.factors is not None
        ),
        "train.samples.adapt looks at the model that was received": train.samples.adapt is not None,
        "'personal' trains models of the silos' own": federation.personal is not None,
        "privacy of single patients is computed without it": any(
            one.unit != "silo" for one in protected(federation).values()
        ),
    }
    for reason in [reason for reason, given in reasons.items() if given]:
        raise ConfigError(
            f"train.overlap: silos go on training before the model arrives, and {reason}: leave one of the two out"
        )
