"""A node's state between rounds, on its own disk: slot → state, one file per round, written atomically.

A run may be resumed from its newest checkpoint, so a node keeps the state that belongs to that round until a newer one
is durable; redoing a round then starts from the same state and ends in the same bits.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from hansa.core.codec import Packed, Vectors, header_line, put_together, take_apart, words
from hansa.core.errors import RunFailed

DELETED = "deleted"  # the file with the newest round whose state was deleted

T = TypeVar("T")


class StoredStates:
    """The states of one file, each decoded as the type that its slot asks for."""

    def __init__(self, headers: Mapping[str, Any], vectors: Mapping[str, Tensor]) -> None:
        self._headers, self._vectors = headers, vectors

    def get(self, slot: str, kind: type[T]) -> T | None:
        """The state of a slot; None if it has none. Raises `DecodingError` if what is stored is of another type."""
        if slot not in self._headers:
            return None
        header = self._headers[slot]
        own = {place: self._vectors[f"{slot}/{place}"] for place in header["vectors"]}
        packed = Packed(header["vectors"], header["lines"], own)
        state: T = put_together(kind, header["body"], slot, packed)
        return state


def encoded(states: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """States by slot as JSON-ready headers and named vectors, as they stand in a file."""
    headers: dict[str, Any] = {}
    vectors: dict[str, Tensor] = {}
    for slot, state in states.items():
        found: Vectors = {}
        body = take_apart(state, "", found)
        headers[slot] = {"body": body, "vectors": list(found), "lines": [header_line(v) for v in found.values()]}
        vectors |= {f"{slot}/{place}": words(vector) for place, vector in found.items()}
    return headers, vectors


class StateFolder:
    """Implements `hansa.core.state.StateStore` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def recall(self, round: int) -> StoredStates:
        """The newest state from before ``round``; raises `RunFailed` if it was deleted.

        It was deleted if a server with an older checkpoint than it had before, such as a backup, repeats a round.
        """
        rounds = self._rounds()
        earlier = [r for r in rounds if r < round]
        if not earlier:
            if rounds and 0 < self._deleted() < round:  # a state is deleted only when there is a newer one
                raise RunFailed(f"the state from before round {round} was deleted when a later round was checkpointed")
            return StoredStates({}, {})
        with safe_open(self._file(max(earlier)), "pt") as file:
            headers = json.loads(file.metadata()["states"])
            return StoredStates(headers, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118

    def newest(self) -> StoredStates:
        """The newest state of all."""
        rounds = self._rounds()
        return self.recall(max(rounds) + 1) if rounds else StoredStates({}, {})

    def keep(self, round: int, states: Mapping[str, Any], durable: int) -> None:
        """Store the state after ``round``; states from before the ``durable`` round are deleted."""
        if not states:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        headers, vectors = encoded(states)
        draft = self._file(round).with_suffix(".draft")
        tensors = {name: vector.cpu().contiguous() for name, vector in vectors.items()}
        save_file(tensors, draft, {"states": json.dumps(headers, ensure_ascii=False)})
        os.replace(draft, self._file(round))
        kept = self._rounds()
        needed = max((r for r in kept if r <= durable), default=0)
        if outdated := [old for old in kept if old < needed]:
            (self.folder / DELETED).write_text(str(max(outdated)))
        for old in outdated:
            self._file(old).unlink()

    def _deleted(self) -> int:
        """The newest round whose state was deleted; 0 if none was."""
        try:
            return int((self.folder / DELETED).read_text())
        except (OSError, ValueError):
            return 0

    def _file(self, round: int) -> Path:
        return self.folder / f"round-{round}.safetensors"

    def _rounds(self) -> list[int]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return [int(n[6:-12]) for n in names if n.startswith("round-") and n.endswith(".safetensors")]
