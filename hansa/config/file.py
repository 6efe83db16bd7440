"""Reading and writing federation files: YAML to `Federation` and back, with every mistake named in one sentence."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from hansa.config.chat import with_template
from hansa.config.defaults import with_explicit_defaults
from hansa.config.federation import Federation
from hansa.config.nodes import Holder, Node
from hansa.core.errors import ConfigError, did_you_mean
from hansa.data.source import Source

H = TypeVar("H", bound=Holder)
CYCLE = "a node that stands below itself: the nodes must form a tree, so write the inner one out by another name"


class _StrictLoader(yaml.SafeLoader):
    """A YAML loader that refuses repeated keys and reads ``1e-4`` as a number.

    PyYAML lets the second of two equal keys overwrite the first, and takes ``1e-4`` for text.
    """


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if key in seen:
            raise ConfigError(f"line {key_node.start_mark.line + 1}: '{key}' is given twice; keep one of the two")
        seen.add(key)
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
# `no: data/no.jsonl` is Norwegian, not False.
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in _StrictLoader.yaml_implicit_resolvers.items()
}
_StrictLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false|True|False)$"), list("tfTF"))


def read(path: Path, overrides: list[str] | None = None) -> Federation:
    """Read, override (``a.b=c``) and validate a federation file; paths in it are relative to the file.

    A task that needs a chat template gets the tokenizer's.
    """
    raw, text = load_yaml(
        path, "'hansa new classify DIR' writes one to start from", "a federation file", "beginning with 'silos:'"
    )
    for override in overrides or []:
        _override(raw, override)
    return with_template(parse(raw, where=str(path), base=path.parent, text=text))


def load_yaml(path: Path, hint: str, what: str, shape: str) -> tuple[dict[str, Any], str]:
    """Return the settings of a YAML file and its text; raises `ConfigError` if it is none.

    ``hint``, ``what`` and ``shape`` describe the expected file in error messages.
    """
    text = read_text(path, hint)
    return parse_yaml(text, path, what, shape), text


def read_text(path: Path, hint: str) -> str:
    """Return the text of a file; raises `ConfigError` if it cannot be read. ``hint``: where to get such a file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; {hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None


def parse_yaml(text: str, path: Path, what: str, shape: str) -> dict[str, Any]:
    """Return the settings in the text of the file ``path``; raises `ConfigError` if it is not a mapping in YAML."""
    try:
        raw = yaml.load(text, Loader=_StrictLoader)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (yaml.YAMLError, ValueError, TypeError) as error:  # PyYAML raises the last two for odd dates and keys
        if "recursive" in str(error):
            raise ConfigError(f"{path}: a cycle, {CYCLE}") from None
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: {what} is a mapping of settings, {shape}")
    return raw


def parse(raw: dict[str, Any], where: str = "federation", base: Path | None = None, text: str = "") -> Federation:
    """Validate settings; raises `ConfigError` in one sentence.

    ``where`` and ``text``: the file and its text, for error messages; ``base``: what paths are relative to.
    """
    try:
        federation = Federation.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(sentence(error, where, text)) from None
    except RecursionError:
        raise ConfigError(f"{where}: silos: a cycle, {CYCLE}") from None
    return relocated(federation, *_below(base)) if base is not None else federation


def dump(federation: Federation) -> str:
    """A federation as the text of a federation file; settings at their defaults are left out.

    Defaults that depend on the model are not: the text means the same to a later version, and after a move of files.
    """
    plain = with_explicit_defaults(federation, federation.model_dump(mode="json", exclude_defaults=True))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def _override(raw: dict[str, Any], override: str) -> None:
    key, sign, value = override.partition("=")
    if not sign or not key:
        raise ConfigError(f"--set {override!r}: write it as a.b=value")
    *parents, last = key.split(".")
    target = raw
    for parent in parents:
        child = target.setdefault(parent, {})
        if isinstance(child, str):  # a short form, such as `method: fedprox`
            child = target[parent] = {_long_form(parent, child): child}
        if not isinstance(child, dict):
            raise ConfigError(f"--set {override!r}: '{parent}' has no settings below it")
        target = child
    try:
        target[last] = yaml.load(value, Loader=_StrictLoader)
    except yaml.YAMLError:
        raise ConfigError(f"--set {override!r}: '{value}' is not a valid YAML value") from None


def _long_form(section: str, value: str) -> str:
    """The setting that a section's short form stands for."""
    if section == "model":
        return "preset" if value in ("mini", "tiny", "small", "base") else "path"
    return {"schedule": "kind", "weights": "by", "aggregate": "rule"}.get(section, "name")


def _below(base: Path) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Paths against the federation file's folder. A model is a folder if there is one, else a hub id."""

    def path(text: str) -> str:
        """The absolute form of a path that is relative to the federation file's folder."""
        return str((base / text).resolve())

    return path, lambda text: path(text) if (base / text).exists() else text


def without_folders(federation: Federation) -> Federation:
    """The federation with file names instead of paths, for reports: folders tell about the machine."""
    return relocated(
        federation, lambda text: Path(text).name, lambda text: Path(text).name if "/" in text[:1] else text
    )


def relocated(federation: Federation, path: Callable[[str], str], model: Callable[[str], str]) -> Federation:
    """The federation with every path in it changed: of data, policies and code, and of models."""

    def source(s: Source) -> Source:
        """The source with changed paths of its files, also of the aligned ones."""
        given: dict[str, Any] = {k: path(v) for k, v in s.files().items()}
        if s.aligned is not None:
            given["aligned"] = s.aligned.model_copy(update={k: path(v) for k, v in s.aligned.files().items()})
        return s.model_copy(update=given)

    def local(text: str | None) -> str | None:
        """The changed path of a model or tokenizer; None if there is none."""
        return model(text) if text is not None else None

    def holder(h: H) -> H:
        """The node, or the root, with changed paths in its sources."""
        return h.model_copy(update={"sources": tuple(map(source, h.sources))})

    def node(n: Node) -> Node:
        """The node with changed paths of its data, model and policy, and of all nodes below it."""
        below = {name: node(child) for name, child in n.silos.items()}
        own = n.model.model_copy(update={"path": local(n.model.path)}) if n.model else None
        policy = path(n.policy) if n.policy is not None else None
        return holder(n).model_copy(update={"silos": below, "model": own, "policy": policy})

    def finder(spec: str | None) -> str | None:
        """The specification of the de-identification with changed paths in each of its finders; None stays None."""
        return "+".join(map(member, spec.split("+"))) if spec is not None else None

    def member(spec: str) -> str:  # file.py:Class, model:FOLDER
        """One finder's specification with its path changed: of a model folder or a Python file; others unchanged."""
        if spec.startswith("model:"):
            return f"model:{model(spec.removeprefix('model:'))}"
        return path(spec) if ".py:" in spec else spec

    return federation.model_copy(
        update={
            "data": federation.data.model_copy(update={"deidentify": finder(federation.data.deidentify)}),
            "silos": {name: node(n) for name, n in federation.silos.items()},
            "root": holder(federation.root) if federation.root else None,
            "model": federation.model.model_copy(update={"path": local(federation.model.path)}),
            "tokenizer": federation.tokenizer.model_copy(update={"path": local(federation.tokenizer.path)}),
            "plugins": tuple(path(u) for u in federation.plugins),
        }
    )


# ── errors in one sentence ────────────────────────────────────────────────────────────────────────────────────────


def sentence(error: ValidationError, where: str, text: str, root: type[BaseModel] = Federation) -> str:
    """The first mistake that validation found, in one sentence: where, what was seen, what to do."""
    # A misspelt key is often also a missing one: name the misspelling.
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    path = [p for p in first["loc"] if not (isinstance(p, str) and p.startswith("function-"))]
    place = where + (f", line {line}" if (line := _line(text, path)) else "")
    name = ".".join(str(p) for i, p in enumerate(path) if not (p == "sources" or (i and path[i - 1] == "sources")))
    match first["type"]:
        case "extra_forbidden":
            if (renamed := _renamed(path)) is not None:
                return f"{place}: '{name}' is now called '{renamed}': rename it"
            known = _known_keys(path[:-1], root)
            return f"{place}: '{name}' is not a setting; {did_you_mean(str(path[-1]), known)}"
        case "recursion_loop":
            return f"{place}: {name}: a cycle, {CYCLE}"
        case "missing":
            return f"{place}: '{name}' is missing; it is needed"
        case "value_error":
            return f"{place}: {name + ': ' if name else ''}{first['msg'].removeprefix('Value error, ')}"
        case "literal_error":
            choices = re.findall(r"'([^']+)'", str(first.get("ctx", {}).get("expected", "")))
            return f"{place}: {name} is {first['input']!r}; {did_you_mean(str(first['input']), choices)}"
        case _:
            message = first["msg"][0].lower() + first["msg"][1:]
            return f"{place}: {name} is {_short(first['input'])}, but {message}"


# Settings that had another name: the end of the path, as it was → what its last part is called now.
RENAMED = {
    "uses": "plugins",
    "secure": "secure_aggregation",
    "train.at_once": "micro_batch",
    "baseline.at_once": "micro_batch",
    "data.broken": "max_bad_rows",
    "record": "release_log",
    "release_log.offers": "knowledge",
    "privacy.sigma": "noise_multiplier",
    "privacy.among": "noise_shared_by",
    "simulate.usual": "default_delay",
    "tokenizer.minimum": "min_count",
    "model.rank": "lora.rank",
    "model.alpha": "lora.alpha",
}


def _renamed(path: list[Any]) -> str | None:
    """What a setting that had another name is called now; None if it had none."""
    *_, last = path
    before = f"{path[-2]}.{last}" if len(path) > 1 else str(last)
    return RENAMED.get(before) or (RENAMED.get(str(last)) if len(path) == 1 else None)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _known_keys(path: list[Any], root: type[BaseModel]) -> set[str]:
    """The settings that exist where ``path`` leads, found by walking the sections."""
    section = root
    for part in path:
        found = section.model_fields.get(str(part))
        if found is None:
            section = Node if section in (Federation, Node) else section
            continue
        for candidate in _sections(found.annotation):
            section = candidate
    return set(section.model_fields) | (set(Source.model_fields) if section is Node else set())


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _sections(inner)


def _line(text: str, path: list[Any]) -> int | None:
    """The line on which the setting at ``path`` stands, as far as the path can be followed."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader) if text else None
    except yaml.YAMLError:
        return None
    line = None
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = [(k, v) for k, v in node.value if k.value == str(part)]
            if not found:
                continue
            line, node = found[0][0].start_mark.line + 1, found[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line
