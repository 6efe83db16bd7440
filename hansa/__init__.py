"""Hansa trains language models across organisations while the text stays where it is.

    import hansa

    fed = hansa.Federation(task="classify", model="tiny", silos={"lyon": rows, "turin": "turin.parquet"}, rounds=20)
    result = hansa.run(fed, workers=2)
    result.scores, result.model

Names are imported when they are first used: `import hansa` itself takes no time.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Check": "hansa.api.check",
    "Comparison": "hansa.api.run",
    "ConfigError": "hansa.core.errors",
    "DataError": "hansa.core.errors",
    "Federation": "hansa.api.federation",
    "HansaError": "hansa.core.errors",
    "Method": "hansa.core.method",
    "Result": "hansa.runs.result",
    "RoundRecord": "hansa.runs.callbacks",
    "Rounds": "hansa.api.run",
    "RunFailed": "hansa.core.errors",
    "Survey": "hansa.runs.survey",
    "UserError": "hansa.core.errors",
    "compare": "hansa.api.run",
    "load": "hansa.api.run",
    "rounds": "hansa.api.run",
    "run": "hansa.api.run",
    "survey": "hansa.api.survey",
}
_MODULES = ("callbacks", "methods")

__all__ = [
    "Check",
    "Comparison",
    "ConfigError",
    "DataError",
    "Federation",
    "HansaError",
    "Method",
    "Result",
    "RoundRecord",
    "Rounds",
    "RunFailed",
    "Survey",
    "UserError",
    "__version__",
    "callbacks",
    "compare",
    "load",
    "methods",
    "rounds",
    "run",
    "survey",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used; reading the version from the metadata takes time, too."""
    if name == "__version__":
        from importlib.metadata import version

        return version("hansa")
    if name in _MODULES:
        return import_module(f"hansa.{name}")
    if name in _HOMES:
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found
    raise AttributeError(f"module 'hansa' has no attribute '{name}'")


def __dir__() -> list[str]:
    """The public names, for completion."""
    return list(__all__)
