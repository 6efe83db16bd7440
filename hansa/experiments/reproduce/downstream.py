"""Fine-tuning of pre-trained snapshots: entities, assertions and relations (Tables 4 and 5 of the Medical paper)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.data.corpora import clinical_notes as generator
from hansa.data.corpora import icd10
from hansa.experiments.reproduce import Claim
from hansa.experiments.reproduce.jobs import Jobs
from hansa.experiments.reproduce.medical_runs import Size
from hansa.runs.results import RunResults

NER = ("NCBI-disease", "BC5CDR", "E3C NER")
SKIPPED = "skipped"  # a fact
CLOSE = 0.01  # one point of F1
WELL_ABOVE = 0.02
Scores = dict[str, dict[str, dict[str, float]]]  # task → snapshot → metric → value


@dataclass(frozen=True)
class Downstream:
    """A task to fine-tune a snapshot for, and its data."""

    task: str
    silos: dict[str, dict[str, Any]]
    times: int = 1  # a factor on the number of epochs: corpora with few rows need more steps
    lr: float = 1e-3  # smaller for corpora with few rows: at 1e-3 the F1 of relations varies between 0.1 and 0.5


def tasks(data: Path | None, folder: Path, limit: int) -> dict[str, Downstream]:
    """The tasks by name: on the corpora in ``data``, or on generated notes, which are written to ``folder``.

    ``limit``: rows of the assertion and the relation corpus.
    """
    if data is None:
        return _generated(folder)

    def corpus(name: str, test: str) -> dict[str, Any]:
        """The training and test file of a corpus in one language."""
        return {"train": str((data / name / "train.jsonl.gz").resolve()), "test": str((data / name / test).resolve())}

    def by_language(name: str, test: str | None, limit: int | None) -> dict[str, dict[str, Any]]:
        """Language → a source that reads only its rows of a multilingual corpus, at most ``limit`` of them."""
        source: dict[str, Any] = {"train": str((data / name / "train.jsonl.gz").resolve())}
        if test is not None:
            source["test"] = str((data / name / test).resolve())
        return {
            code: source | {"where": {"lang": code}, "language": code, "limit": limit}
            for code in ("en", "fr", "it", "es", "eu")
        }

    return {
        "NCBI-disease": Downstream("ner", {"en": corpus("ncbi_disease_en", "dev.jsonl.gz")}),
        "BC5CDR": Downstream("ner", {"en": corpus("bc5cdr_ner_en", "dev.jsonl.gz")}),
        "E3C NER": Downstream("ner", by_language("e3c_ner", "validation_layer2_gold.jsonl.gz", None)),
        "E3C assertion": Downstream("assertion", by_language("e3c_assertion", None, limit // 5), 3, 5e-4),
        "E3C relation": Downstream("relation", by_language("e3c_relation", None, limit // 5), 3, 5e-4),
    }


def _generated(folder: Path) -> dict[str, Downstream]:
    """The tasks on generated annotated notes instead of corpora."""
    silos = {}
    for code in ("en", "it"):
        file = folder / f"notes.{code}.jsonl"
        icd10.write_rows(file, list(generator.notes(code, 60, seed=3, sentences=(1, 2))))
        silos[code] = {"train": str(file.resolve()), "language": code}
    one = {"en": silos["en"]}
    return {
        "NCBI-disease": Downstream("ner", one),
        "BC5CDR": Downstream("ner", one),
        "E3C NER": Downstream("ner", silos),
        "E3C assertion": Downstream("assertion", silos),
        "E3C relation": Downstream("relation", silos),
    }


def start(
    jobs: Jobs, kind: str, tasks: Mapping[str, Downstream], size: Size, snapshot: str, fresh: bool = False
) -> None:
    """Start the fine-tuning of a snapshot for every task; ``fresh``: of random weights instead."""
    for name, task in tasks.items():
        for seed, job in enumerate(_jobs(kind, name, size)):
            jobs.start(job, federation(task, size, snapshot, fresh, seed), facts={SKIPPED: skipped})


def _jobs(kind: str, name: str, size: Size) -> list[str]:
    tries = size.tries if name in NER else 1
    return [f"{kind} {name}" + (f" {seed}" if seed else "") for seed in range(tries)]


def federation(task: Downstream, size: Size, snapshot: str, fresh: bool = False, seed: int = 0) -> Federation:
    """The settings of central fine-tuning of a snapshot, or of the same model with ``fresh``, random weights."""
    return parse(
        {
            "name": "fine-tuning",
            "seed": seed,
            "kind": "central",
            "task": task.task,
            "model": {"path": snapshot, "fresh": fresh},
            # Pairs of mentions that do not fit into one sample are counted and skipped: some sentences are long.
            "data": {"max_length": 2 * size.length, "valid": 0.0, "test": 0.2, "max_bad_rows": 0.2},
            "silos": task.silos,
            "rounds": task.times * size.epochs,
            "train": {"batch": 16, "samples": {"epochs": 1}},
            "baseline": {
                "optimizer": "adamw",
                "lr": task.lr,
                "batch": 16,
                "keep_optimizer": True,
                "schedule": "linear",
            },
            "evaluate": {"every": task.times * size.epochs, "share": 0.2},
        }
    )


def score(jobs: Jobs, kind: str, name: str, size: Size) -> dict[str, float]:
    """The mean of each metric over languages and seeds."""
    metrics = [found for job in _jobs(kind, name, size) for found in jobs.result(job).metrics.values()]
    return {name: fmean(m[name] for m in metrics) for name in metrics[0]}


def skipped(folder: Path) -> dict[str, int]:
    """Split → how many annotated rows a run could not use."""
    found = {"train": 0, "test": 0}
    for card in RunResults.read(folder).cards.values():
        for problem in card.problems:
            match = re.match(r"(train|test): (\d+) of \d+ lines left out", problem)
            if match is not None:
                found[match[1]] += int(match[2])
    return found


def claims(scores: Scores) -> list[Claim]:
    """The federated snapshot against the central one, and both against random weights."""
    found = {name: {kind: values["strict_f1"] for kind, values in scores[name].items()} for name in NER}
    close = all(f["federated"] >= f["central"] - CLOSE and f["central"] > 0 for f in found.values())
    above = all(min(f["federated"], f["central"]) >= f["none"] + WELL_ABOVE for f in found.values())
    return [
        Claim(
            "fine-tuned for NER, the federated snapshot is within one point of strict F1 of the central snapshot",
            close,
            "; ".join(f"{name} {f['federated']:.4f} against {f['central']:.4f}" for name, f in found.items()),
            "BC5CDR 0.8913 against 0.8917; NCBI-disease 0.9287 against 0.9370",
        ),
        Claim(
            "both are well above the same model without pre-training",
            above,
            "; ".join(f"{name} without {f['none']:.4f}" for name, f in found.items()),
            "not reported",
        ),
    ]
