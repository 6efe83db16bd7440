"""The settings that all members of a federation share, in one canonical form, and the digest of that form.

A coordinator sends its members the federation file without what concerns one member alone: paths, policies and
plug-ins. A silo's administrator approves the same form (`hansa approve`), read from a copy of the file. Both compute it
here, so that the approved and the received settings are equal if and only if their digests are.
"""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from hansa.config.federation import Federation
from hansa.config.nodes import Node
from hansa.core.errors import ConfigError, parse_json, printable
from hansa.data.source import Source

SETTINGS, AT_DEFAULT = "settings", "at_default"  # what a coordinator sends
NO_SOURCES = (Source(train=""),)  # in place of data of another node


def shared_settings(federation: Federation) -> Federation:
    """The settings that every member receives: the whole tree, without paths, policies and plug-ins.

    Of a model or tokenizer in a folder the folder's name stays: members get its content from the coordinator.
    """

    def without_paths(node: Node) -> Node:
        """The node and all nodes below it without paths of data and policies."""
        sources = tuple(s.model_copy(update={"train": "", "valid": None, "test": None}) for s in node.sources)
        below = {name: without_paths(child) for name, child in node.silos.items()}
        return node.model_copy(update={"sources": sources, "silos": below, "policy": None})

    silos = {name: without_paths(node) for name, node in federation.silos.items()}
    root = federation.root and federation.root.model_copy(update={"sources": NO_SOURCES})
    model = federation.model.model_copy(update={"path": _name(federation.model.path)})
    tokenizer = federation.tokenizer.model_copy(update={"path": _name(federation.tokenizer.path)})
    return federation.model_copy(
        update={"silos": silos, "root": root, "plugins": (), "model": model, "tokenizer": tokenizer}
    )


def _name(path: str | None) -> str | None:
    """The last part of an absolute path; a hub id stays as it is."""
    return PurePath(path).name if path is not None and PurePath(path).is_absolute() else path


def canonical(federation: Federation) -> dict[str, Any]:
    """The shared settings as plain values, defaults included."""
    plain: dict[str, Any] = shared_settings(federation).model_dump(mode="json")
    return plain


def for_members(federation: Federation) -> bytes:
    """The shared settings as a coordinator sends them: all values, and which of them are at their defaults.

    A member with an older version of Hansa, which does not know a new setting, ignores it if it is at its default.
    """
    shared = shared_settings(federation)
    values, stated = shared.model_dump(mode="json"), shared.model_dump(mode="json", exclude_defaults=True)
    sent = {SETTINGS: values, AT_DEFAULT: list(_missing(values, stated, ()))}
    return json.dumps(sent, ensure_ascii=False, allow_nan=False).encode()


def from_coordinator(text: bytes) -> Federation:
    """The settings that `for_members` of this or a newer version wrote, without unknown ones at their defaults.

    Raises `ConfigError` in one sentence if they are invalid, or have a setting that is not known here and is used.
    """
    try:
        sent = parse_json(text)
        values, at_default = sent[SETTINGS], {tuple(path) for path in sent[AT_DEFAULT]}
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"the settings cannot be read ({type(error).__name__})") from None
    try:
        return Federation.model_validate_json(json.dumps(values))
    except ValidationError as error:
        unknown = [one["loc"] for one in error.errors() if one["type"] == "extra_forbidden"]
    for path in unknown:
        if not any(path[:end] in at_default for end in range(1, len(path) + 1)):
            named = printable(".".join(map(str, path)), 200)
            raise ConfigError(
                f"the settings have '{named}', which this version of Hansa does not know: upgrade it, or leave the "
                "setting out of the federation file"
            )
        _drop(values, path)
    try:
        return Federation.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise ConfigError(f"the settings cannot be used: {str(error).splitlines()[0]}") from None


def _missing(values: Any, stated: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """The paths of values that ``stated`` does not have."""
    if isinstance(values, dict) and isinstance(stated, dict):
        for key, value in values.items():
            if key not in stated:
                yield (*path, key)
            else:
                yield from _missing(value, stated[key], (*path, key))
    elif isinstance(values, list) and isinstance(stated, list) and len(values) == len(stated):
        for number, (value, one) in enumerate(zip(values, stated, strict=True)):
            yield from _missing(value, one, (*path, number))


def _drop(values: Any, path: tuple[str | int, ...]) -> None:
    for key in path[:-1]:
        values = values[key]
    del values[path[-1]]


def digest(values: Any) -> str:
    """SHA-256 of plain values, in hexadecimal; the order of keys does not matter."""
    return sha256(json.dumps(values, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()).hexdigest()


def settings_digest(federation: Federation) -> str:
    """The digest of the shared settings."""
    return digest(canonical(federation))


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """What differs between two canonical settings, one line per setting: ``rounds: 10 → 20``."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}):
            inner = f"{path}.{key}" if path else str(key)
            yield from differences(before.get(key), after.get(key), inner)
    elif before != after:
        yield f"{path}: {_shown(before)} → {_shown(after)}"


def _shown(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else text[:117] + "..."
