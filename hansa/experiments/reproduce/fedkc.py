"""Wang et al. (2022), Tables 3 and 4 and Figures 2 to 4, beside ours.

The claims are tested on ICD-10 chapters with label skew inside each language, over several seeds; the paper's three
tasks are run in their client layouts and reported without selection. A score is the mean accuracy over languages and
over the last evaluations, because single rounds vary by many points. Settings are selected on validation data, from as
many values for every method (``--tune``).
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter
from typing import Any

from hansa.attacks import centroids as leak
from hansa.attacks import price
from hansa.attacks.centroids import MIN_CONTROL
from hansa.experiments.reproduce import Claim, Options, Reproduction, Say, Table, multilingual
from hansa.experiments.reproduce.encoder import model_of
from hansa.experiments.reproduce.fedkc_runs import (
    ALL,
    CENTRAL,
    DEFENCES,
    EPOCHS,
    KINDS,
    LAST,
    LAYERS,
    SHAPE,
    SIZES,
    TASKS,
    WITHOUT,
    Runs,
    Tuned,
    federation,
    lay_out,
    methods,
    tune,
    with_vocabularies,
)
from hansa.experiments.reproduce.jobs import Jobs
from hansa.experiments.reproduce.published_fedkc import ACTIVE_GAIN, AVERAGES, HITS_90
from hansa.experiments.reproduce.verdict import Evidence
from hansa.report import audit, html
from hansa.runs.results import RunResults, save_audit

HITS = (1, 10, 90)


def reproduce(options: Options) -> Reproduction:
    """Run the experiments, or resume them; return the tables and claims."""
    options.require_data()
    options.reject("fedkc", "encoder")
    began, size = perf_counter(), options.size_of(SIZES, "fedkc")
    options.say("writing the clients' data")
    corpora = lay_out(options, size)
    with Jobs(options.out, options.say, options.scale != "smoke", options.cells_of("fedkc")) as jobs:
        corpora = with_vocabularies(jobs, corpora, size)
        laid_out = perf_counter()
        tuned, tuning = tune(jobs, corpora[SHAPE], size) if options.tune else (Tuned(), [])
        choosing = perf_counter() - laid_out if options.tune else 0.0
        runs = Runs(jobs, corpora, size, tuned, model_of(options.model) if options.model else None)
        runs.start()
        leaks = {layer: attacked(runs, layer, options.say) for layer in LAYERS}  # while other runs continue
        tables = [shape_table(runs), *(task_table(runs, task) for task in TASKS), k_means_table(runs)]
        tables += [sensitivity_table(runs), figure_4(leaks), defence_table(runs), traffic_table(runs)]
        claims = [*all_claims(runs), privacy_claim(leaks)]
        # The report describes the data of its first run, so a federated one stands first.
        order = sorted(methods(tuned, 1), key=lambda method: method in KINDS)
        folders = [(method, jobs.result(runs.name(SHAPE, method, 0)).folder) for method in order]
    report = html.write(
        folders,
        options.out / "report.html",
        "FedKC: knowledge composition among monolingual clients",
        [claim.line for claim in claims],
        [*tuning, *tables],
    )
    took, facts = perf_counter() - began, {"tuned": vars(tuned)}
    return Reproduction(
        "fedkc", options.scale, [*tuning, *tables], claims, report, took, facts, choosing, cells=jobs.kept
    )


# ── the tables ────────────────────────────────────────────────────────────────────────────────────────────────────


def spread(values: list[float]) -> str:
    """The mean, and the standard deviation of several values."""
    return f"{fmean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def paper(method: str, task: str) -> str:
    """The published value of a method on a task."""
    value = AVERAGES[method].get(task)
    return "–" if value is None else f"{value:.4f}"


def shape_table(runs: Runs) -> Table:
    """Table 3 on ICD-10 chapters."""
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
        f"mean of the last {runs.size.average} evaluations; rows with a deviation: {runs.size.seeds} seeds, others one."
    )
    if runs.size.pairs is not None:
        note += f" On all layers, a step uses {runs.size.pairs} random ones of the shared pairs."
    return Table("Table 3, shape: accuracy on ICD-10 chapters", columns, rows, note)


def task_table(runs: Runs, task: str) -> Table:
    """Table 3 on one of the paper's tasks."""
    languages, rows = list(runs.corpora[task].silos), []
    for method in runs.size.task_methods:
        scores = runs.scores(task, method)
        cells = [f"{scores[code]['accuracy']:.4f}" for code in languages]
        mean, f1 = (f"{runs.mean(task, method, metric=metric):.4f}" for metric in ("accuracy", "micro_f1"))
        both = [mean, f1, paper(method, task), paper(method, "PI F1")] if task == "PI" else [mean, paper(method, task)]
        rows.append([method, *cells, *both])
    averages = ["mean", "mean F1", "paper", "paper F1"] if task == "PI" else ["mean", "paper"]
    corpus = runs.corpora[task]
    start = "random weights (the paper: mBERT)" if runs.model is None else Path(runs.model).name
    note = (
        f"{corpus.clients} clients, {corpus.active} active, {runs.size.task_rounds} rounds (paper: 35), models "
        f"started from {start}, one seed."
    )
    return Table(f"Table 3, {task}: accuracy in the paper's layout", ["", *languages, *averages], rows, note)


def k_means_table(runs: Runs) -> Table:
    """Table 4."""
    rows = [
        [method, spread(runs.over_seeds(method)), *(paper(method, task) for task in TASKS)]
        for layer in (LAST, ALL)
        for method in (WITHOUT[layer], layer)
    ]
    return Table("Table 4: with and without k-means", ["", "ours (ICD-10)", *(f"paper {t}" for t in TASKS)], rows)


def sensitivity_table(runs: Runs) -> Table:
    """Figures 2 and 3: local epochs and active clients."""
    languages, rows = list(runs.corpora["NC"].silos), []
    varied = [("Figure 2", f"{n} local epochs", {"epochs": n}) for n in EPOCHS]
    varied += [("Figure 3", f"{n} active clients", {"active": n}) for n in runs.active()]
    for figure, what, which in varied:
        scores = runs.scores("NC", ALL, **which)
        cells = [f"{scores[code]['accuracy']:.4f}" for code in languages]
        rows.append([figure, what, *cells, f"{fmean(s['accuracy'] for s in scores.values()):.4f}"])
    note = "The paper prints curves: one epoch is worst; 5 and 7 active clients gain {:.1%} and {:.1%} over 2."
    columns = ["", f"NC, {ALL}", *languages, "mean"]
    return Table("Figures 2 and 3: sensitivity", columns, rows, note.format(*ACTIVE_GAIN.values()))


Leaks = dict[str, dict[str, Any]]  # attack → its findings


def attacked(runs: Runs, layer: str, say: Say) -> Leaks:
    """Both attacks on the centroids that silos shared in the run with the first seed; the findings are saved there."""
    folder = runs.jobs.result(runs.name(SHAPE, LAYERS[layer])).folder
    kinds: tuple[leak.Kind, ...] = ("embedding-inversion", "nearest-token")
    found: Leaks = {kind: leak.attack_knowledge(folder, kind, runs.size.attacked, say) for kind in kinds}
    for one in found.values():
        save_audit(folder, one)
    return found


def figure_4(leaks: Mapping[str, Leaks]) -> Table:
    """Figure 4: hits of the attacks and of their controls."""
    rows = []
    for layer, found in leaks.items():
        for kind, one in found.items():
            for who, curves in one["curves"].items():
                if who != "attack" and kind != "embedding-inversion":
                    continue  # the controls do not depend on the attack
                cells = [
                    f"{curves[where][min(n, len(curves[where])) - 1]:.1%}" for where in ("any", "same") for n in HITS
                ]
                published = f"{HITS_90[layer]:.1%}" if who == "attack" and kind == "embedding-inversion" else "–"
                rows.append([f"{layer}: {kind if who == 'attack' else who}", *cells, published])
    columns = ["Hits@N", *(f"{where} @{n}" for where in ("any", "same") for n in HITS), "paper, any @90"]
    note = (
        "At any position, or at the same one. Compare with the controls: guesses without the centroids (most frequent, "
        "random), and centroids without averaging."
    )
    return Table("Figure 4: tokens recovered from shared centroids", columns, rows, note)


def privacy_claim(leaks: Mapping[str, Leaks]) -> Claim:
    """By the stronger attack, at the right position, with the first guess."""
    worst = {layer: max(one["curves"]["attack"]["same"][0] for one in found.values()) for layer, found in leaks.items()}
    control = {
        layer: found["embedding-inversion"]["curves"]["no averaging"]["same"][0] for layer, found in leaks.items()
    }
    shown = [
        f"{layer} layer(s) {share:.1%} of tokens at their position"
        + (f" (inconclusive: without averaging {control[layer]:.1%})" if control[layer] < MIN_CONTROL else "")
        for layer, share in worst.items()
    ]
    return Claim(
        "tokens are harder to recover from all-layers centroids than from last-layer ones",
        worst["all"] < worst["last"],
        ", ".join(shown),
        f"Hits@90 {HITS_90['all']:.1%} (all), {HITS_90['last']:.1%} (last)",
    )


def defence_table(runs: Runs) -> Table:
    """The cost of defences of all-layers centroids, and what an attack still recovers, with the first seed."""
    tried = []
    for name in DEFENCES:
        folder = runs.jobs.result(runs.name(SHAPE, ALL, defence=name)).folder
        run = federation(runs.corpora[SHAPE], ALL, runs.size, runs.tuned, runs.size.rounds, defence=name)
        tried.append(price.DefenceRuns(name, run, [folder], [runs.mean(SHAPE, ALL, defence=name)]))
    found = price.findings("accuracy", tried, {"defences": tuple(DEFENCES)}, runs.size.attacked)
    save_audit(runs.jobs.result(runs.name(SHAPE, ALL)).folder, found)
    [shown] = audit.tables(found)
    note = "One seed; tokens recovered by embedding inversion; the report draws accuracy over tokens recovered."
    return Table("Defences of all-layers centroids, and their cost", shown["columns"], shown["rows"], note)


def traffic_table(runs: Runs) -> Table:
    """The bytes that an exchange adds to a round."""
    rows = []
    for method in (LAST, ALL):
        run = RunResults.read(runs.jobs.result(runs.name(SHAPE, method)).folder)
        exchange, every = run.exchange, run.bytes_up + run.bytes_down
        rounds, up, down = exchange.rounds, exchange.up, exchange.down
        others = max(1, runs.corpora[SHAPE].active - 1)
        cells = [up, down // others, up + down // others, down, every - up - down]
        rows.append([method, *(f"{cell / rounds / 1e3:,.1f}" for cell in cells)])
    columns = ["kB per round", "shared up", "the same pairs down", "2·q·n pairs", "down, all copies", "all else"]
    note = "A pair is d + k numbers (last) or T·d + k (all). Every client receives the pairs of all other clients."
    return Table("Section 4.4.2: extra traffic", columns, rows, note)


# ── the claims ────────────────────────────────────────────────────────────────────────────────────────────────────


def all_claims(runs: Runs) -> list[Claim]:
    """The claims on accuracy."""
    mean = {method: fmean(runs.over_seeds(method)) for method in methods(runs.tuned, 1)}
    federated = [value for method, value in mean.items() if method not in KINDS]

    def claim(name: str, holds: bool, better: str, *others: str) -> Claim:
        """A claim on means, as in the paper; it says which differences are within the spread of the seeds."""
        shown = (better, *others)
        ours = ", ".join(f"{method} {spread(runs.over_seeds(method))}" for method in shown)
        close = [other for other in others if not clearly(runs.over_seeds(better), runs.over_seeds(other))]
        ours += f"; within the spread of the seeds: {', '.join(close)}" if close else ""
        published = ", ".join(f"{method} {paper(method, 'PI')}" for method in shown) + " (PI)"
        strongest = max(others, key=lambda other: mean[other])
        evidence = Evidence(
            better="high",
            ours=runs.over_seeds(better),
            rival=runs.over_seeds(strongest),
            chance=1 / max(1, len(runs.corpora[SHAPE].labels)),
            has_chance=True,
        )
        return Claim(name, holds, ours, published, evidence)

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


def clearly(ours: list[float], theirs: list[float]) -> bool:
    """Whether the mean difference, seed by seed, is larger than its standard error."""
    differences = [a - b for a, b in zip(ours, theirs, strict=False)]
    error = stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return abs(fmean(differences)) > error


def _order(name: str, values: dict[int, float], holds: bool, paper: str) -> Claim:
    return Claim(name, holds, ", ".join(f"{n}: {value:.4f}" for n, value in values.items()), paper)
