"""Messages as bytes: a JSON header, then the raw tensors, in one safetensors file. Never pickle.

Only the message types of `hansa.core.messages` are decoded, from exactly their fields (`hansa.core.codec`). A model
that the receiver already holds (`Train.knowledge.model_held`) is left out; the silo puts it back.
"""

import json
from dataclasses import replace
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from hansa.core import messages
from hansa.core.codec import DecodingError, Packed, Vectors, header_line, put_together, take_apart, words
from hansa.core.errors import parse_json
from hansa.core.tensors import Tensors

TYPES = {t.__name__: t for union in (messages.Request, messages.Reply) for t in get_args(union)}
MAX_HEADER_BYTES = 64 << 20


class BadMessage(DecodingError):
    """Bytes that are not a message."""


def split(message: Any, whole: bool = False) -> tuple[str, dict[str, Tensor]]:
    """Return a message as text and the flat vectors it refers to; a link may move the two by different ways.

    The text is one line of JSON for the message and one for each vector. ``whole``: include the model that the receiver
    holds, for links whose receivers keep nothing.
    """
    if isinstance(message, messages.Train) and message.knowledge and message.knowledge.model_held and not whole:
        message = replace(message, model=Tensors.of({}))
    found: Vectors = {}
    body = take_apart(message, "", found)
    header = json.dumps({"type": type(message).__name__, "body": body, "vectors": list(found)}, ensure_ascii=False)
    text = "\n".join([header, *map(header_line, found.values())])
    return text, {place: words(vector) for place, vector in found.items()}


def join(text: str, vectors: dict[str, Tensor]) -> Any:
    """Return the message that `split` took apart; raises `BadMessage` for anything that does not fit."""
    header, *lines = text.split("\n")
    try:
        parsed = parse_json(header)
        kind, body, names = parsed["type"], parsed["body"], list(parsed["vectors"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadMessage(f"the header is not a message header ({type(error).__name__})") from None
    if not isinstance(kind, str) or kind not in TYPES:
        raise BadMessage(f"unknown message type {str(kind)[:60]!r}")
    try:
        packed = Packed(names, lines, vectors)
        message = put_together(TYPES[kind], body, kind, packed)
        packed.check_used(kind)
    except DecodingError as error:
        raise BadMessage(str(error)) from None
    return message


def encode(message: Any) -> bytes:
    """Return a message as the bytes of one safetensors file."""
    header, vectors = split(message)
    return save({name: v.contiguous() for name, v in vectors.items()}, {"message": header})


def decode(data: bytes) -> Any:
    """Return the message in ``data``; raises `BadMessage` if it holds none."""
    if len(data) < 8 or int.from_bytes(data[:8], "little") > min(MAX_HEADER_BYTES, len(data) - 8):
        raise BadMessage("the bytes are not a safetensors file: its header does not fit")
    try:
        vectors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        header = metadata["message"]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BadMessage(f"the bytes are not a message ({type(error).__name__})") from None
    return join(header, vectors)


def size(message: Any) -> int:
    """The number of bytes of a message on the wire, header and tensors, without building them."""
    header, vectors = split(message)
    return len(header.encode()) + _bytes(vectors)


def payload(message: Any) -> int:
    """The number of bytes of a message's tensors."""
    return _bytes(split(message)[1])


def _bytes(vectors: dict[str, Tensor]) -> int:
    return sum(v.numel() * v.element_size() for v in vectors.values())


def equal(a: Any, b: Any) -> bool:
    """Whether two messages are the same, bit for bit."""
    (header_a, vectors_a), (header_b, vectors_b) = split(a), split(b)
    return header_a == header_b and all(
        torch.equal(vectors_a[n].view(torch.int32), vectors_b[n].view(torch.int32)) for n in vectors_a
    )


def as_bytes(vector: Tensor) -> memoryview:
    """The memory of a vector, without a copy."""
    array: Any = vector.contiguous().numpy()
    return memoryview(array).cast("B") if vector.numel() else memoryview(b"")
