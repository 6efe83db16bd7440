"""Federated learning methods, one paper per file.

Every module registers its settings in `hansa.core.method.METHODS` under the name that a federation file uses. From
Python the same names are functions of this package, with the same settings:

    hansa.methods.fedprox(mu=0.01)                                     # method: {name: fedprox, mu: 0.01}
    dataclasses.replace(hansa.methods.fedprox(mu=0.01), name="mine")   # a method of your own, slot by slot
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from hansa.core.method import METHODS, Method
from hansa.core.settings import Named

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

_BUILT_FROM = "_built_from"  # attribute of a method that was built from settings; `dataclasses.replace` leaves it out


def built_from(method: Method) -> Named | None:
    """The name and settings that a method was built from; None if it was composed slot by slot."""
    found: Named | None = getattr(method, _BUILT_FROM, None)
    return found


def _constructor(name: str) -> Callable[..., Method]:
    """The function that builds a registered method from its settings."""
    settings = METHODS.entries[name]

    def build(**given: Any) -> Method:
        """The registered method with the given settings, which `built_from` returns later."""
        named = Named(name=name, **given)
        method = METHODS.build(named)
        object.__setattr__(method, _BUILT_FROM, named)
        return method

    lines = [f"    {key}: {field.description}" for key, field in settings.model_fields.items()]
    raises = "Raises `ConfigError` for a setting that is unknown or out of range."
    build.__doc__ = "\n\n".join([settings.__doc__ or "", "\n".join(["Settings:", *lines]) if lines else "", raises])
    build.__name__ = build.__qualname__ = name.replace("-", "_")
    build.__dict__["__signature__"] = inspect.signature(settings).replace(return_annotation=Method)
    return build


alone = _constructor("alone")
chained = _constructor("chained")
controllers = _constructor("controllers")
dga = _constructor("dga")
diloco = _constructor("diloco")
fedadagrad = _constructor("fedadagrad")
fedadam = _constructor("fedadam")
fedavg = _constructor("fedavg")
fedavgm = _constructor("fedavgm")
fedbuff = _constructor("fedbuff")
fedkc = _constructor("fedkc")
fedmix = _constructor("fedmix")
fedper = _constructor("fedper")
fedprox = _constructor("fedprox")
fedyogi = _constructor("fedyogi")
hierfavg = _constructor("hierfavg")
krum = _constructor("krum")
median = _constructor("median")
moon = _constructor("moon")
norm_bound = _constructor("norm-bound")
qffl = _constructor("qffl")
scaffold = _constructor("scaffold")
trimmed_mean = _constructor("trimmed-mean")
worldlm = _constructor("worldlm")

__all__ = [
    "alone",
    "built_from",
    "chained",
    "controllers",
    "dga",
    "diloco",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedbuff",
    "fedkc",
    "fedmix",
    "fedper",
    "fedprox",
    "fedyogi",
    "hierfavg",
    "krum",
    "median",
    "moon",
    "norm_bound",
    "qffl",
    "scaffold",
    "trimmed_mean",
    "worldlm",
]
