"""What the tables of the Medical paper need of its runs beside their scores, kept as facts of their cells."""

from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from hansa.experiments.reproduce import corpora, tuning
from hansa.experiments.reproduce.cells import Cell, content_of
from hansa.experiments.reproduce.jobs import Fact
from hansa.experiments.reproduce.sources import SHORT
from hansa.runs.inference import load, score
from hansa.runs.results import PersonalModels, RunResults

Silos = dict[str, dict[str, str]]
SAMPLES, DEVIATIONS, PERSONAL, OWN = "samples", "deviations", "personal", "own models"


def of_snapshot(silos: Silos, length: int) -> dict[str, Fact]:
    """The fact `share_name` of the general-domain snapshot: see `tuning.equal_tokens`."""
    return {share_name(silos, length): partial(_share, silos=silos, length=length)}


def share_name(silos: Silos, length: int) -> str:
    """The name of the fact of `of_snapshot`, by the content of the silos' training text."""
    listed = " ".join(content_of(one["train"]) for one in silos.values())
    return f"tokens of samples of {length}, text {sha256(listed.encode()).hexdigest()[:SHORT]}"


def of_run(kind: str, silos: Silos, folder: Path) -> dict[str, Fact]:
    """The facts of a run by its kind; ``folder``: where the texts for the evaluation of many models are written."""
    if kind == "per-silo":
        files = {code: corpora.first(Path(one["test"]), folder / f"{code}.some.jsonl") for code, one in silos.items()}
        return {OWN: partial(_own, files=files)}
    found: dict[str, Fact] = {DEVIATIONS: _deviations} if kind in ("federated", "central") else {}
    return found | ({SAMPLES: _samples, PERSONAL: _personal} if kind == "federated" else {})


def personal_of(cell: Cell) -> dict[str, PersonalModels]:
    """Silo → its personal models, of the federated run; empty if it made none."""
    kept: Mapping[str, Any] = cell.facts[PERSONAL]
    return {name: PersonalModels(one["models"], one["alpha"], {}, one["kept"]) for name, one in kept.items()}


def _share(folder: Path, silos: Silos, length: int) -> float:
    return tuning.equal_tokens(silos, str(folder / "model"), length)


def _samples(folder: Path) -> dict[str, float]:
    return RunResults.read(folder).samples


def _deviations(folder: Path) -> dict[str, float]:
    return {code: metrics["perplexity"] for code, metrics in RunResults.read(folder).deviations.items()}


def _personal(folder: Path) -> dict[str, dict[str, Any]]:
    made = RunResults.read(folder).personal
    return {
        name: {"models": one.models, "alpha": one.alpha, "kept": one.kept}
        for name, one in (made.silos if made is not None else {}).items()
    }


def _own(folder: Path, files: Mapping[str, Path]) -> dict[str, dict[str, float]]:
    """Silo → language → perplexity of the silo's own model on the first texts of the language's test set."""
    found: dict[str, dict[str, float]] = {}
    for silo in files:
        runtime, model = load(folder, silo)
        scores = {code: next(iter(score(runtime, model, file, {}).values())) for code, file in files.items()}
        found[silo] = {code: metrics["perplexity"] for code, metrics in scores.items()}
    return found
