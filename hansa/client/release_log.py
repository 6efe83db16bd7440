"""The release log: copies of what left a silo, in the silo's own folder.

It is written where the federation file says `release_log: {knowledge: true, updates: true}`:

runs/NAME/silos/SILO/released/round-R/
  knowledge.safetensors  the tensors that the silo shared: of FedKC `centroids` (pairs × width, or pairs × positions ×
                         width) and `predictions` (pairs × classes); a pair is one row of each
  knowledge.json         {"members": [...], "lengths": [...], "withheld": n, as in `Knowledge`;
                         "samples": [[...], ...]: for each row the samples that it was made from}
  update.safetensors     the tensors of the update as they left: θ − θᵢ by name
  update.json            {"samples": [...]: the samples trained on, once per pass}
  received.safetensors   the shared model that the silo had received, by name

Samples are indices into the silo's training samples (`ResidentSilo.examples("train")`); their text is not copied. The
folder is as confidential as the silo's data: only the silo's own auditor should have access to it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file, save_file
from torch import Tensor

from hansa.core.knowledge import Indices, SharedKnowledge
from hansa.core.tensors import Tensors

ReleaseKind = Literal["knowledge", "update"]


@dataclass(frozen=True)
class LoggedRelease:
    """What one silo released in one round. Files are read when a property is asked for."""

    silo: str
    round: int
    kind: ReleaseKind
    folder: Path

    @cached_property
    def notes(self) -> dict[str, Any]:
        """What the JSON file states about the release, such as the samples behind it."""
        found: dict[str, Any] = json.loads((self.folder / f"{self.kind}.json").read_text())
        return found

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The released tensors by name."""
        found: dict[str, Tensor] = load_file(self.folder / f"{self.kind}.safetensors")
        return found

    @property
    def received(self) -> dict[str, Tensor]:
        """The shared model that the silo had received, by name."""
        found: dict[str, Tensor] = load_file(self.folder / "received.safetensors")
        return found


def log_knowledge(home: Path, round: int, shared: SharedKnowledge, received: Tensors) -> None:
    """Log the knowledge that a silo shares, with the samples behind it; ``home``: the silo's folder."""
    given = shared.knowledge
    notes = {"members": given.members, "lengths": given.lengths, "withheld": given.withheld}
    notes |= {"samples": [rows.tolist() for rows in shared.samples]}
    _write(home, round, "knowledge", given.tensors, notes, received)


def log_update(home: Path, round: int, gradient: Tensors, samples: Indices, received: Tensors) -> None:
    """Log an update as it leaves, with the samples that it was trained on; ``home``: the silo's folder."""
    _write(home, round, "update", gradient, {"samples": samples.tolist()}, received)


def logged_releases(run: Path, kind: ReleaseKind) -> Iterator[LoggedRelease]:
    """The logged releases of a run directory, ordered by silo and round."""
    found = [
        (f.parent.parent.parent.name, int(f.parent.name.removeprefix("round-")), f.parent)
        for f in run.glob(f"silos/*/released/round-*/{kind}.json")
    ]
    for silo, round, folder in sorted(found):
        yield LoggedRelease(silo, round, kind, folder)


def _write(
    home: Path, round: int, kind: ReleaseKind, tensors: Tensors, notes: dict[str, Any], received: Tensors
) -> None:
    folder = home / "released" / f"round-{round}"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors.named(), folder / f"{kind}.safetensors")
    if not (folder / "received.safetensors").exists():
        save_file(received.named(), folder / "received.safetensors")
    (folder / f"{kind}.json").write_text(json.dumps(notes))
