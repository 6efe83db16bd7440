"""Wang et al. (2022), Tables 3 and 4 and Figures 2 to 4, beside ours.

The claims are tested on ICD-10 chapters with label skew inside each language, over several seeds; the paper's three
tasks are run in their client layouts and reported without selection. A score is the mean accuracy over languages and
over the last evaluations, because single rounds vary by many points. Settings are selected on validation data, from as
many values for every method (``--tune``).
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from time import perf_counter

from hansa.attacks import price
from hansa.attacks.centroids import MIN_CONTROL
from hansa.experiments.reproduce import Claim, Options, Reproduction, Table, multilingual
from hansa.experiments.reproduce.encoder import model_of
from hansa.experiments.reproduce.fedkc_runs import (
    ALL,
    CENTRAL,
    DEFENCES,
    EPOCHS,
    HITS,
    KINDS,
    LAST,
    LAYERS,
    SHAPE,
    SIZES,
    TASKS,
    WITHOUT,
    Hits,
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
from hansa.experiments.reproduce.study import report_of
from hansa.experiments.reproduce.verdict import Evidence, spread
from hansa.report import audit
from hansa.runs.results import save_audit

UNUSED = ("encoder",)  # options of the command that this paper does not use


def reproduce(options: Options) -> Reproduction:
    """Run the experiments, or resume them; return the tables and claims."""
    options.require_data()
    options.reject("fedkc", *UNUSED)
    began, size = perf_counter(), options.size_of(SIZES, "fedkc")
    options.say("writing the clients' data")
    corpora = lay_out(options, size)
    with Jobs.of(options, "fedkc") as jobs:
        corpora = with_vocabularies(jobs, corpora, size)
        laid_out = perf_counter()
        tuned, tuning = tune(jobs, corpora[SHAPE], size) if options.tune else (Tuned(), [])
        choosing = perf_counter() - laid_out if options.tune else 0.0
        runs = Runs(jobs, corpora, size, tuned, model_of(options.model) if options.model else None)
        runs.start()
        leaks: Leaks = {layer: runs.cell(SHAPE, method).facts[runs.hits] for layer, method in LAYERS.items()}
        tables = [shape_table(runs), *(task_table(runs, task) for task in TASKS), k_means_table(runs)]
        tables += [sensitivity_table(runs), figure_4(leaks), defence_table(runs), traffic_table(runs)]
        claims = [*all_claims(runs), privacy_claim(leaks)]
        # The report describes the data of its first run, so a federated one stands first.
        order = sorted(methods(tuned, 1), key=lambda method: method in KINDS)
        folders = [(method, jobs.folder(runs.name(SHAPE, method, 0))) for method in order]
    title = "FedKC: knowledge composition among monolingual clients"
    report = report_of(options, folders, title, claims, [*tuning, *tables])
    took, facts = perf_counter() - began, {"tuned": vars(tuned)}
    return Reproduction(
        "fedkc", options.scale, [*tuning, *tables], claims, report, took, facts, choosing, cells=jobs.kept
    )


# ── the tables ────────────────────────────────────────────────────────────────────────────────────────────────────


def with_spread(values: list[float]) -> str:
    """The mean, and the sample standard deviation of several values."""
    return f"{fmean(values):.4f}" + (f" ± {spread(values):.4f}" if len(values) > 1 else "")


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
        rows.append([method, *cells, with_spread(runs.over_seeds(method)), *(paper(method, task) for task in TASKS)])
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
        [method, with_spread(runs.over_seeds(method)), *(paper(method, task) for task in TASKS)]
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


Leaks = Mapping[str, Hits]  # layer → what the attacks on its shared centroids found, in the run with the first seed
INVERSION, CONTROL = "embedding-inversion", "no averaging"


def figure_4(leaks: Leaks) -> Table:
    """Figure 4: hits of the attacks and of their controls."""
    rows = []
    for layer, found in leaks.items():
        for kind, one in found.items():
            for who, shares in one.items():
                if who != "attack" and kind != INVERSION:
                    continue  # the controls do not depend on the attack
                cells = [f"{share:.1%}" for where in ("any", "same") for share in shares[where]]
                published = f"{HITS_90[layer]:.1%}" if who == "attack" and kind == INVERSION else "–"
                rows.append([f"{layer}: {kind if who == 'attack' else who}", *cells, published])
    columns = ["Hits@N", *(f"{where} @{n}" for where in ("any", "same") for n in HITS), "paper, any @90"]
    note = (
        "At any position, or at the same one. Compare with the controls: guesses without the centroids (most frequent, "
        "random), and centroids without averaging."
    )
    return Table("Figure 4: tokens recovered from shared centroids", columns, rows, note)


def privacy_claim(leaks: Leaks) -> Claim:
    """By the stronger attack, at the right position, with the first guess.

    Undecided if the attack does not read single texts of a layer, without averaging: it is too weak to say anything.
    """
    worst = {layer: max(one["attack"]["same"][0] for one in found.values()) for layer, found in leaks.items()}
    control = {layer: found[INVERSION][CONTROL]["same"][0] for layer, found in leaks.items()}
    weak = [f"{layer} {share:.1%}" for layer, share in control.items() if share < MIN_CONTROL]
    shown = [f"{layer} layer(s) {share:.1%} of tokens at their position" for layer, share in worst.items()]
    return Claim(
        "tokens are harder to recover from all-layers centroids than from last-layer ones",
        worst["all"] < worst["last"],
        ", ".join(shown),
        f"Hits@90 {HITS_90['all']:.1%} (all), {HITS_90['last']:.1%} (last)",
        undecided=f"undecided: the attack fails its control without averaging ({', '.join(weak)} of tokens, less than "
        f"{MIN_CONTROL:.0%})"
        if weak
        else "",
    )


def defence_table(runs: Runs) -> Table:
    """The cost of defences of all-layers centroids, and what an attack still recovers, with the first seed."""
    tried = []
    for name in DEFENCES:
        leaks = [runs.cell(SHAPE, ALL, defence=name).facts[runs.leak]]
        run = federation(runs.corpora[SHAPE], ALL, runs.size, runs.tuned, runs.size.rounds, defence=name)
        tried.append(price.DefenceRuns(name, run, leaks, [runs.mean(SHAPE, ALL, defence=name)]))
    found = price.findings("accuracy", tried, {"defences": tuple(DEFENCES)})
    folder = runs.jobs.folder(runs.name(SHAPE, ALL))
    if folder.is_dir():
        save_audit(folder, found)
    [shown] = audit.tables(found)
    note = "One seed; tokens recovered by embedding inversion; the report draws accuracy over tokens recovered."
    return Table("Defences of all-layers centroids, and their cost", shown["columns"], shown["rows"], note)


def traffic_table(runs: Runs) -> Table:
    """The bytes that an exchange adds to a round."""
    rows = []
    for method in (LAST, ALL):
        cell = runs.cell(SHAPE, method)
        every, exchange = cell.bytes_up + cell.bytes_down, cell.facts["exchange"]
        rounds, up, down = exchange["rounds"], exchange["up"], exchange["down"]
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
        ours = ", ".join(f"{method} {with_spread(runs.over_seeds(method))}" for method in shown)
        close = [other for other in others if not clearly(runs.over_seeds(better), runs.over_seeds(other))]
        ours += f"; within the spread of the seeds: {', '.join(close)}" if close else ""
        published = ", ".join(f"{method} {paper(method, 'PI')}" for method in shown) + " (PI)"
        strongest = max(others, key=lambda other: mean[other])
        evidence = Evidence(
            better="high",
            ours=runs.over_seeds(better),
            rival=runs.over_seeds(strongest),
            chance=runs.corpora[SHAPE].majority,
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
    """Whether the difference of the means is larger than the spread over seeds, as in `verdict.judge`."""
    return abs(fmean(ours) - fmean(theirs)) > max(spread(ours), spread(theirs))


def _order(name: str, values: dict[int, float], holds: bool, paper: str) -> Claim:
    return Claim(name, holds, ", ".join(f"{n}: {value:.4f}" for n, value in values.items()), paper)
