"""TODO docstring."""

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from hansa.core.errors import ConfigError, place


def load_plugins(files: Iterable[str]) -> None:
    """Run the user's own files, so that their tasks and methods register."""
    for file in files:
        path = Path(file)
        name = f"hansa_uses_{path.stem}"
        if name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise ConfigError(f"plugins: {file}: there is no such Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise ConfigError(
                f"plugins: {file} cannot be run: {type(error).__name__}: {error} ({place(error)})"
            ) from None
