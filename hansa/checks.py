"""What is refused before anything is loaded or written. It needs no model, so that a mistake is answered at once."""

from pathlib import Path

from hansa import methods
from hansa.config import Federation, leaves
from hansa.errors import ConfigError, DataError
from hansa.registry import load_plugins
from hansa.tasks import TASKS


def check(federation: Federation) -> None:
    """Refuse unknown methods and tasks, combinations that make no sense, and data that is not there."""
    check_settings(federation)
    for name, node in leaves(federation.silos).items():
        for source in node.sources:
            for file in (source.train, source.valid, source.test):
                if file is not None and not Path(file).exists():
                    raise DataError(
                        f"silos.{name}: {file} does not exist; give the path of a file or folder with its data"
                    )


def check_settings(federation: Federation) -> None:
    """What can be checked without the data, which may lie in other organisations."""
    load_plugins(federation.uses)
    methods.build(federation)
    TASKS.build(federation.task)
    if federation.data.deidentify is not None:
        from hansa.data.deidentify import load

        load(federation.data.deidentify)
    path = federation.model.path
    if path is not None and path.startswith((".", "/", "~")) and not (Path(path) / "config.json").is_file():
        raise ConfigError(
            f"model: {path} is not a Hugging Face model folder (no config.json there); give such a folder, a hub id, "
            "or a preset: tiny, small, base"
        )
