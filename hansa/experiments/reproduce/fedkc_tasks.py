"""Wang et al. (2022), Tables 3 and 4 and Figures 2 and 3, on the paper's three tasks, from a pre-trained encoder.

    PI   paraphrase identification: 22 clients, pairs of the STS benchmark in eight languages
    QA   question-answer matching: 20 clients, XQuAD
    NC   news classification: 70 clients, MasakhaNEWS

The paper starts from multilingual BERT. The encoder here is MiniLM, an English one, so that all languages are written
in Latin script. A tenth of the clients is active in a round and trains for two epochs. Learning rates of central
training and of FedAvg are selected on validation data; the other methods take FedAvg's, and the coefficients that were
selected on ICD-10 chapters (fedkc_runs.py). The learning rate falls linearly to zero, so that the last round's model is
not one of a swinging series.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from time import perf_counter
from typing import Any

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.experiments.reproduce import Claim, Options, Reproduction, Table, encoder, multilingual
from hansa.experiments.reproduce.cells import Cell
from hansa.experiments.reproduce.fedkc_runs import ALL, CENTRAL, DOMINANT, KINDS, LAST, WITHOUT, Tuned, methods
from hansa.experiments.reproduce.multilingual import Corpus
from hansa.experiments.reproduce.published_fedkc import ACTIVE_GAIN, AVERAGES
from hansa.experiments.reproduce.study import BASE, SEEDS, Study, figure, written
from hansa.experiments.reproduce.verdict import Evidence

PAPER, METRIC = "fedkc-tasks", "accuracy"
UNUSED = ("encoder", "tune")  # options of the command that this paper does not use
FEDAVG = "FedAvg"
RIVALS = (FEDAVG, "FedProx", "MOON", "FedMix")
FOLLOWERS = ("FedProx", "MOON", "FedMix", LAST, ALL, WITHOUT[LAST], WITHOUT[ALL])
SKEWED = "PI, label skew"  # the second condition: FedAvg and FedKC alone
VARIED: dict[str, dict[str, int]] = {  # Figures 2 and 3, on NC
    f"{ALL}, 1 epoch": {"epochs": 1},
    f"{ALL}, 4 epochs": {"epochs": 4},
    f"{ALL}, 2 active": {"active": 2},
    f"{ALL}, 5 active": {"active": 5},
}


@dataclass(frozen=True)
class Size:
    """The size of the experiments."""

    rounds: int
    central_rounds: int  # of two epochs each over the pooled data
    per_client: int  # rows at most
    held_out: int  # rows of each language's validation and test sets
    seeds: int
    rates: Mapping[str, Sequence[float]]
    batch: Mapping[str, int] = field(default_factory=lambda: {"PI": 16, SKEWED: 16, "QA": 8, "NC": 4})
    pairs: int = 8  # shared pairs that a step uses in FedKC on all layers
    skew: float = 1.0  # Dirichlet parameter of the second condition: with two labels, less leaves clients without rows
    bf16: bool = False
    published: bool = False  # the layouts that were asked for, at least 20 rounds, three seeds


_RATES = {CENTRAL: (5e-5, 1e-4, 2e-4), FEDAVG: (1e-4, 2e-4, 4e-4)}
SIZES = {
    "smoke": Size(
        1, 1, 16, 8, 1, {CENTRAL: (1e-3,), FEDAVG: (1e-3,)}, {"PI": 8, SKEWED: 8, "QA": 8, "NC": 8}, skew=100.0
    ),
    "small": Size(20, 2, 300, 200, 3, _RATES, published=True),
    "medium": Size(35, 3, 1_000, 400, 3, _RATES, bf16=True, published=True),
}


def reproduce(options: Options) -> Reproduction:
    """Run the experiments, or resume them; return the tables and claims."""
    options.require_data()
    options.reject(PAPER, *UNUSED)
    began, size = perf_counter(), options.size_of(SIZES, PAPER)
    options.say("writing the clients' data")
    corpora = lay_out(options, size)
    model = _model_of(options)
    tables, judged, cells = list[Table](), list[Claim](), list[Cell]()
    for task, corpus in corpora.items():
        study = _study(options, task, corpus, size, model)
        if not options.finished:
            study.run()
        found = {arm: study.of(arm) for arm in study.arms}
        cells += [cell for some in found.values() for cell in some]
        tables += [_scores(task, corpus, size, found), study.rate_table()]
        judged += claims(task, corpus, found, study, size.published)
        if task == "NC":
            tables.append(_varied(found))
            judged += _varied_claims(found, study, corpus, size.published)
    report = written(options, tables, judged)
    return Reproduction(PAPER, options.scale, tables, judged, report, perf_counter() - began, cells=cells)


def lay_out(options: Options, size: Size) -> dict[str, Corpus]:
    """Write the clients' data of every task, and of paraphrases with label skew inside each language."""
    folder, data = options.out / "data", options.data
    if data is None:
        made = multilingual.generate(folder)
        found = {task: made[task] for task in ("PI", "QA", "NC")}
    else:
        found = {
            "PI": multilingual.similar_sentences(data, folder, size.per_client, size.held_out),
            "QA": multilingual.questions(data, folder, size.held_out),
            "NC": multilingual.news(data, folder, size.held_out),
        }
    paraphrases = found["PI"]
    several = {
        name: s | ({"skew": multilingual.SKEW} if "clients" in s else {}) for name, s in paraphrases.silos.items()
    }
    return {"PI": paraphrases, SKEWED: replace(paraphrases, silos=several), "QA": found["QA"], "NC": found["NC"]}


def federation(
    arm: str,
    corpus: Corpus,
    size: Size,
    model: Mapping[str, Any],
    batch: int,
    rate: float,
    seed: int,
    selecting: bool = False,
) -> Federation:
    """The settings of a run; ``model``: those of the encoder and its tokenizer.

    ``selecting``: it is tested on validation data.
    """
    varied = VARIED.get(arm, {})
    method = ALL if arm in VARIED else FEDAVG if arm == BASE else arm
    kind = "base" if arm == BASE else KINDS.get(arm, "federated")
    rounds = size.central_rounds if arm in KINDS else size.rounds
    training = {
        "optimizer": "adamw",
        "lr": rate,
        "batch": batch,
        "schedule": "linear",
        "precision": "bf16" if size.bf16 else "float32",
    }
    return parse(
        {
            "name": "fedkc",
            "seed": seed,
            "kind": kind,
            "task": corpus.named_task,
            **model,
            "data": {"max_length": corpus.length, "valid": 0.0, "test": 0.0},
            "silos": corpus.sources(selecting),
            "method": methods(Tuned(), corpus.clusters, size.pairs)[method],
            "rounds": rounds,
            "participation": {"count": varied.get("active", corpus.active)},
            "train": training | {"samples": {"epochs": varied.get("epochs", 2)}},
            "baseline": training | {"keep_optimizer": True},
            "evaluate": {"every": rounds, "share": 1.0},
            "checkpoint": {"every": 5},
        }
    )


def _model_of(options: Options) -> dict[str, Any]:
    if options.scale == "smoke" and options.model is None:
        return {"model": "mini", "tokenizer": {"size": 600, "min_count": 2}}
    package = encoder.MINILM.package.partition("==")[0]
    return {"model": {"path": encoder.model_of(options.model or package)}}


def _study(options: Options, task: str, corpus: Corpus, size: Size, model: Mapping[str, Any]) -> Study:
    arms = [LAST, ALL] if task == SKEWED else [*FOLLOWERS, *(VARIED if task == "NC" else ())]
    follows = dict.fromkeys(arms, FEDAVG) | ({} if task == SKEWED else {DOMINANT: CENTRAL})
    rates = size.rates if task != SKEWED else {FEDAVG: size.rates[FEDAVG]}

    def build(arm: str, rate: float, seed: int, selecting: bool = False) -> Federation:
        """The settings of a run."""
        return federation(arm, corpus, size, model, size.batch[task], rate, seed, selecting)

    return Study(
        options,
        options.cells_of(PAPER),
        build,
        rates,
        follows,
        size.seeds,
        METRIC,
        "high",
        f"{task}: ",
        lambda arm, rate, seed: build(arm, rate, seed, True),
    )


# ── tables and claims ─────────────────────────────────────────────────────────────────────────────────────────────


def accuracies(cells: Sequence[Cell], language: str = "") -> list[float]:
    """The accuracy of each seed on the test sets: of one language, or averaged over all."""
    return [cell.scores[language][METRIC] if language else cell.mean(METRIC) for cell in cells]


def _scores(task: str, corpus: Corpus, size: Size, found: Mapping[str, Sequence[Cell]]) -> Table:
    languages, rows = list(corpus.silos), []
    for arm, cells in found.items():
        if arm in VARIED:
            continue
        by_language = [f"{fmean(accuracies(cells, code)):.4f}" if cells else "–" for code in languages]
        published = AVERAGES.get(arm, {}).get(task)
        rows.append([arm, *by_language, figure(accuracies(cells)), "–" if published is None else f"{published:.4f}"])
    counts = ", ".join(f"{code} {source.get('clients', 1)}" for code, source in corpus.silos.items())
    note = (
        f"{corpus.clients} clients ({counts}), {corpus.active} active, at most {size.per_client} rows each; "
        f"{size.rounds} rounds of two epochs (paper: 35), central training {2 * size.central_rounds} epochs; guessing "
        f"the most frequent label: {corpus.majority:.4f}. {SEEDS}"
    )
    if task == SKEWED:
        note = f"Labels are divided between the clients of a language by Dirichlet({size.skew:g}). {note}"
    return Table(f"Tables 3 and 4, {task}: accuracy", ["", *languages, "mean ± std", "paper"], rows, note)


def _varied(found: Mapping[str, Sequence[Cell]]) -> Table:
    usual = {f"{ALL}, 2 epochs, 7 active": found[ALL]}
    rows = [[arm, figure(accuracies(cells))] for arm, cells in (usual | {arm: found[arm] for arm in VARIED}).items()]
    gains = ", ".join(f"{n} active {gain:+.1%}" for n, gain in ACTIVE_GAIN.items())
    note = f"The paper prints curves: two epochs beat four, one is worst; against 2 active clients, {gains}. {SEEDS}"
    return Table("Figures 2 and 3, NC: local epochs and active clients", ["", "mean ± std"], rows, note)


def claims(
    task: str, corpus: Corpus, found: Mapping[str, Sequence[Cell]], study: Study, published: bool
) -> list[Claim]:
    """One line for each claim of Tables 3 and 4 on a task, also where it is lost."""

    def claim(what: str, better: str, worse: str) -> Claim:
        """The claim that one method is above another."""
        base = accuracies(found[BASE])
        evidence = Evidence(
            better="high",
            ours=accuracies(found[better]),
            rival=accuracies(found[worse]),
            start=base[0] if base else None,
            grid=study.grid(worse),
            chance=corpus.majority,
            has_chance=True,
            published=published,
        )
        paper = [AVERAGES.get(method, {}).get(task) for method in (better, worse)]
        figures = [f"{method} {figure(accuracies(found[method]))}" for method in (better, worse)]
        shown = " against ".join("–" if value is None else f"{value:.4f}" for value in paper)
        return Claim.of(f"{task}: {what}", evidence, " against ".join(figures), shown)

    def mean(method: str) -> float:
        """The mean accuracy of a method over its seeds; below all others if it has no run."""
        return fmean(accuracies(found[method])) if found[method] else -1.0

    if task == SKEWED:
        return [claim(f"{layer} is above FedAvg", layer, FEDAVG) for layer in (LAST, ALL)]
    strongest = max(RIVALS, key=mean)
    federated = max((*RIVALS, LAST, ALL), key=mean)
    return [
        claim("FedKC on all layers is above the strongest of FedAvg, FedProx, MOON and FedMix", ALL, strongest),
        claim("FedKC on the last layer is above the strongest of them", LAST, strongest),
        claim("FedKC on all layers is above FedKC on the last", ALL, LAST),
        *(claim(f"k-means helps {layer}", layer, WITHOUT[layer]) for layer in (LAST, ALL)),
        claim("central training is above the best federated method", CENTRAL, federated),
    ]


def _varied_claims(found: Mapping[str, Sequence[Cell]], study: Study, corpus: Corpus, published: bool) -> list[Claim]:
    """Figure 2, two epochs beat one and four; Figure 3, more active clients beat two."""
    made = []
    for what, better, worse, paper in (
        ("two local epochs beat four", ALL, f"{ALL}, 4 epochs", "mostly so"),
        ("two local epochs beat one", ALL, f"{ALL}, 1 epoch", "mostly so"),
        ("5 active clients beat 2", f"{ALL}, 5 active", f"{ALL}, 2 active", f"{ACTIVE_GAIN[5]:+.1%}"),
        ("7 active clients beat 2", ALL, f"{ALL}, 2 active", f"{ACTIVE_GAIN[7]:+.1%}"),
    ):
        ours, theirs = accuracies(found[better]), accuracies(found[worse])
        base = accuracies(found[BASE])
        evidence = Evidence(
            better="high",
            ours=ours,
            rival=theirs,
            start=base[0] if base else None,
            grid=study.grid(worse),
            chance=corpus.majority,
            has_chance=True,
            published=published,
        )
        made.append(Claim.of(f"NC: {what}", evidence, f"{figure(ours)} against {figure(theirs)}", paper))
    return made
