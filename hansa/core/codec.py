"""Typed dataclasses as text and flat vectors, and back: the encoding of messages on the wire and of state on disk.

A dataclass becomes JSON, with every `Tensors` and `EncodedUpdate` inside it taken out as one flat float32 vector.
Decoding builds exactly the declared type, field by field; an unknown or wrongly typed field is refused, and so is a
missing one that has no default. Nothing is pickled and no type is chosen by the bytes.

A field at its default is left out. So a version of Hansa that adds a field with a default still understands the version
before it, and is understood by it as long as the new field is not used.

Fields may hold str, int, float, bool, `Tensors`, `EncodedUpdate`, another dataclass, and tuples, dicts and options of
these. A dataclass field with ``metadata={"local": True}`` is known to this process only and is not encoded.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from hansa.core.encoding import EncodedUpdate
from hansa.core.errors import HansaError, parse_json
from hansa.core.tensors import Layout, Tensors

MAX_LAYOUT_CHARACTERS = 8 << 20  # layouts are cached, so a sender must not be able to fill the memory with them
LOCAL: Mapping[str, bool] = {"local": True}
PLAIN = frozenset((int, float, str, bool, type(None)))

Vectors = dict[str, Tensors | EncodedUpdate]


class DecodingError(HansaError):
    """Text and vectors that do not describe a value of the declared type."""


def take_apart(value: Any, place: str, vectors: Vectors) -> Any:
    """Return ``value`` as JSON-ready data.

    Each vector inside goes to ``vectors`` under its place (``model``, ``knowledge.items.0.tensors``); in the data
    stands its position there.
    """
    if type(value) in PLAIN:
        return value
    if isinstance(value, Tensors | EncodedUpdate):
        vectors[place] = value
        return len(vectors) - 1
    if is_dataclass(value) and not isinstance(value, type):
        prefix = f"{place}." if place else ""
        return {
            name: take_apart(one, prefix + name, vectors)
            for name, default in _defaults(value.__class__)
            if not _is_default(one := getattr(value, name), default)
        }
    if isinstance(value, dict):
        return {str(key): take_apart(one, f"{place}.{key}", vectors) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [take_apart(one, f"{place}.{i}", vectors) for i, one in enumerate(value)]
    return value


def header_line(vector: Tensors | EncodedUpdate) -> str:
    """The line of text that describes a vector: the layout of tensors, or what an encoded update consists of."""
    return vector.text if isinstance(vector, EncodedUpdate) else vector.layout.text


def words(vector: Tensors | EncodedUpdate) -> Tensor:
    """The flat vector of 32-bit words itself."""
    return vector.words if isinstance(vector, EncodedUpdate) else vector.flat


class Packed:
    """The vectors that belong to one encoded value: their lines of text and their words, each to be used once."""

    def __init__(self, names: list[str], lines: list[str], vectors: Mapping[str, Tensor]) -> None:
        if sorted(map(str, names)) != sorted(vectors) or len(names) != len(lines):
            raise DecodingError(f"the vectors {sorted(vectors)} do not match the header's {names}")
        self._found = [(line, vectors[name]) for name, line in zip(names, lines, strict=True)]
        self._unused = set(range(len(names)))

    def take(self, index: Any, where: str) -> tuple[str, Tensor]:
        """The line and the words at a position; raises `DecodingError` if it is not one, or was used before."""
        if type(index) is not int or index not in self._unused:
            raise DecodingError(f"{where} refers to a vector that is not there")
        self._unused.discard(index)
        return self._found[index]

    def check_used(self, where: str) -> None:
        """Raise `DecodingError` if a vector belongs to no field."""
        if self._unused:
            raise DecodingError(f"{where} has no place for {len(self._unused)} of the vectors")


def put_together(kind: Any, data: Any, where: str, packed: Packed) -> Any:
    """Return the value of type ``kind`` that `take_apart` turned into ``data``.

    ``where`` names the value in error messages. Raises `DecodingError` if the data does not fit the type.
    """
    return _decoder(kind, where)(data, packed)


Decoder = Callable[[Any, Packed], Any]


@cache
def _decoder(kind: Any, where: str) -> Decoder:
    """The function that decodes values of a type, put together once: messages are many, types are few."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Tensors:
        return lambda data, packed: _tensors(where, *packed.take(data, where))
    if kind is EncodedUpdate:
        return lambda data, packed: _encoded(where, *packed.take(data, where))
    if is_dataclass(kind):
        return _dataclass_decoder(kind, where)
    if origin in (Union, types.UnionType):
        (inner_kind,) = (one for one in arguments if one is not type(None))
        inner = _decoder(inner_kind, where)
        return lambda data, packed: None if data is None else inner(data, packed)
    if origin is dict:
        return _dict_decoder(arguments[0], _decoder(arguments[1], where), where)
    if origin is tuple:
        return _tuple_decoder(_decoder(arguments[0], where), where)
    return _plain_decoder(kind, where)


def _dataclass_decoder(kind: Any, where: str) -> Decoder:
    decoders = {name: _decoder(hint, f"{where}.{name}") for name, hint in encoded_fields(kind)}
    needed = {name for name, default in _defaults(kind) if default is MISSING}

    def decode(data: Any, packed: Packed) -> Any:
        """The instance of the dataclass; raises `DecodingError` for an unknown field, or a missing one."""
        if not isinstance(data, dict) or not needed <= data.keys():
            raise DecodingError(f"{where} needs the fields {sorted(needed)}, and what came is different")
        if unknown := data.keys() - decoders.keys():
            named = ", ".join(sorted(str(name)[:60] for name in unknown)[:5])
            raise DecodingError(f"{where} has no field {named}: it may come from a newer version of Hansa")
        return kind(**{name: decoders[name](value, packed) for name, value in data.items()})

    return decode


def _dict_decoder(key: Any, inner: Decoder, where: str) -> Decoder:
    def decode(data: Any, packed: Packed) -> Any:
        """The dictionary with decoded keys and values; raises `DecodingError` for data of another type."""
        if not isinstance(data, dict):
            raise DecodingError(f"{where} is {type(data).__name__}, expected dict")
        return {_key(key, k, where): inner(v, packed) for k, v in data.items()}

    return decode


def _tuple_decoder(inner: Decoder, where: str) -> Decoder:
    def decode(data: Any, packed: Packed) -> Any:
        """The tuple of the decoded elements of a list; raises `DecodingError` for anything but a list."""
        if not isinstance(data, list):
            raise DecodingError(f"{where} is {type(data).__name__}, expected tuple")
        return tuple(inner(one, packed) for one in data)

    return decode


def _plain_decoder(kind: Any, where: str) -> Decoder:
    def decode(data: Any, packed: Packed) -> Any:
        """The value itself if it has the expected type, a whole number as a float where that is expected.

        Raises `DecodingError` for a value of any other type.
        """
        if type(data) is kind:
            return data
        if kind is float and type(data) is int:  # JSON may write 1.0 as 1
            return float(data)
        raise DecodingError(f"{where} is {type(data).__name__}, expected {getattr(kind, '__name__', kind)}")

    return decode


def _key(kind: Any, key: str, where: str) -> str | int:
    try:
        return int(key) if kind is int else key
    except ValueError:
        raise DecodingError(f"{where} has a key that is not a whole number") from None


@cache
def encoded_fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    """The fields of a dataclass that are encoded, with their types."""
    hints = get_type_hints(kind)
    return tuple((f.name, hints[f.name]) for f in fields(kind) if not f.metadata.get("local"))


@cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """The encoded fields of a dataclass, each with its default; `MISSING` where it has none."""
    made = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields(kind)}
    return tuple((name, made[name]) for name, _ in encoded_fields(kind))


def _is_default(value: Any, default: Any) -> bool:
    """Whether a value is the default of its field, bit for bit; only plain and empty defaults count."""
    if default is MISSING or type(value) is not type(default):
        return False
    if isinstance(value, float):
        return value.hex() == float(default).hex()  # 0.0 is not -0.0
    if type(value) in PLAIN:
        return bool(value == default)
    if isinstance(value, Tensors):
        return not value.layout.names and not default.layout.names
    return isinstance(value, tuple | dict) and not value and not default


def _tensors(where: str, line: str, vector: Tensor) -> Tensors:
    if len(line) > MAX_LAYOUT_CHARACTERS:
        raise DecodingError(f"{where}: a layout of {len(line)} characters")
    try:
        layout = _layout(line)
    except (TypeError, ValueError) as error:
        raise DecodingError(f"{where}: not a layout ({type(error).__name__})") from None
    if vector.dtype != torch.float32 or vector.ndim != 1 or layout.size != vector.numel():
        raise DecodingError(f"{where}: the layout does not fit its {tuple(vector.shape)} {vector.dtype} vector")
    return Tensors(layout, vector)


def _encoded(where: str, line: str, vector: Tensor) -> EncodedUpdate:
    """Its contents are checked where the model is known: see `EncodedUpdate.open`."""
    if vector.dtype != torch.float32 or vector.ndim != 1:
        raise DecodingError(f"{where}: not a vector of words, but {tuple(vector.shape)} {vector.dtype}")
    return EncodedUpdate(line, vector)


@lru_cache(maxsize=16)
def _layout(text: str) -> Layout:
    """Parsed and checked once: the same few layouts come with every message."""
    names, shapes = parse_json(text)
    layout = Layout(tuple(names), tuple(tuple(shape) for shape in shapes))
    sizes = [size for shape in layout.shapes for size in shape]
    if not all(isinstance(name, str) for name in names) or not all(type(n) is int and n >= 0 for n in sizes):
        raise ValueError("names must be text and shapes whole numbers")
    if not len(set(names)) == len(names) == len(shapes):
        raise ValueError("a name comes twice, or names and shapes differ in number")
    return layout
