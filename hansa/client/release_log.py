"""Copies of what left a silo, kept in its own folder for an audit (`release_log: {knowledge: true, updates: true}`).

runs/NAME/silos/SILO/released/round-R/
  knowledge.safetensors the tensors that it shared: of FedKC `centroids` (pairs × width, or pairs × positions ×
                       width) and `predictions` (pairs × classes); a pair is one row of each
  knowledge.json         {"members": [...], "lengths": [...], "withheld": n, as in `Knowledge`;
                        "samples": [[...], ...]: for each row the samples it was made from}
  update.safetensors   the update's tensors as they left: θ − θᵢ by name
  update.json          {"samples": [...]: the samples trained on, once per pass}
  received.safetensors the shared model the silo had received, by name

Samples are indices into `Silo.examples("train")`; what they say stays in the silo's data. The folder is as confidential
as the silo's data: nobody but the silo's own auditor should read it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from hansa.core.knowledge import Indices, SharedKnowledge
from hansa.core.tensors import Tensors


@dataclass(frozen=True)
class Released:
    """What one silo released in one round; tensors are read when they are asked for."""

    silo: str
    round: int
    kind: str
    folder: Path

    @cached_property
    def notes(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"{self.kind}.json").read_text())
        return found

    @property
    def tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = load_file(self.folder / f"{self.kind}.safetensors")
        return found

    @property
    def received(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = load_file(self.folder / "received.safetensors")
        return found


def log_knowledge(home: Path, round: int, shared: SharedKnowledge, received: Tensors) -> None:
    """Keep what a silo shares in an exchange, and the samples behind it."""
    given = shared.knowledge
    notes = {"members": given.members, "lengths": given.lengths, "withheld": given.withheld}
    notes |= {"samples": [rows.tolist() for rows in shared.samples]}
    _write(home, round, "knowledge", given.tensors, notes, received)


def log_update(home: Path, round: int, gradient: Tensors, samples: Indices, received: Tensors) -> None:
    """Keep an update as it leaves, and the samples that it was trained on."""
    _write(home, round, "update", gradient, {"samples": samples.tolist()}, received)


def releases(run: Path, kind: str) -> Iterator[Released]:
    """The recorded releases of a run, ``kind`` "offer" or "update", by silo and round."""
    found = [
        (f.parent.parent.parent.name, int(f.parent.name.removeprefix("round-")), f.parent)
        for f in run.glob(f"silos/*/released/round-*/{kind}.json")
    ]
    for silo, round, folder in sorted(found):
        yield Released(silo, round, kind, folder)


def _write(home: Path, round: int, kind: str, tensors: Tensors, notes: dict[str, Any], received: Tensors) -> None:
    folder = home / "released" / f"round-{round}"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors.named(), folder / f"{kind}.safetensors")
    if not (folder / "received.safetensors").exists():
        save_file(received.named(), folder / "received.safetensors")
    (folder / f"{kind}.json").write_text(json.dumps(notes))
