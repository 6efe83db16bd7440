"""Messages as bytes: a JSON header, then the raw tensors, in one safetensors file. Never pickle.

Decoding builds only the message types listed here, from exactly their fields, each of the declared type; anything else
is refused. Each `Tensors` or `EncodedUpdate` field is one flat vector of 32-bit words named after its field; the header's
metadata holds the rest of the message, the layouts and what is coded how. A message may hold others (`Train.offers`):
their fields are named by their place.

A model that the receiver holds already (`Train.held`) stays behind; the silo puts it back (`node.Silo`).
"""

import json
from dataclasses import replace
from functools import lru_cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from hansa.core import messages
from hansa.core.encoding import EncodedUpdate
from hansa.core.errors import HansaError, parse_json
from hansa.core.tensors import Layout, Tensors

TYPES = {t.__name__: t for union in (messages.Request, messages.Reply) for t in get_args(union)}
FIELDS = {name: get_type_hints(t) for name, t in TYPES.items()}
LARGEST_HEADER = 64 << 20
LONGEST_LAYOUT = 8 << 20  # some are kept in memory: whoever makes up new ones must not fill it


class BadMessage(HansaError):
    """Bytes that are not a message."""


def split(message: Any, whole: bool = False) -> tuple[str, dict[str, Tensor]]:
    """A message as text and the flat vectors it refers to: a link may move the two by different ways.

    The text is one line of JSON for the message and one for the layout of each vector, in their order. ``whole``: with
    the model that the receiver holds (of a link whose receivers keep nothing).
    """
    if isinstance(message, messages.Train) and message.held and not whole:
        message = replace(message, model=Tensors.of({}))
    kind = type(message).__name__
    found: dict[str, Tensors | EncodedUpdate] = {}
    body = _body(message, "", found)
    header = json.dumps({"type": kind, "body": body, "vectors": list(found)}, ensure_ascii=False)
    vectors = {name: one.words if isinstance(one, EncodedUpdate) else one.flat for name, one in found.items()}
    lines = [one.text if isinstance(one, EncodedUpdate) else one.layout.text for one in found.values()]
    return "\n".join([header, *lines]), vectors


def _body(message: Any, place: str, found: dict[str, Tensors | EncodedUpdate]) -> dict[str, Any]:
    """A message's fields; its vectors, and those of messages inside it, go to ``found``."""
    body: dict[str, Any] = {}
    for name, hint in FIELDS[type(message).__name__].items():
        value = getattr(message, name)
        if isinstance(value, Tensors | EncodedUpdate):
            found[place + name] = value
        elif _inner(hint):
            body[name] = [_body(one, f"{place}{name}.{i}.", found) for i, one in enumerate(value)]
        else:
            body[name] = value
    return body


def _inner(hint: Any) -> Any:
    """The type of the messages that a field holds, if it holds messages."""
    inner = get_args(hint)[0] if get_origin(hint) is tuple else None
    return inner if inner in TYPES.values() else None


def join(text: str, vectors: dict[str, Tensor]) -> Any:
    """The message that `split` took apart; refuses whatever does not fit."""
    header, *layouts = text.split("\n")
    try:
        parsed = parse_json(header)
        kind, body, names = parsed["type"], dict(parsed["body"]), list(parsed["vectors"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadMessage(f"the header is not a message header ({type(error).__name__})") from None
    if not isinstance(kind, str) or kind not in TYPES:
        raise BadMessage(f"unknown message type {str(kind)[:60]!r}")
    if sorted(map(str, names)) != sorted(vectors) or len(names) != len(layouts):
        raise BadMessage(f"{kind}: vectors {sorted(vectors)} do not match the header's {names}")
    packed = {name: (line, vectors[name]) for name, line in zip(names, layouts, strict=True)}
    message = _message(kind, body, "", packed)
    if packed:
        raise BadMessage(f"{kind} has no place for the vectors {sorted(packed)}")
    return message


def _message(kind: str, body: Any, place: str, packed: dict[str, tuple[str, Tensor]]) -> Any:
    """The message with this body; it takes its vectors out of ``packed``."""
    fields = FIELDS[kind]
    flat = {name for name in fields if place + name in packed}
    if not isinstance(body, dict) or set(body) != set(fields) - flat:
        raise BadMessage(f"{kind} has fields {sorted(fields)}, and what came is different")
    values: dict[str, Any] = {}
    for name, hint in fields.items():
        where, inner = f"{kind}.{name}", _inner(hint)
        if name in flat:
            line, vector = packed.pop(place + name)
            value = _coded(where, line, vector) if EncodedUpdate in get_args(hint) else _tensors(where, line, vector)
            values[name] = _typed(where, value, hint)
        elif inner and isinstance(body[name], list):
            several = enumerate(body[name])
            values[name] = tuple(_message(inner.__name__, b, f"{place}{name}.{i}.", packed) for i, b in several)
        else:
            values[name] = _typed(where, body[name], hint)
    return TYPES[kind](**values)


def _tensors(where: str, text: str, vector: Tensor) -> Tensors:
    if len(text) > LONGEST_LAYOUT:
        raise BadMessage(f"{where}: a layout of {len(text)} characters")
    try:
        layout = _layout(text)
    except (TypeError, ValueError) as error:
        raise BadMessage(f"{where}: not a layout ({type(error).__name__})") from None
    if vector.dtype != torch.float32 or vector.ndim != 1 or layout.size != len(vector):
        raise BadMessage(f"{where}: the layout does not fit its {tuple(vector.shape)} {vector.dtype} vector")
    return Tensors(layout, vector)


def _coded(where: str, text: str, vector: Tensor) -> EncodedUpdate:
    """What it says is read where the model is known: see `EncodedUpdate.open`."""
    if vector.dtype != torch.float32 or vector.ndim != 1:
        raise BadMessage(f"{where}: not a vector of words, but {tuple(vector.shape)} {vector.dtype}")
    return EncodedUpdate(text, vector)


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


def _typed(where: str, value: Any, hint: Any) -> Any:
    """``value`` as the declared type, or a refusal; JSON knows no tuples and may write 1.0 as 1."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is dict and isinstance(value, dict):
        return {str(k): _typed(where, v, args[1]) for k, v in value.items()}
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_typed(where, v, args[0]) for v in value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if type(value) in (hint, *args) and (origin is None or origin is UnionType):
        return value
    raise BadMessage(f"{where} is {type(value).__name__}, expected {getattr(hint, '__name__', hint)}")


def encode(message: Any) -> bytes:
    header, vectors = split(message)
    return save({name: v.contiguous() for name, v in vectors.items()}, {"message": header})


def decode(data: bytes) -> Any:
    if len(data) < 8 or int.from_bytes(data[:8], "little") > min(LARGEST_HEADER, len(data) - 8):
        raise BadMessage("the bytes are not a safetensors file: its header does not fit")
    try:
        vectors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        header = metadata["message"]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BadMessage(f"the bytes are not a message ({type(error).__name__})") from None
    return join(header, vectors)


def size(message: Any) -> int:
    """How many bytes the message is on a wire: header and tensors, without building them."""
    header, vectors = split(message)
    return len(header.encode()) + _bytes(vectors)


def payload(message: Any) -> int:
    """How many bytes its tensors are."""
    return _bytes(split(message)[1])


def _bytes(vectors: dict[str, Tensor]) -> int:
    return sum(v.numel() * v.element_size() for v in vectors.values())


def equal(a: Any, b: Any) -> bool:
    """Whether two messages say the same, bit for bit."""
    (header_a, vectors_a), (header_b, vectors_b) = split(a), split(b)
    return header_a == header_b and all(
        torch.equal(vectors_a[n].view(torch.int32), vectors_b[n].view(torch.int32)) for n in vectors_a
    )


def as_bytes(vector: Tensor) -> memoryview:
    array: Any = vector.contiguous().numpy()
    return memoryview(array).cast("B") if vector.numel() else memoryview(b"")
