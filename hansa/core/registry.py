"""Registries: names that a federation file uses → settings classes that build what the name stands for.

    @METHODS.register("fedprox")
    class FedProx(Section):
        mu: float = 0.01

        def build(self) -> Method: ...

Methods, tasks, compressors and aggregators register like this, in the package, in a plug-in file or in another
installed package (`hansa.config.plugins`).
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from hansa.core.errors import ConfigError, did_you_mean
from hansa.core.settings import Named

IN_MEMORY = " (in memory)"  # ends the name of a method that was composed in Python
T = TypeVar("T")
C = TypeVar("C", bound=type[BaseModel])


class Registry(Generic[T]):
    """Names of one kind; ``what`` is the setting that uses them, for error messages."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.entries: dict[str, type[BaseModel]] = {}

    def register(self, name: str) -> Callable[[C], C]:
        """A decorator that registers a settings class under ``name``; raises `ConfigError` if the name is taken."""

        def add(settings: C) -> C:
            """Register the class and return it; raises `ConfigError` if another class has the name."""
            taken = self.entries.get(name)
            if taken is not None and origin(taken) != origin(settings):
                raise ConfigError(
                    f"{self.what} '{name}' is registered twice, by {origin(taken)} and by {origin(settings)}: "
                    "rename one of them"
                )
            self.entries[name] = settings
            return settings

        return add

    def build(self, named: Named) -> T:
        """Validate the settings with the entry's own model, then build it; raises `ConfigError` in one sentence."""
        if named.name not in self.entries:
            if named.name.endswith(IN_MEMORY):
                raise ConfigError(
                    f"{self.what} '{named.name}' was composed in Python and is not in the memory of this process: run "
                    "or resume it from Python, with the same method"
                )
            raise ConfigError(f"{self.what} '{named.name}' is not known; {did_you_mean(named.name, self.entries)}")
        model = self.entries[named.name]
        try:
            settings: Any = model.model_validate(named.settings)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            if first["type"] == "extra_forbidden":
                known = list(model.model_fields)
                hint = did_you_mean(key, known) if known else f"{named.name} has no settings"
                raise ConfigError(f"{self.what}.{key} is not a setting of '{named.name}'; {hint}") from None
            message = first["msg"].removeprefix("Value error, ")
            raise ConfigError(f"{self.what}.{key} is {first['input']!r}: {message[0].lower()}{message[1:]}") from None
        built: T = settings.build()
        return built


def origin(kind: type) -> str:
    """Where a class comes from: its module and name, which stay the same when the module is run again."""
    return f"{kind.__module__}.{kind.__qualname__}"
