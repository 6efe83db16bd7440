"""A run directory: everything a run leaves behind, written so that a crash at any moment loses at most some rounds.

runs/NAME/
  federation.yaml     resolved configuration       ledger.sqlite      rounds, metrics, traffic, events
  metrics.jsonl       one line per event           checkpoints/round-N/
  best/               the best model so far, with evaluate.keep_best
  start/              the tokeniser, labels and weights every silo started from
  model/              plain save_pretrained folder with a model card
  silos/NAME/model/   personal models where there are any
  report.html         self-contained
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml
from safetensors.torch import load_file, save_file

from hansa.client.state import StoredStates, encoded
from hansa.config.federation import Federation
from hansa.config.file import dump, parse
from hansa.core.errors import UserError
from hansa.core.state import ServerState
from hansa.core.tensors import Tensors
from hansa.files import atomically

INPUTS = "inputs"  # data and models that were in memory when the run began


class RunDirectory:
    """The folder of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def create(federation: Federation, out: Path | None, resume: bool) -> "RunDirectory":
        """A new directory, or the one to resume. Without ``out`` it is runs/NAME, numbered if taken."""
        out = out or RunDirectory.path_for(federation.name, resume)
        directory = RunDirectory(out)
        written = out / "federation.yaml"
        if resume:
            if not written.is_file():
                raise UserError(f"--resume: {out} holds no run (no federation.yaml); start it without --resume")
            if written.read_text(encoding="utf-8") != dump(federation) and not directory._extend(federation):
                raise UserError(
                    f"--resume: the federation file differs from the one {out} was started with; "
                    f"resume with {written} (or with the same --set; more rounds are fine), or start anew without "
                    "--resume"
                )
        else:
            RunDirectory.require_empty(out, but=(INPUTS,))
            out.mkdir(parents=True, exist_ok=True)
            written.write_text(dump(federation), encoding="utf-8")
        return directory

    def _extend(self, federation: Federation) -> bool:
        """Take more rounds than the run was started with; False if anything else differs, or rounds were taken away.

        A learning-rate schedule follows the new number from here on. A run whose silos have trained personal models
        after its last round cannot be extended.
        """
        file = self.path / "federation.yaml"
        before = parse(yaml.safe_load(file.read_text(encoding="utf-8")), where=str(file))
        same = before.model_copy(update={"rounds": federation.rounds}) == federation
        if not same or federation.rounds < before.rounds or federation.personal is not None:
            return False
        file.write_text(dump(federation), encoding="utf-8")
        return True

    @staticmethod
    def path_for(name: str, resume: bool) -> Path:
        """Where a run of that name goes: ``runs/NAME``, numbered if taken; to resume, the newest there is.

        Raises `UserError` if there is none to resume.
        """
        taken = sorted(_numbered(name), key=lambda p: p.stat().st_mtime)
        if not resume:
            return RunDirectory.unused(name, 1 + len(taken))
        if not taken:
            raise UserError(f"--resume: there is no run named '{name}' in runs/; start it without --resume")
        return taken[-1]

    @staticmethod
    def unused(name: str, number: int = 1) -> Path:
        """A folder below ``runs`` that does not exist, numbered from ``number`` on."""
        out = Path("runs") / (name if number == 1 else f"{name}-{number}")
        while out.exists():
            number += 1
            out = Path("runs") / f"{name}-{number}"
        return out

    @staticmethod
    def require_empty(folder: Path, but: tuple[str, ...] = ()) -> None:
        """Raise `UserError` if something is in the folder, except for the names in ``but``."""
        if folder.exists() and any(file.name not in but for file in folder.iterdir()):
            raise UserError(f"{folder} is not empty; choose another --out, or continue the run there with --resume")

    @property
    def start(self) -> Path:
        """The folder with the tokenizer, labels and weights that every silo starts from."""
        return self.path / "start"

    @property
    def model(self) -> Path:
        """The folder of the final model."""
        return self.path / "model"

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, state: ServerState, keep: int, pinned: int | None = None) -> Path:
        """Write a checkpoint and return its folder; of older ones only the newest stay, and the ``pinned`` one."""
        folder = self._checkpoint(state.round)
        _write(state, folder)
        for old in self.checkpoints()[:-keep]:
            if old != pinned:
                shutil.rmtree(self._checkpoint(old))
        return folder

    def newest(self, kinds: Mapping[str, type]) -> ServerState | None:
        """The state of the newest checkpoint; None if there is none. ``kinds``: the type of each slot's state."""
        rounds = self.checkpoints()
        return self.restore(rounds[-1], kinds) if rounds else None

    def restore(self, round: int, kinds: Mapping[str, type]) -> ServerState:
        """The state of a checkpoint; slots that ``kinds`` does not name are left out."""
        return _read(self._checkpoint(round), kinds, round)

    def save_best(self, state: ServerState) -> None:
        """Keep the model of a state as the best so far."""
        _write(ServerState(state.model, {}, state.round, state.clock), self.path / "best")

    def restore_best(self) -> Tensors:
        """The best model so far; raises `UserError` if none was kept."""
        if not (self.path / "best").is_dir():
            raise UserError(f"{self.path}: no best model was kept; evaluate.keep_best needs an evaluation")
        return _read(self.path / "best", {}, 0).model

    def checkpoints(self) -> list[int]:
        """The rounds that have a checkpoint, in order."""
        found = (self.path / "checkpoints").glob("round-*")
        return sorted(int(folder.name.removeprefix("round-")) for folder in found)

    def _checkpoint(self, round: int) -> Path:
        return self.path / "checkpoints" / f"round-{round}"


def _write(state: ServerState, folder: Path) -> None:
    headers, vectors = encoded(state.slots)
    with atomically(folder) as draft:
        save_file(state.model.named(), draft / "model.safetensors")
        save_file(vectors, draft / "slots.safetensors")
        (draft / "state.json").write_text(
            json.dumps({"layout": state.model.layout.text, "clock": state.clock, "slots": headers})
        )


def _read(folder: Path, kinds: Mapping[str, type], round: int) -> ServerState:
    noted = json.loads((folder / "state.json").read_text())
    names, _ = json.loads(noted["layout"])
    named = load_file(folder / "model.safetensors")
    stored = StoredStates(noted["slots"], load_file(folder / "slots.safetensors"))
    slots = {slot: state for slot, kind in kinds.items() if (state := stored.get(slot, kind)) is not None}
    return ServerState(Tensors.of({name: named[name] for name in names}), slots, round, noted["clock"])


def _numbered(name: str) -> Iterator[Path]:
    root = Path("runs")
    for path in root.glob(f"{name}*") if root.is_dir() else ():
        suffix = path.name.removeprefix(name)
        if not suffix or (suffix[0] == "-" and suffix[1:].isdigit()):
            yield path
