"""`hansa.Federation`: a federation described in Python, with data, models and methods that may live in memory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hansa.api import tables
from hansa.api.check import Check
from hansa.config import federation as settings_model
from hansa.config.chat import with_template
from hansa.config.defaults import with_explicit_defaults, without_model_defaults
from hansa.config.file import dump, parse, read, relocated
from hansa.config.in_memory import lives_in_memory, register_method
from hansa.config.nodes import walk
from hansa.core.errors import ConfigError, DataError
from hansa.core.method import Method
from hansa.core.settings import Named
from hansa.data.readers import MESSAGES
from hansa.methods import built_from
from hansa.preview.preview import preview

MEMORY = "memory:"  # begins the path of what lives in memory until a run begins
SPLITS = {"train": "train", "valid": "valid", "validation": "valid", "dev": "valid", "test": "test"}
WHERE = "Federation"  # in error messages, where a file's name would stand

Settings = settings_model.Federation


class Federation:
    """Who trains what, with which method. It describes the same as a federation file, and does not change.

    ``silos``: name → data. Data is a Hugging Face dataset (or a dict of its splits), a pandas or polars data frame, an
    Arrow table, a list of dicts or texts, or the path of a file or folder; or a dict of a silo's settings with such
    data under ``train``, ``valid`` and ``test`` (``{"train": frame, "text": "body", "language": "fr"}``), or of a
    region with its own ``silos``. ``task``: a name, or a dict with a name and settings. ``model``: a preset, a folder,
    a hub id, a dict of settings, or a pair (model, tokenizer) in memory. ``method``: a name, a dict, or any `Method`.
    Every other setting of a federation file is a keyword (docs/federation-file.md).

    Raises `ConfigError` for a setting that is unknown or wrong, and `DataError` for data that lacks a column.
    """

    def __init__(
        self,
        *,
        silos: Mapping[str, Any],
        task: str | Mapping[str, Any] = "mlm",
        model: Any = "tiny",
        method: str | Mapping[str, Any] | Method = "fedavg",
        rounds: int = 10,
        name: str = "run",
        **settings: Any,
    ) -> None:
        inputs = _Inputs({}, None)
        raw = {key: _plain(value) for key, value in settings.items()}
        raw |= {"name": name, "task": _plain(task), "rounds": rounds}
        raw["model"] = _model(model, inputs)
        raw["method"] = _method(method)
        raw["silos"] = {silo: _node(silo, value, inputs) for silo, value in silos.items()}
        self._settings = relocated(parse(raw, WHERE), _absolute, _absolute_model)
        self._inputs = inputs
        _check_columns(self._settings, inputs)

    @classmethod
    def from_yaml(cls, path: str | Path, overrides: Iterable[str] = ()) -> "Federation":
        """The federation of a file; ``overrides``: ``a.b=value``, as in ``hansa run --set``.

        Raises `ConfigError` in one sentence for a file that is wrong.
        """
        return cls.from_settings(read(Path(path), list(overrides)))

    @classmethod
    def from_settings(cls, settings: Settings) -> "Federation":
        """The federation of settings that were read and validated before."""
        return cls._of(settings, _Inputs({}, None))

    @classmethod
    def _of(cls, settings: Settings, inputs: "_Inputs") -> "Federation":
        made = cls.__new__(cls)
        made._settings, made._inputs = settings, inputs
        return made

    def to_yaml(self, path: str | Path | None = None) -> str:
        """The text of a federation file that describes the same; also written to ``path``, if one is given.

        Raises `ConfigError` for what only lives in memory: data, a model, a composed method.
        """
        kept = [f"silos.{table.silo}" for table in self._inputs.tables.values()]
        kept += ["model"] if self._inputs.model is not None else []
        named = [("method", self._settings.method)]
        named += [(f"silos.{name}.method", node.method) for name, node in walk(self._settings.silos) if node.method]
        kept += [where for where, method in named if lives_in_memory(method)]
        if kept:
            raise ConfigError(
                f"a federation file cannot hold what lives in memory ({', '.join(dict.fromkeys(kept))}): give paths of "
                "files, the folder of a model, or a method by name"
            )
        text = dump(self._settings)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    @property
    def settings(self) -> Settings:
        """All settings, validated; data in memory stands as ``memory:NAME``."""
        return self._settings

    @property
    def name(self) -> str:
        """The name of the federation."""
        return self._settings.name

    def replace(self, **changes: Any) -> "Federation":
        """The same federation with other settings; ``method``, ``rounds``, ``train`` … as in the constructor.

        ``silos`` and ``model`` in memory stay unless they are given. Raises `ConfigError` for a wrong setting.
        """
        inputs = replace(self._inputs, tables=dict(self._inputs.tables))
        plain = self._settings.model_dump(mode="json", exclude_defaults=True)
        another = "model" in changes or "task" in changes
        raw = (without_model_defaults if another else with_explicit_defaults)(self._settings, plain)
        for key, value in changes.items():
            if key == "method":
                raw[key] = _method(value)
            elif key == "model":
                inputs.model = None
                raw[key] = _model(value, inputs)
            elif key == "silos":
                inputs.tables.clear()
                raw[key] = {silo: _node(silo, one, inputs) for silo, one in value.items()}
            else:
                raw[key] = _plain(value)
        changed = Federation._of(relocated(parse(raw, WHERE), _absolute, _absolute_model), inputs)
        _check_columns(changed._settings, inputs)
        return changed

    def check(self) -> Check:
        """Validate; preview shares, traffic and what would leave the silos, as ``hansa check`` prints it.

        In a notebook the result is rendered; in a script, print it. Nothing is trained. Raises `ConfigError` or
        `DataError` for what a run would refuse.
        """
        with TemporaryDirectory() as folder:
            return Check(preview(self.placed(Path(folder))))

    def placed(self, folder: Path) -> Settings:
        """Write what lives in memory to ``folder``; return the settings with the paths of the files there.

        Raises `DataError` if the folder holds files of other rows.
        """
        self._inputs.write(folder)

        def path(text: str) -> str:
            """The absolute path in ``folder`` of a file that lives in memory; any other path unchanged."""
            return str((folder / text.removeprefix(MEMORY)).resolve()) if text.startswith(MEMORY) else text

        return with_template(relocated(self._settings, path, path))

    def in_memory(self) -> bool:
        """Whether data or the model live in memory, so that a run writes them to files first."""
        return bool(self._inputs.tables) or self._inputs.model is not None

    @property
    def tables(self) -> list[tuple[str, Any]]:
        """The data in memory: the silo it belongs to, and the table."""
        return [(table.silo, table.rows) for table in self._inputs.tables.values()]

    def __repr__(self) -> str:
        one = self._settings
        return (
            f"Federation({one.name!r}: {one.task.name} with {one.method.name}, {one.rounds} rounds, "
            f"silos {', '.join(one.silos)})"
        )


# ── what lives in memory ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Table:
    """Rows in memory, and the silo they belong to."""

    silo: str
    rows: Any


@dataclass
class _Inputs:
    """Data (file name → table) and the model and tokenizer that live in memory."""

    tables: dict[str, _Table]
    model: tuple[Any, Any] | None

    def add(self, silo: str, split: str, rows: Any) -> str:
        """Keep a table; return the path that stands for it."""
        known = sum(table.silo == silo for table in self.tables.values())
        file = f"{silo}.{split}{known or ''}.jsonl"
        self.tables[file] = _Table(silo, rows)
        return MEMORY + file

    def write(self, folder: Path) -> None:
        """Write everything as files."""
        if self.tables or self.model is not None:
            folder.mkdir(parents=True, exist_ok=True)
        for file, table in self.tables.items():
            tables.write(table.rows, folder / file, f"silos.{table.silo}")
        if self.model is not None and not (folder / "model" / "config.json").is_file():
            model, tokenizer = self.model
            model.save_pretrained(folder / "model")
            tokenizer.save_pretrained(folder / "model")


def _node(name: str, value: Any, inputs: _Inputs) -> Any:
    """A silo or region as settings; tables in it are kept in ``inputs``."""
    if isinstance(value, str | Path):
        return str(value)
    if tables.is_table(value):
        return {"train": inputs.add(name, "train", value)}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{WHERE}: silos.{name} is a {type(value).__name__}; give {tables.KINDS}")
    node: dict[str, Any] = {}
    for key, one in value.items():
        if key == "silos":
            node[key] = {below: _node(below, held, inputs) for below, held in one.items()}
        elif key == "sources":
            node[key] = [_node(name, held, inputs) for held in one]
        elif key == "method":
            node[key] = _method(one)
        elif tables.is_table(one) and key in SPLITS:
            node[SPLITS[key]] = inputs.add(name, SPLITS[key], one)
        else:
            node[key] = _plain(one)
    return node


def _model(value: Any, inputs: _Inputs) -> Any:
    """A model as settings; one in memory is kept in ``inputs``."""
    if isinstance(value, str | Path | Mapping):
        return _plain(value)
    pair = value if isinstance(value, tuple) and len(value) == 2 else ()
    if not pair or not all(hasattr(one, "save_pretrained") for one in pair):
        raise ConfigError(
            f"{WHERE}: model is a {type(value).__name__}; give a preset, a folder, a hub id, or a pair (model, "
            "tokenizer) of transformers objects"
        )
    inputs.model = pair
    return {"path": f"{MEMORY}model"}


def _method(value: str | Mapping[str, Any] | Method) -> Any:
    """A method as settings; one that was composed in Python is registered in this process."""
    if isinstance(value, Method):
        named = built_from(value) or register_method(value)
        return named.model_dump(mode="json")
    if isinstance(value, str | Mapping):
        return _plain(value)
    raise ConfigError(
        f"{WHERE}: method is a {type(value).__name__}; give a name, a dict with a name and settings, or a Method such "
        "as hansa.methods.fedprox(mu=0.01)"
    )


def _plain(value: Any) -> Any:
    """Settings as a file has them: names for `Named`, text for paths, dicts for sections."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Named) or hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _absolute(text: str) -> str:
    return text if text.startswith(MEMORY) else str(Path(text).resolve())


def _absolute_model(text: str) -> str:
    """A model is a folder if there is one, else a hub id."""
    return str(Path(text).resolve()) if not text.startswith(MEMORY) and Path(text).exists() else text


def _check_columns(settings: Settings, inputs: _Inputs) -> None:
    """Raise `DataError` if a table lacks the column that its silo names for the text."""
    for name, node in walk(settings.silos):
        for source in node.sources:
            for path in source.files().values():
                table = inputs.tables.get(path.removeprefix(MEMORY))
                known = tables.columns(table.rows) if table is not None else None
                if known is None or source.text in known or {source.tokens, MESSAGES} & {*known}:
                    continue
                example = f'{{"{name}": {{"train": …, "text": "{next(iter(known), "text")}"}}}}'
                raise DataError(
                    f"silos.{name}: the data has no column '{source.text}' (columns: {', '.join(known)}); name the "
                    f"column with the text: silos={example}"
                )
