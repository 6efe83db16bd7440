"""Plug-ins: methods, tasks, compressors, aggregators, readers and callbacks from outside the package.

A plug-in is a Python file that a federation file names under ``plugins``, or an installed package that declares entry
points in one of the groups `GROUPS`:

    [project.entry-points."hansa.methods"]
    my-method = "my_package.my_method"         # a module that registers itself, or a settings class

A name that is registered twice is refused. Reading a federation file executes nothing; `load_plugins` does, and
commands that only read a file call it when they are asked to (``--run-plugins``).
"""

import importlib.util
import sys
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from hansa import compressors, methods, tasks  # noqa: F401  the package's own register first
from hansa.core.compression import COMPRESSORS
from hansa.core.errors import ConfigError, HansaError, place
from hansa.core.method import AGGREGATORS, METHODS
from hansa.core.registry import Registry
from hansa.tasks.base import TASKS

# Readers and callbacks register themselves when their module is loaded.
GROUPS: dict[str, Registry[Any] | None] = {
    "hansa.methods": METHODS,
    "hansa.tasks": TASKS,
    "hansa.compressors": COMPRESSORS,
    "hansa.aggregators": AGGREGATORS,
    "hansa.readers": None,
    "hansa.callbacks": None,
}


def load_plugins(files: Iterable[str]) -> None:
    """Load the installed packages' entry points, then the given plug-in files; each is run once in a process.

    Raises `ConfigError` in one sentence if a file is not there, a plug-in fails, or registers a name that is taken.
    """
    load_entry_points()
    for file in files:
        _load_file(find_plugin(file))


@cache
def load_entry_points() -> None:
    """Register what installed packages declare."""
    for group, registry in GROUPS.items():
        for entry in entry_points(group=group):
            _load_entry(entry, registry)


def _load_entry(entry: EntryPoint, registry: Registry[Any] | None) -> None:
    package = entry.dist.name if entry.dist is not None else "an unknown package"
    try:
        loaded = entry.load()
        if isinstance(loaded, ModuleType):
            return
        if registry is None or not (isinstance(loaded, type) and issubclass(loaded, BaseModel)):
            raise TypeError(f"it names a {type(loaded).__name__}, and must name a module or a settings class")
        registry.register(entry.name)(loaded)
    except HansaError as error:
        raise ConfigError(f"plug-in '{entry.name}' of package '{package}' ({entry.group}): {error}") from None
    except Exception as error:
        raise ConfigError(
            f"plug-in '{entry.name}' of package '{package}' ({entry.group}) cannot be loaded: {type(error).__name__}: "
            f"{error} ({place(error)}); repair or uninstall the package"
        ) from None


def find_plugin(file: str) -> Path:
    """The path of a plug-in file; raises `ConfigError` if there is none. Executes nothing."""
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"plugins: {path}: there is no such Python file")
    return path


def _load_file(path: Path) -> None:
    name = f"hansa_plugin_{path.stem}_{sha256(path.read_bytes()).hexdigest()[:12]}"  # the same text runs once
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"plugins: {path}: this is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except HansaError as error:
        del sys.modules[name]
        raise ConfigError(f"plugins: {path}: {error}") from None
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(
            f"plugins: {path} cannot be run: {type(error).__name__}: {error} ({place(error)}); repair the file, or "
            "leave it out"
        ) from None
