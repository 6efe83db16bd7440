"""Wang et al. (2022), Tables 3 and 4 and Figures 2 to 4, beside ours.

The shape is looked for on ICD-10 chapters with labels unlike inside each language, over several seeds; the paper's own
three tasks are run in their client layouts and reported as they come out. A figure is the mean accuracy over languages
and over the last rounds: single rounds swing by many points. Settings are chosen on validation data, as many values for
every method (``--tune``).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter
from typing import Any

from hansa.config import Federation
from hansa.federation_file import parse
from hansa.privacy import leak, price
from hansa.report import audit, html
from hansa.reproduce import Asked, Claim, Reproduction, Say, Table, multilingual
from hansa.reproduce.jobs import Jobs
from hansa.reproduce.multilingual import Corpus
from hansa.reproduce.published_fedkc import ACTIVE_GAIN, AVERAGES, HITS_90
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
HITS = (1, 10, 90)
DEFENCES: dict[str, dict[str, Any]] = {  # of FedKC on all layers: each adds to the one before
    "none": {},
    "floor 20": {"floor": 20},
    "floor 20, noise 1": {"floor": 20, "noise": {"multiplier": 1.0}},
}
EPOCHS, ACTIVE = (1, 2, 4), (2, 5, 7)


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
    per_client: int = 750
    held_out: int = 200  # rows of each language's test set
    preset: str = "mini"
    vocabulary: int = 2500
    batch: int = 16
    lr: float = 2e-3
    attacked: int = 16  # centroids of each layer


SIZES = {
    "smoke": Size(2, 1, 2, 2, 2, 2, 1, 2, ("FedAvg", ALL), batch=8, vocabulary=600, attacked=2),
    "small": Size(16, 2, 3, 3, 12, 10, 5, 2, TASK_METHODS),
    "full": Size(35, 1, 5, 10, 35, 35, 1, 5, EVERY_METHOD, 10_000, 2000, "base", 32_000, batch=32, lr=5e-5),
}


@dataclass(frozen=True)
class Tuned:
    """One setting of each method, as ``--tune`` chose them on ICD-10's validation data; it chooses all of them, and the
    learning rate, anew."""

    lr: float | None = None  # of all methods; default the scale's
    prox: float = 1e-4
    moon: float = 5.0
    mix: float = 0.1
    last: float = 10.0
    all: float = 3.0


GRID: dict[str, tuple[str, tuple[float, ...]]] = {  # what each method's one setting may be: as many values for each
    "FedAvg": ("lr", (1e-3, 2e-3, 3e-3)),
    "FedProx": ("prox", (1e-4, 1e-3, 1e-2)),
    "MOON": ("moon", (0.1, 1.0, 5.0)),
    "FedMix": ("mix", (0.05, 0.1, 0.2)),
    LAST: ("last", (1.0, 3.0, 10.0)),
    ALL: ("all", (1.0, 3.0, 5.0)),
}


def methods(tuned: Tuned, clusters: int) -> dict[str, dict[str, Any]]:
    # No floor: as published. What small clusters give away is the audit's business (docs/privacy.md).
    kc = {"name": "fedkc", "q": clusters, "floor": 1}
    last, everything = kc | {"layer": "last", "alpha": tuned.last}, kc | {"layer": "all", "alpha": tuned.all}
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
) -> Federation:
    training = {"optimizer": "adamw", "lr": tuned.lr or size.lr, "batch": size.batch}
    return parse(
        {
            "name": re.sub(r"\W+", "-", method).strip("-"),
            "seed": seed,
            "kind": KINDS.get(method, "federated"),
            "task": corpus.task,
            "model": size.preset,
            "tokenizer": {"size": size.vocabulary, "minimum": 2},
            "data": {"max_length": corpus.length, "valid": 0.0, "test": 0.0},
            "silos": corpus.sources(tuning),
            "method": methods(tuned, corpus.clusters)[method] | DEFENCES[defence],
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


def reproduce(asked: Asked) -> Reproduction:
    asked.need_text()
    asked.refuse("fedkc", "encoder", "model")
    began, size = perf_counter(), SIZES[asked.scale]
    asked.say("laying out the clients' data")
    corpora = lay_out(asked, size)
    with Jobs(asked.out, asked.say, asked.scale != "smoke") as jobs:
        laid_out = perf_counter()
        tuned, tuning = tune(jobs, corpora[SHAPE], size) if asked.tune else (Tuned(), [])
        choosing = perf_counter() - laid_out if asked.tune else 0.0
        runs = Runs(jobs, corpora, size, tuned)
        runs.start()
        leaks = {layer: attacked(runs, layer, asked.say) for layer in LAYERS}  # while others still run
        tables = [shape_table(runs), *(task_table(runs, task) for task in TASKS), k_means_table(runs)]
        tables += [sensitivity_table(runs), figure_4(leaks), defence_table(runs), traffic_table(runs)]
        claims = [*all_claims(runs), privacy_claim(leaks)]
        order = sorted(methods(tuned, 1), key=lambda method: method in KINDS)  # the first run's data are described
        folders = [(method, jobs.result(runs.name(SHAPE, method, 0)).folder) for method in order]
    report = html.write(
        folders,
        asked.out / "report.html",
        "FedKC: knowledge composition among monolingual clients",
        [claim.line for claim in claims],
        [*tuning, *tables],
    )
    took, facts = perf_counter() - began, {"tuned": vars(tuned)}
    return Reproduction("fedkc", asked.scale, [*tuning, *tables], claims, report, took, facts, choosing)


def lay_out(asked: Asked, size: Size) -> dict[str, Corpus]:
    folder, data = asked.out / "data", asked.data
    if data is None:
        return multilingual.made_up(folder)
    return {
        SHAPE: multilingual.diseases(folder, size.per_client, size.held_out),
        "PI": multilingual.paraphrases(data, folder, size.held_out),
        "QA": multilingual.questions(data, folder, size.held_out),
        "NC": multilingual.news(data, folder, size.held_out),
    }


Scores = dict[str, dict[str, float]]  # language → metric → value


@dataclass(frozen=True)
class Runs:
    """All runs of the experiment, by what they are."""

    jobs: Jobs
    corpora: Mapping[str, Corpus]
    size: Size
    tuned: Tuned

    def name(
        self, task: str, method: str, seed: int = 0, epochs: int = 2, active: int = 0, defence: str = "none"
    ) -> str:
        extra = ("" if epochs == 2 else f" epochs {epochs}") + (f" active {active}" if active else "")
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
        run = federation(
            corpus, method, self.size, self.tuned, rounds, seed, epochs, active or None, every=every, defence=defence
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


# ── the tables ────────────────────────────────────────────────────────────────────────────────────────────────────


def spread(values: list[float]) -> str:
    return f"{fmean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def paper(method: str, task: str) -> str:
    value = AVERAGES[method].get(task)
    return "–" if value is None else f"{value:.4f}"


def shape_table(runs: Runs) -> Table:
    languages, rows = list(runs.corpora[SHAPE].silos), []
    for method in methods(runs.tuned, 1):
        seeds = range(len(runs.over_seeds(method)))
        by_seed = [runs.scores(SHAPE, method, seed) for seed in seeds]
        cells = [f"{fmean(scores[code]['accuracy'] for scores in by_seed):.4f}" for code in languages]
        rows.append([method, *cells, spread(runs.over_seeds(method)), *(paper(method, task) for task in TASKS)])
    columns = ["", *languages, "mean ± std", *(f"paper {task}" for task in TASKS)]
    corpus = runs.corpora[SHAPE]
    note = (
        f"{corpus.clients} clients, {corpus.active} active, label skew {multilingual.SKEW}, {runs.size.rounds} rounds, "
        f"last {runs.size.average} evaluations; methods with a deviation: {runs.size.seeds} seeds, others one."
    )
    return Table("Table 3, shape: accuracy on ICD-10 chapters", columns, rows, note)


def task_table(runs: Runs, task: str) -> Table:
    languages, rows = list(runs.corpora[task].silos), []
    for method in runs.size.task_methods:
        scores = runs.scores(task, method)
        cells = [f"{scores[code]['accuracy']:.4f}" for code in languages]
        mean, f1 = (f"{runs.mean(task, method, metric=metric):.4f}" for metric in ("accuracy", "micro_f1"))
        both = [mean, f1, paper(method, task), paper(method, "PI F1")] if task == "PI" else [mean, paper(method, task)]
        rows.append([method, *cells, *both])
    averages = ["mean", "mean F1", "paper", "paper F1"] if task == "PI" else ["mean", "paper"]
    corpus = runs.corpora[task]
    note = f"{corpus.clients} clients, {corpus.active} active, {runs.size.task_rounds} rounds (paper: 35), one seed."
    return Table(f"Table 3, {task}: accuracy in the paper's layout", ["", *languages, *averages], rows, note)


def k_means_table(runs: Runs) -> Table:
    rows = [
        [method, spread(runs.over_seeds(method)), *(paper(method, task) for task in TASKS)]
        for layer in (LAST, ALL)
        for method in (WITHOUT[layer], layer)
    ]
    return Table("Table 4: with and without k-means", ["", "ours (ICD-10)", *(f"paper {t}" for t in TASKS)], rows)


def sensitivity_table(runs: Runs) -> Table:
    languages, rows = list(runs.corpora["NC"].silos), []
    looks = [("Figure 2", f"{n} local epochs", {"epochs": n}) for n in EPOCHS]
    looks += [("Figure 3", f"{n} active clients", {"active": n}) for n in runs.active()]
    for figure, what, which in looks:
        scores = runs.scores("NC", ALL, **which)
        cells = [f"{scores[code]['accuracy']:.4f}" for code in languages]
        rows.append([figure, what, *cells, f"{fmean(s['accuracy'] for s in scores.values()):.4f}"])
    note = "The paper prints curves: one epoch is worst; 5 and 7 active clients gain {:.1%} and {:.1%} over 2."
    columns = ["", f"NC, {ALL}", *languages, "mean"]
    return Table("Figures 2 and 3: sensitivity", columns, rows, note.format(*ACTIVE_GAIN.values()))


Leaks = dict[str, dict[str, Any]]  # attack → what it found


def attacked(runs: Runs, layer: str, say: Say) -> Leaks:
    """Both attacks on the centroids that the run with the first seed shared; the report draws them with that run."""
    folder = runs.jobs.result(runs.name(SHAPE, LAYERS[layer])).folder
    kinds: tuple[leak.Kind, ...] = ("embedding-inversion", "nearest-token")
    found: Leaks = {kind: leak.attack(folder, kind, runs.size.attacked, say) for kind in kinds}
    for one in found.values():
        audit.keep(folder, one)
    return found


def figure_4(leaks: Mapping[str, Leaks]) -> Table:
    rows = []
    for layer, found in leaks.items():
        for kind, one in found.items():
            for who, curves in one["curves"].items():
                if who != "attack" and kind != "embedding-inversion":
                    continue  # the others know nothing of the attack
                cells = [
                    f"{curves[where][min(n, len(curves[where])) - 1]:.1%}" for where in ("any", "same") for n in HITS
                ]
                published = f"{HITS_90[layer]:.1%}" if who == "attack" and kind == "embedding-inversion" else "–"
                rows.append([f"{layer}: {kind if who == 'attack' else who}", *cells, published])
    columns = ["Hits@N", *(f"{where} @{n}" for where in ("any", "same") for n in HITS), "paper, any @90"]
    note = (
        "At any position, or at the same one. A score means something only beside those who know nothing (most "
        "frequent, random) and no averaging."
    )
    return Table("Figure 4: tokens recovered from shared centroids", columns, rows, note)


def privacy_claim(leaks: Mapping[str, Leaks]) -> Claim:
    """By the stronger attack, at the right position, with the first guess."""
    worst = {layer: max(one["curves"]["attack"]["same"][0] for one in found.values()) for layer, found in leaks.items()}
    return Claim(
        "tokens are harder to recover from all-layers centroids than from last-layer ones",
        worst["all"] < worst["last"],
        ", ".join(f"{layer} layer(s) {share:.1%} of tokens at their position" for layer, share in worst.items()),
        f"Hits@90 {HITS_90['all']:.1%} (all), {HITS_90['last']:.1%} (last)",
    )


def defence_table(runs: Runs) -> Table:
    """What the defences of all-layers centroids cost, and what they leave to an attack: with the first seed."""
    tried = []
    for name in DEFENCES:
        folder = runs.jobs.result(runs.name(SHAPE, ALL, defence=name)).folder
        run = federation(runs.corpora[SHAPE], ALL, runs.size, runs.tuned, runs.size.rounds, defence=name)
        tried.append(price.Tried(name, run, [folder], [runs.mean(SHAPE, ALL, defence=name)]))
    found = price.findings("accuracy", tried, {"defences": tuple(DEFENCES)}, runs.size.attacked)
    audit.keep(runs.jobs.result(runs.name(SHAPE, ALL)).folder, found)
    [shown] = audit.tables(found)
    note = "One seed; tokens by embedding inversion; the report draws accuracy over tokens named."
    return Table("Defences of all-layers centroids, and their price", shown["columns"], shown["rows"], note)


def traffic_table(runs: Runs) -> Table:
    """What an exchange adds to a round, beside the model."""
    rows = []
    for method in (LAST, ALL):
        ledger = Ledger(runs.jobs.result(runs.name(SHAPE, method)).folder)
        [(rounds, up, down, every)] = ledger.select(
            "select count(distinct round), sum(offered), sum(told), sum(sent + received) from traffic"
        )
        ledger.close()
        others = max(1, runs.corpora[SHAPE].active - 1)
        cells = [up, down // others, up + down // others, down, every - up - down]
        rows.append([method, *(f"{cell / rounds / 1e3:,.1f}" for cell in cells)])
    columns = ["kB per round", "told up", "the same pairs down", "2·q·n pairs", "down, to each", "model and the rest"]
    note = "A pair is d + k numbers (last) or T·d + k (all). Each client is sent the pairs of all the others."
    return Table("Section 4.4.2: extra traffic", columns, rows, note)


# ── the claims ────────────────────────────────────────────────────────────────────────────────────────────────────


def all_claims(runs: Runs) -> list[Claim]:
    mean = {method: fmean(runs.over_seeds(method)) for method in methods(runs.tuned, 1)}
    federated = [value for method, value in mean.items() if method not in KINDS]

    def claim(name: str, holds: bool, *shown: str) -> Claim:
        ours = ", ".join(f"{method} {spread(runs.over_seeds(method))}" for method in shown)
        return Claim(name, holds, ours, ", ".join(f"{method} {paper(method, 'PI')}" for method in shown) + " (PI)")

    found = [
        claim("FedKC on all layers is at least as good as on the last", mean[ALL] >= mean[LAST], ALL, LAST),
        claim(
            "FedKC on the last layer beats FedAvg and FedProx",
            mean[LAST] > max(mean["FedAvg"], mean["FedProx"]),
            LAST,
            "FedAvg",
            "FedProx",
        ),
        *(
            claim(f"k-means helps: {layer}", mean[layer] > mean[WITHOUT[layer]], layer, WITHOUT[layer])
            for layer in (LAST, ALL)
        ),
        claim("central training is above every federated method", mean[CENTRAL] > max(federated), CENTRAL, ALL),
    ]
    epochs = {n: runs.mean("NC", ALL, epochs=n) for n in EPOCHS}
    active = {n: runs.mean("NC", ALL, active=n) for n in runs.active()}
    found.append(_order("one local epoch is worse than two (NC)", epochs, epochs[1] < epochs[2], "mostly so"))
    most, fewest = max(active), min(active)
    gains = ", ".join(f"{n} active: +{gain:.1%}" for n, gain in ACTIVE_GAIN.items())
    found.append(_order("more active clients are better (NC)", active, active[most] > active[fewest], gains))
    return found


def _order(name: str, values: dict[int, float], holds: bool, paper: str) -> Claim:
    return Claim(name, holds, ", ".join(f"{n}: {value:.4f}" for n, value in values.items()), paper)
