"""The runs of `hansa reproduce fedkc`: their sizes, settings and data."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

from hansa.attacks import centroids as leak
from hansa.attacks import price
from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.experiments.reproduce import Options, Table, multilingual
from hansa.experiments.reproduce.cells import Cell
from hansa.experiments.reproduce.jobs import Fact, Jobs
from hansa.experiments.reproduce.multilingual import Corpus
from hansa.runs.results import RunResults, read_scores, save_audit

SHAPE = "ICD-10"
LAST, ALL = "FedAvg+KC (last)", "FedAvg+KC (all)"
WITHOUT = {LAST: f"{LAST}, no k-means", ALL: f"{ALL}, no k-means"}
CENTRAL, DOMINANT = "central (all languages)", "central (dominant only)"
KINDS = {CENTRAL: "central", DOMINANT: "dominant"}
REPEATED = ("FedAvg", "FedProx", LAST, ALL, *WITHOUT.values())  # run with all seeds; the others with the first
TASKS = ("PI", "QA", "NC")
TASK_METHODS = (CENTRAL, "FedAvg", "FedProx", "MOON", "FedMix", LAST, ALL)
EVERY_METHOD = (*TASK_METHODS, DOMINANT, "FedProx+KC (all)")
ATTACKS: tuple[leak.Kind, ...] = ("embedding-inversion", "nearest-token")
HITS = (1, 10, 90)
Hits = dict[str, dict[str, dict[str, list[float]]]]  # attack → who guesses → where → share of tokens, for `HITS`
LAYERS = {"last": LAST, "all": ALL}
DEFENCES: dict[str, dict[str, Any]] = {  # of FedKC on all layers
    "none": {},
    "floor 20": {"floor": 20},
    "floor 20, noise 1": {"floor": 20, "noise": {"multiplier": 1.0, "seeded": True}},
}
EPOCHS, ACTIVE = (1, 2, 4), (2, 5, 7)
PRETRAINED = 1e-4  # the largest learning rate for a pre-trained encoder


@dataclass(frozen=True)
class Size:
    """The size of the experiments."""

    rounds: int  # on ICD-10
    every: int  # rounds between evaluations on ICD-10
    average: int  # a score is the mean over this many last evaluations
    seeds: int
    tune_rounds: int
    task_rounds: int  # the same three for the paper's tasks
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
    attacked: int = 16  # centroids of each layer that are attacked
    pairs: int | None = None  # shared pairs that a step uses in FedKC on all layers; None: all


SIZES = {
    "smoke": Size(2, 1, 2, 2, 2, 2, 1, 2, ("FedAvg", ALL), batch=8, vocabulary=600, attacked=2),
    "small": Size(16, 1, 5, 3, 12, 35, 5, 3, TASK_METHODS, pairs=8),
    "medium": Size(20, 1, 5, 3, 20, 35, 5, 3, EVERY_METHOD, vocabulary=4000, preset="tiny", pairs=8),
    "full": Size(35, 1, 5, 10, 35, 35, 1, 5, EVERY_METHOD, 32, 10_000, 2000, "base", 32_000, batch=32, lr=5e-5),
}


@dataclass(frozen=True)
class Tuned:
    """One setting of each method, as ``--tune`` selected them on ICD-10's validation data.

    ``--tune`` selects all of them again, and the learning rate.
    """

    lr: float | None = None  # of all methods; None: the scale's
    prox: float = 1e-4
    moon: float = 0.1
    mix: float = 0.05
    last: float = 3.0
    all: float = 1.0


GRID: dict[str, tuple[str, tuple[float, ...]]] = {  # method → its setting and the values to select from
    "FedAvg": ("lr", (1e-3, 2e-3, 3e-3)),
    "FedProx": ("prox", (1e-4, 1e-3, 1e-2)),
    "MOON": ("moon", (0.1, 1.0, 5.0)),
    "FedMix": ("mix", (0.05, 0.1, 0.2)),
    LAST: ("last", (1.0, 3.0, 10.0)),
    ALL: ("all", (1.0, 3.0, 5.0)),
}


def methods(tuned: Tuned, clusters: int, pairs: int | None = None) -> dict[str, dict[str, Any]]:
    """Method → its settings. ``clusters``: q of FedKC; ``pairs``: shared pairs that a step uses on all layers."""
    # No floor, as published; docs/privacy.md shows what small clusters leak.
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
    """The settings of one run; ``tuning``: tested on validation data, ``model``: a pre-trained encoder."""
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
            "release_log": {"knowledge": seed == 0 and method in LAYERS.values() and not tuning},
        }
    )


# ── the runs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def lay_out(options: Options, size: Size) -> dict[str, Corpus]:
    """Write the clients' data of every task."""
    folder, data = options.out / "data", options.data
    if data is None:
        return multilingual.generate(folder)
    return {
        SHAPE: multilingual.diseases(folder, size.per_client, size.held_out),
        "PI": multilingual.paraphrases(data, folder, size.held_out),
        "QA": multilingual.questions(data, folder, size.held_out),
        "NC": multilingual.news(data, folder, size.held_out),
    }


def with_vocabularies(jobs: Jobs, corpora: Mapping[str, Corpus], size: Size) -> dict[str, Corpus]:
    """Let the clients of every task build a vocabulary once; all runs of the task use it."""
    for task, corpus in corpora.items():
        run = federation(corpus, "FedAvg", size, Tuned(), 1).model_copy(update={"kind": "base"})
        jobs.start(f"{task} words", run)
    return {task: replace(corpus, words=jobs.start_folder(f"{task} words")) for task, corpus in corpora.items()}


Scores = dict[str, dict[str, float]]  # language → metric → value


@dataclass(frozen=True)
class Runs:
    """All runs of the experiment."""

    jobs: Jobs
    corpora: Mapping[str, Corpus]
    size: Size
    tuned: Tuned
    model: str | None = None  # a pre-trained encoder for the paper's tasks

    def name(
        self, task: str, method: str, seed: int = 0, epochs: int = 2, active: int = 0, defence: str = "none"
    ) -> str:
        """The name of a run."""
        usual = active in (0, self.corpora[task].active)
        extra = ("" if epochs == 2 else f" epochs {epochs}") + ("" if usual else f" active {active}")
        extra += "" if defence == "none" else f" {defence}"
        return f"{task} {method} seed {seed}{extra}".replace(",", "")

    def start(self) -> None:
        """Start all runs."""
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
        """The numbers of active clients that are compared."""
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
        attack = task == SHAPE and run.release_log.knowledge
        self.jobs.start(
            self.name(task, method, seed, epochs, active, defence),
            run,
            facts=last(self._average(task)) | (self._attacks(method) if attack else {}) | {"exchange": exchange_of},
        )

    def _average(self, task: str) -> int:
        return self.size.average if task == SHAPE else self.size.task_average

    def _attacks(self, method: str) -> dict[str, Fact]:
        """Facts of the runs with a release log: what our attacks read in it."""
        hits: dict[str, Fact] = {self.hits: partial(attacked, centroids=self.size.attacked)}
        return hits | ({self.leak: partial(price.leak_of, centroids=self.size.attacked)} if method == ALL else {})

    @property
    def hits(self) -> str:
        """The name of the fact of `attacked`."""
        return f"hits in {self.size.attacked} centroids"

    @property
    def leak(self) -> str:
        """The name of the fact of `price.leak_of`."""
        return f"leak of {self.size.attacked} centroids"

    def cell(self, *what: Any, **which: Any) -> Cell:
        """The cell of a run; arguments as for `name`."""
        return self.jobs.cell(self.name(*what, **which))

    def scores(self, task: str, *what: Any, **which: Any) -> Scores:
        """The scores of a run by language, averaged over its last evaluations; arguments as for `name`."""
        found: Scores = self.cell(task, *what, **which).facts[last_name(self._average(task))]
        return found

    def mean(self, *what: Any, metric: str = "accuracy", **which: Any) -> float:
        """The mean of a metric over languages; arguments as for `name`."""
        return fmean(values[metric] for values in self.scores(*what, **which).values())

    def over_seeds(self, method: str) -> list[float]:
        """The mean accuracy of a method on ICD-10, seed by seed."""
        seeds = range(self.size.seeds) if method in REPEATED else range(1)
        return [self.mean(SHAPE, method, seed) for seed in seeds]


def last(count: int) -> dict[str, Fact]:
    """The fact `last_name`: scores averaged over this many last evaluations."""
    return {last_name(count): partial(last_evaluations, count=count)}


def last_name(count: int) -> str:
    """The name of the fact of `last`."""
    return f"last {count} evaluations"


def exchange_of(folder: Path) -> dict[str, int]:
    """The traffic of the knowledge that silos shared: rounds, bytes up and down."""
    return asdict(RunResults.read(folder).exchange)


def attacked(folder: Path, centroids: int) -> Hits:
    """Both attacks on the centroids that silos shared in a run; the findings are saved there.

    ``centroids``: of each layer that are attacked, at most. Returns attack → who guesses → where → share of tokens that
    are among the first `HITS` guesses.
    """
    found: Hits = {}
    for kind in ATTACKS:
        findings = leak.attack_knowledge(folder, kind, centroids)
        save_audit(folder, findings)
        found[kind] = {
            who: {where: [curve[min(n, len(curve)) - 1] for n in HITS] for where, curve in curves.items()}
            for who, curves in findings["curves"].items()
        }
    return found


def last_evaluations(folder: Path, count: int) -> Scores:
    """Language → metric → value on the whole test set, averaged over the last evaluations."""
    scores = [score for score in read_scores(folder) if score.share == 1.0]
    last = sorted({score.round for score in scores})[-count:]
    values: dict[str, dict[str, list[float]]] = {}
    for score in sorted(scores, key=lambda score: score.group):
        if score.round in last:
            values.setdefault(score.group, {}).setdefault(score.metric, []).append(score.value)
    return {group: {metric: fmean(some) for metric, some in by_metric.items()} for group, by_metric in values.items()}


def tune(jobs: Jobs, corpus: Corpus, size: Size) -> tuple[Tuned, list[Table]]:
    """Select every method's setting from as many values, by validation accuracy; return them and a table.

    The learning rate is selected first and is the same for all methods. The seed is used for nothing else.
    """
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
        run = federation(corpus, method, size, settings, size.tune_rounds, seed=99, tuning=True)
        jobs.start(name, run, facts=last(size.average))
    rows, chosen = [], {}
    for method in wanted:
        setting, values = GRID[method]
        found = {}
        for value in values:
            scores = jobs.cell(names[method, value]).facts[last_name(size.average)]
            found[value] = fmean(metrics["accuracy"] for metrics in scores.values())
        chosen[setting] = best = max(found, key=lambda value: found[value])
        rows.append([method, setting, ", ".join(f"{v:g}: {a:.4f}" for v, a in found.items()), f"{best:g}"])
    return replace(tuned, **chosen), rows
