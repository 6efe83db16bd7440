"""What lives in this process only: methods composed in Python, and what a notebook's cell or a script registers.

Worker processes cannot import such definitions. `pack_definitions` writes them with cloudpickle when the workers are
started, and each worker registers them with `register_definitions`. They never leave the machine or the cluster that
runs the simulation, and a run directory does not contain them: reading a run executes none of this code.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from hansa import compressors, methods, tasks  # noqa: F401  the package's own register first
from hansa.core.compression import COMPRESSORS
from hansa.core.errors import ConfigError
from hansa.core.method import AGGREGATORS, METHODS, Method
from hansa.core.registry import IN_MEMORY, Registry
from hansa.core.settings import Named
from hansa.data.readers import READERS
from hansa.tasks.base import TASKS

REGISTRIES: Mapping[str, Registry[Any]] = {
    "method": METHODS,
    "task": TASKS,
    "compressor": COMPRESSORS,
    "aggregator": AGGREGATORS,
}
IMPORTABLE = ("hansa.", "hansa_plugin_")  # modules that workers load by themselves: the package, and plug-in files


def register_method(method: Method) -> Named:
    """Register a method that was composed in Python; return what a federation calls it.

    It replaces an earlier one of the same name.
    """

    class Composed(BaseModel):
        """A composed method; it has no settings."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        def build(self) -> Method:
            """The method itself."""
            return method

    name = method.name.removesuffix(IN_MEMORY) + IN_MEMORY
    METHODS.entries[name] = Composed
    return Named(name=name)


def lives_in_memory(named: Named) -> bool:
    """Whether a method was composed in Python, so that a federation file cannot describe it."""
    return named.name.endswith(IN_MEMORY)


def pack_definitions() -> bytes:
    """Everything registered that workers cannot import, for `register_definitions`; empty if there is nothing.

    Raises `ConfigError` for something that cannot be sent to another process.
    """
    found: dict[str, dict[str, Any]] = {}
    for kind, registry in REGISTRIES.items():
        found[kind] = {name: entry for name, entry in registry.entries.items() if not _importable(entry)}
    found["reader"] = {suffix: reader for suffix, reader in READERS.entries.items() if not _importable(reader)}
    if not any(found.values()):
        return b""
    import cloudpickle

    for kind, entries in found.items():
        for name, entry in entries.items():
            try:
                cloudpickle.dumps(entry)
            except Exception as error:
                raise ConfigError(
                    f"{kind} '{name}' cannot be sent to worker processes ({type(error).__name__}: {error}): keep what "
                    "cannot be copied, such as locks, open files and generators, out of it, or run with workers=0"
                ) from None
    packed: bytes = cloudpickle.dumps(found)
    return packed


def _importable(entry: Any) -> bool:
    own = getattr(entry, "__module__", "") == __name__  # a composed method, whose class is defined above
    return str(getattr(entry, "__module__", "")).startswith(IMPORTABLE) and not own


def register_definitions(packed: bytes) -> None:
    """Register what `pack_definitions` wrote, in a worker process.

    Raises `ConfigError` if a module that it refers to cannot be imported there.
    """
    if not packed:
        return
    import cloudpickle

    try:
        found = cloudpickle.loads(packed)
    except Exception as error:
        raise ConfigError(
            f"a definition cannot be loaded in a worker process ({type(error).__name__}: {error}): define it in the "
            "notebook or script itself, or in a plug-in file, or run with workers=0"
        ) from None
    for kind, registry in REGISTRIES.items():
        registry.entries.update(found[kind])
    READERS.entries.update(found["reader"])
