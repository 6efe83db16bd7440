"""Shared memory for tensors that cross between processes of one machine."""

from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import torch
from torch import Tensor

FLOAT = 4
Place = tuple[str, int, int]  # block name, offset and length, counted in floats


@dataclass
class Block:
    """A piece of shared memory."""

    memory: SharedMemory

    @property
    def name(self) -> str:
        """The name under which other processes find it."""
        return self.memory.name

    @property
    def floats(self) -> int:
        """Its size in floats."""
        return self.memory.size // FLOAT


class Blocks:
    """The owner's side: blocks are reused, the smallest that fits first, and removed at the end."""

    def __init__(self) -> None:
        self._all: list[Block] = []
        self._free: dict[int, list[Block]] = {}  # size in floats → free blocks of that size

    def take(self, floats: int) -> Block:
        """A free block of at least so many floats."""
        size = min((size for size, blocks in self._free.items() if blocks and size >= floats), default=None)
        if size is not None:
            return self._free[size].pop()
        block = Block(SharedMemory(create=True, size=max(FLOAT * floats, 4096)))
        self._all.append(block)
        return block

    def give_back(self, block: Block) -> None:
        """Make a block free again."""
        self._free.setdefault(block.floats, []).append(block)

    def close(self) -> None:
        """Remove all blocks."""
        for block in self._all:
            block.memory.unlink()
            _close(block.memory)
        self._all, self._free = [], {}


class Views:
    """Tensors that look into blocks by name; every process keeps the blocks it has met mapped."""

    def __init__(self) -> None:
        self._mapped: dict[str, SharedMemory] = {}

    def view(self, place: Place) -> Tensor:
        """The tensor at a place; no copy."""
        name, offset, length = place
        if not length:  # nothing to look at, and no block was taken for it
            return torch.zeros(0)
        if name not in self._mapped:
            self._mapped[name] = SharedMemory(name=name)
        return look(self._mapped[name], offset, length)


def look(memory: SharedMemory, offset: int, length: int) -> Tensor:
    """A tensor over a part of shared memory; no copy."""
    buffer: Any = memory.buf
    if not length:
        return torch.zeros(0)
    return torch.frombuffer(buffer, dtype=torch.float32, offset=FLOAT * offset, count=length)


def _close(memory: SharedMemory) -> None:
    try:
        memory.close()
    except BufferError:  # a tensor still looks into it; the mapping goes when the tensor does
        memory._buf = memory._mmap = None  # type: ignore[attr-defined]
