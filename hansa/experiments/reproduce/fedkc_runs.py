"""The runs of `hansa reproduce fedkc`: how large, with which settings, on whose data."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.experiments.reproduce import Options, Table, multilingual
from hansa.experiments.reproduce.jobs import Jobs
from hansa.experiments.reproduce.multilingual import Corpus
from hansa.runs.ledger import Ledger

SHAPE = "ICD-10"
LAST, ALL = "FedAvg+KC (last)", "FedAvg+KC (all)"
WITHOUT = {LAST: f"{LAST}, no k-means", ALL: f"{ALL}, no k-means"}
CENTRAL, DOMINANT = "central (all languages)", "central (dominant only)"
KINDS = {CENTRAL: "central", DOMINANT: "dominant"}
REPEATED = ("FedAvg", "FedProx", LAST, ALL, *WITHOUT.values())  # over all seeds; the others with the first alone
TASKS = ("PI", "QA", "NC")
TASK_METHODS = (CENTRAL, "FedAvg", "FedProx", "MOON", "FedMix", LAST, ALL)
EVERY_METHOD = (*TASK_METHODS, DOMINANT, "FedProx+KC (all)")
LAYERS = {"last": LAST, "all": ALL}
DEFENCES: dict[str, dict[str, Any]] = {  # of FedKC on all layers: each adds to the one before
    "none": {},
    "floor 20": {"floor": 20},
    "floor 20, noise 1": {"floor": 20, "noise": {"multiplier": 1.0}},
}
EPOCHS, ACTIVE = (1, 2, 4), (2, 5, 7)
PRETRAINED = 1e-4  # the largest learning rate for an encoder that has learnt before


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    rounds: int  # on ICD-10
    every: int  # rounds between evaluations there,
    average: int  # and over how many of the last ones a figure is the mean
    seeds: int
    tune_rounds: int
    task_rounds: int  # the same of the paper's tasks
    task_every: int
    task_average: int
    task_methods: tuple[str, ...]
    task_batch: int = 4  # clients have 28 to 100 rows
    per_client: int = 750
    held_out: int = 200  # rows of each language's test set
    preset: str = "mini"
    vocabulary: int = 2500
    batch: int = 16
    lr: float = 1e-3
    attacked: int = 16  # centroids of each layer
    pairs: int | None = None  # that a step looks at where they go through all layers; none: all


SIZES = {
    "smoke": Size(2, 1, 2, 2, 2, 2, 1, 2, ("FedAvg", ALL), batch=8, vocabulary=600, attacked=2),
    "small": Size(16, 1, 5, 3, 12, 35, 5, 3, TASK_METHODS, pairs=8),
    "full": Size(35, 1, 5, 10, 35, 35, 1, 5, EVERY_METHOD, 32, 10_000, 2000, "base", 32_000, batch=32, lr=5e-5),
}


@dataclass(frozen=True)
class Tuned:
    """One setting of each method, as ``--tune`` chose them on ICD-10's validation data; it chooses all of them, and the
    learning rate, anew."""

    lr: float | None = None  # of all methods; default the scale's
    prox: float = 1e-4
    moon: float = 0.1
    mix: float = 0.05
    last: float = 3.0
    all: float = 1.0


GRID: dict[str, tuple[str, tuple[float, ...]]] = {  # what each method's one setting may be: as many values for each
    "FedAvg": ("lr", (1e-3, 2e-3, 3e-3)),
    "FedProx": ("prox", (1e-4, 1e-3, 1e-2)),
    "MOON": ("moon", (0.1, 1.0, 5.0)),
    "FedMix": ("mix", (0.05, 0.1, 0.2)),
    LAST: ("last", (1.0, 3.0, 10.0)),
    ALL: ("all", (1.0, 3.0, 5.0)),
}


def methods(tuned: Tuned, clusters: int, pairs: int | None = None) -> dict[str, dict[str, Any]]:
    # No floor: as published. What small clusters give away is the audit's business (docs/privacy.md).
    kc = {"name": "fedkc", "q": clusters, "floor": 1}
    last = kc | {"layer": "last", "alpha": tuned.last}
    everything = kc | {"layer": "all", "alpha": tuned.all, "sample": pairs}
    prox = {"name": "fedprox", "mu": tuned.prox}
    return {
        CENTRAL: {"name": "fedavg"},
        DOMINANT: {"name": "fedavg"},
        "FedAvg": {"name": "fedavg"},
        "FedProx": prox,
        "MOON": {"name": "moon", "mu": tuned.moon},
        "FedMix": {"name": "fedmix", "mix": tuned.mix},
        LAST: last,
        ALL: everything,
        "FedProx+KC (all)": everything | {"local": prox},
        WITHOUT[LAST]: last | {"kmeans": False},
        WITHOUT[ALL]: everything | {"kmeans": False},
    }


def federation(
    corpus: Corpus,
    method: str,
    size: Size,
    tuned: Tuned,
    rounds: int,
    seed: int = 0,
    epochs: int = 2,
    active: int | None = None,
    tuning: bool = False,
    every: int = 1,
    defence: str = "none",
    model: str | None = None,
    batch: int | None = None,
) -> Federation:
    lr = min(tuned.lr or size.lr, PRETRAINED if model else inf)
    training = {"optimizer": "adamw", "lr": lr, "batch": batch or size.batch}
    words: dict[str, Any] = {"path": corpus.words} if corpus.words else {"size": size.vocabulary, "min_count": 2}
    return parse(
        {
            "name": re.sub(r"\W+", "-", method).strip("-"),
            "seed": seed,
            "kind": KINDS.get(method, "federated"),
            "task": corpus.named_task,
            "model": {"path": model} if model else size.preset,
            "tokenizer": {} if model else words,
            "data": {"max_length": corpus.length, "valid": 0.0, "test": 0.0},
            "silos": corpus.sources(tuning),
            "method": methods(tuned, corpus.clusters, size.pairs)[method] | DEFENCES[defence],
            "rounds": rounds,
            "participation": {"count": active or corpus.active},
            "train": training | {"samples": {"epochs": epochs}},
            "baseline": training | {"keep_optimizer": True},
            "evaluate": {"every": every, "share": 1.0},
            "checkpoint": {"every": rounds},
            "record": {"offers": seed == 0 and method in LAYERS.values() and not tuning},
        }
    )


# ── the runs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def lay_out(options: Options, size: Size) -> dict[str, Corpus]:
    folder, data = options.out / "data", options.data
    if data is None:
        return multilingual.generate(folder)
    return {
        SHAPE: multilingual.diseases(folder, size.per_client, size.held_out),
        "PI": multilingual.paraphrases(data, folder, size.held_out),
        "QA": multilingual.questions(data, folder, size.held_out),
        "NC": multilingual.news(data, folder, size.held_out),
    }


def agreed(jobs: Jobs, corpora: Mapping[str, Corpus], size: Size) -> dict[str, Corpus]:
    """Clients agree on a vocabulary once, not in every run."""
    for task, corpus in corpora.items():
        run = federation(corpus, "FedAvg", size, Tuned(), 1).model_copy(update={"kind": "base"})
        jobs.start(f"{task} words", run)
    return {task: replace(corpus, words=str(jobs.start_folder(f"{task} words"))) for task, corpus in corpora.items()}


Scores = dict[str, dict[str, float]]  # language → metric → value


@dataclass(frozen=True)
class Runs:
    """All runs of the experiment, by what they are."""

    jobs: Jobs
    corpora: Mapping[str, Corpus]
    size: Size
    tuned: Tuned
    model: str | None = None  # of the paper's tasks: somebody's pre-trained encoder

    def name(
        self, task: str, method: str, seed: int = 0, epochs: int = 2, active: int = 0, defence: str = "none"
    ) -> str:
        usual = active in (0, self.corpora[task].active)
        extra = ("" if epochs == 2 else f" epochs {epochs}") + ("" if usual else f" active {active}")
        extra += "" if defence == "none" else f" {defence}"
        return f"{task} {method} seed {seed}{extra}".replace(",", "")

    def start(self) -> None:
        for seed in range(self.size.seeds):
            for method in methods(self.tuned, 1):
                if seed == 0 or method in REPEATED:
                    self._start(SHAPE, method, self.size.rounds, seed)
        for defence in DEFENCES:
            if defence != "none":
                self._start(SHAPE, ALL, self.size.rounds, defence=defence)
        for task in TASKS:
            for method in self.size.task_methods:
                self._start(task, method, self.size.task_rounds)
        for epochs in EPOCHS:
            if epochs != 2:
                self._start("NC", ALL, self.size.task_rounds, epochs=epochs)
        for active in self.active():
            if active != self.corpora["NC"].active:
                self._start("NC", ALL, self.size.task_rounds, active=active)

    def active(self) -> list[int]:
        return [n for n in ACTIVE if n <= self.corpora["NC"].clients]

    def _start(
        self,
        task: str,
        method: str,
        rounds: int,
        seed: int = 0,
        epochs: int = 2,
        active: int = 0,
        defence: str = "none",
    ) -> None:
        corpus = self.corpora[task]
        every = self.size.every if task == SHAPE else self.size.task_every
        batch, model = (None, None) if task == SHAPE else (self.size.task_batch, self.model)
        run = federation(
            corpus,
            method,
            self.size,
            self.tuned,
            rounds,
            seed,
            epochs,
            active or None,
            every=every,
            defence=defence,
            model=model,
            batch=batch,
        )
        self.jobs.start(self.name(task, method, seed, epochs, active, defence), run, workers=0)

    def scores(self, task: str, *what: Any, **which: Any) -> Scores:
        count = self.size.average if task == SHAPE else self.size.task_average
        return last_rounds(self.jobs.result(self.name(task, *what, **which)).folder, count)

    def mean(self, *what: Any, metric: str = "accuracy", **which: Any) -> float:
        return fmean(values[metric] for values in self.scores(*what, **which).values())

    def over_seeds(self, method: str) -> list[float]:
        seeds = range(self.size.seeds) if method in REPEATED else range(1)
        return [self.mean(SHAPE, method, seed) for seed in seeds]


def last_rounds(folder: Path, count: int) -> Scores:
    """Each language's metrics on its whole test set, averaged over the last evaluations."""
    ledger = Ledger(folder)
    try:
        rows = ledger.select(
            "select grp, metric, avg(value) from metrics where split='test' and share=1.0 and round in (select "
            "distinct round from metrics order by round desc limit ?) group by grp, metric order by grp",
            count,
        )
    finally:
        ledger.close()
    found: Scores = {}
    for group, metric, value in rows:
        found.setdefault(group, {})[metric] = value
    return found


def tune(jobs: Jobs, corpus: Corpus, size: Size) -> tuple[Tuned, list[Table]]:
    """Every method's setting from as many values, by validation accuracy; a seed that is not used again. The learning
    rate comes first: all have the same."""
    first, *others = GRID
    tuned, rows = _choose(jobs, corpus, size, Tuned(), [first])
    tuned, further = _choose(jobs, corpus, size, tuned, others)
    note = f"{size.tune_rounds} rounds each."
    columns = ["", "setting", "tried", "chosen"]
    return tuned, [Table("Settings, by validation accuracy", columns, rows + further, note)]


def _choose(
    jobs: Jobs, corpus: Corpus, size: Size, tuned: Tuned, wanted: Sequence[str]
) -> tuple[Tuned, list[list[str]]]:
    names = {(method, value): f"tune {method} {value:g}" for method in wanted for value in GRID[method][1]}
    for (method, value), name in names.items():
        settings = replace(tuned, **{GRID[method][0]: value})
        jobs.start(name, federation(corpus, method, size, settings, size.tune_rounds, seed=99, tuning=True), workers=0)
    rows, chosen = [], {}
    for method in wanted:
        setting, values = GRID[method]
        found = {}
        for value in values:
            scores = last_rounds(jobs.result(names[method, value]).folder, size.average)
            found[value] = fmean(metrics["accuracy"] for metrics in scores.values())
        chosen[setting] = best = max(found, key=lambda value: found[value])
        rows.append([method, setting, ", ".join(f"{v:g}: {a:.4f}" for v, a in found.items()), f"{best:g}"])
    return replace(tuned, **chosen), rows
