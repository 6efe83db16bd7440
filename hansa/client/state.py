"""What a silo keeps between rounds: its personal tensors, its optimiser. One file per round, written atomically.

A run may be resumed from its newest checkpoint, so a silo keeps the state that belongs to that round until a newer one
is durable; redoing a round then starts from the same memory and ends in the same bits.
"""

import os
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor


class StateStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def recall(self, round: int) -> dict[str, Tensor]:
        """The newest state from before ``round``."""
        earlier = [r for r in self._rounds() if r < round]
        return load_file(self._file(max(earlier))) if earlier else {}

    def newest(self) -> dict[str, Tensor]:
        rounds = self._rounds()
        return self.recall(max(rounds) + 1) if rounds else {}

    def keep(self, round: int, tensors: dict[str, Tensor], durable: int) -> None:
        if not tensors:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self._file(round).with_suffix(".draft")
        save_file({name: t.cpu().contiguous() for name, t in tensors.items()}, draft)
        os.replace(draft, self._file(round))
        needed = max((r for r in self._rounds() if r <= durable), default=0)
        for old in self._rounds():
            if old < needed:
                self._file(old).unlink()

    def _file(self, round: int) -> Path:
        return self.folder / f"round-{round}.safetensors"

    def _rounds(self) -> list[int]:
        return [int(f.stem.removeprefix("round-")) for f in self.folder.glob("round-*.safetensors")]
