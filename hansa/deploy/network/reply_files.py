"""Replies as the blob server stores them: a text, and vectors that are mapped from files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hansa.core import wire
from hansa.core.errors import printable
from hansa.core.messages import Failure, Reply, Request


def read_reply(text: Path, vectors: Mapping[str, tuple[Path, int]]) -> Reply:
    """The reply in the file ``text``, with its ``vectors`` (file and size in bytes).

    Raises `wire.BadMessage` or `ValueError` if the files are not a reply.
    """
    reply: Any = wire.join(
        text.read_text(encoding="utf-8"), {name: _mapped(file, size) for name, (file, size) in vectors.items()}
    )
    if isinstance(reply, Request):
        raise wire.BadMessage(f"a {type(reply).__name__} is not a reply")
    return Failure(printable(reply.reason)) if isinstance(reply, Failure) else reply


def _mapped(file: Path, size: int) -> Tensor:
    """A vector that is mapped from a file, and read when it is used."""
    if size % 4:
        raise ValueError(f"{size} bytes are not a float32 vector")
    return torch.from_file(str(file), shared=False, size=size // 4, dtype=torch.float32) if size else torch.zeros(0)
