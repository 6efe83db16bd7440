"""Names to things a user may add in one file: tasks and methods.

@METHODS.register("fedprox")
class FedProx(Section):
    mu: float = 0.01
    def build(self) -> Method: ...
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from hansa.core.errors import ConfigError, did_you_mean
from hansa.core.settings import Named

T = TypeVar("T")
C = TypeVar("C", bound=type[BaseModel])


class Registry(Generic[T]):
    def __init__(self, what: str) -> None:
        self.what = what
        self.entries: dict[str, type[BaseModel]] = {}

    def register(self, name: str) -> Callable[[C], C]:
        def add(settings: C) -> C:
            self.entries[name] = settings
            return settings

        return add

    def build(self, named: Named) -> T:
        """Validate the settings with the entry's own model, then build it."""
        if named.name not in self.entries:
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
            raise ConfigError(f"{self.what}.{key} is {first['input']!r}: {first['msg'].lower()}") from None
        built: T = settings.build()
        return built
