"""A node's state between rounds, on its own disk: slot → state, one file per round, written atomically.

A run may be resumed from its newest checkpoint, so a node keeps the state that belongs to that round until a newer one
is durable; redoing a round then starts from the same state and ends in the same bits.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from safetensors import safe_open
from torch import Tensor

from hansa.core.codec import Packed, Vectors, header_line, put_together, take_apart, words
from hansa.core.errors import RunFailed
from hansa.core.wire import as_bytes

DELETED = "deleted"  # the file with the newest round whose state was deleted
ALIGNMENT = 8  # of the vectors in a safetensors file

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


def write_vectors(file: Path, vectors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write flat float32 vectors on the CPU as a safetensors file with the metadata ``about``.

    The bytes go from the tensors' own memory to the file, and other threads run meanwhile, such as the steps ahead of
    the next round; `safetensors.torch.save_file` holds the interpreter's lock until the file is written.
    """
    header: dict[str, Any] = {"__metadata__": dict(about)}
    end = 0
    for name, vector in vectors.items():
        begin, end = end, end + vector.nbytes
        header[name] = {"dtype": "F32", "shape": [vector.numel()], "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with file.open("wb", buffering=0) as stream:
        for view in (memoryview(len(text).to_bytes(8, "little") + text), *map(as_bytes, vectors.values())):
            while view:  # one call may write a part only
                view = view[stream.write(view) :]


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
        self.prepare(round, states, durable)()

    def prepare(
        self, round: int, states: Mapping[str, Any], durable: int, changing: Sequence[Tensor] = ()
    ) -> Callable[[], None]:
        """Return a function that does what `keep` does: it stores the state as it is now, whenever it is called.

        ``changing``: tensors that may be overwritten before that call; parts of the state that lie in their memory are
        copied. The function raises `OSError` if the state cannot be written; earlier states are intact then.
        """
        if not states:
            return lambda: None
        headers, vectors = encoded(states)
        shared = {one.untyped_storage().data_ptr() for one in changing}
        tensors = {name: vector.cpu().contiguous() for name, vector in vectors.items()}
        for name, tensor in tensors.items():
            if tensor.untyped_storage().data_ptr() in shared:
                tensors[name] = tensor.clone()
        about = {"states": json.dumps(headers, ensure_ascii=False)}
        return lambda: self._write(round, tensors, about, durable)

    def _write(self, round: int, tensors: Mapping[str, Tensor], about: Mapping[str, str], durable: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self._file(round).with_suffix(".draft")
        write_vectors(draft, tensors, about)
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
