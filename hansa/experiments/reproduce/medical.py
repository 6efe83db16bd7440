"""The Medical paper (Manoel et al., 2023): Tables 3 to 7, on real text in nine languages.

Every run starts from one general-domain multilingual snapshot and continues on medical text. The federation, central
training and one model per silo see as many tokens; personal models and fine-tuning follow.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.experiments.reproduce import Asked, Claim, Reproduction, Table, corpora, downstream, encoder, tuning
from hansa.experiments.reproduce.jobs import Jobs
from hansa.experiments.reproduce.published import LANGUAGES as PUBLISHED
from hansa.experiments.reproduce.published import NER, TABLE_5, TABLE_6, TABLE_7
from hansa.report import html
from hansa.report.charts import short
from hansa.runs.inference import load, score
from hansa.runs.ledger import Ledger
from hansa.runs.run import Outcome

RUNS = {"FL": "federated", "CL": "central", "own silo": "per-silo", "base": "base"}
DRAWS = 4  # maskings of every text where personal models are compared: they differ by a few words in a thousand
ENOUGH = 8  # languages of nine in which the federation must beat the silo's own model


@dataclass(frozen=True)
class Size:
    """How much of everything. Learning rates were tuned apart, by the mean over languages on validation data."""

    base_samples: int
    rounds: int
    batch: int
    length: int
    vocabulary: int
    server_lr: float
    temperature: float  # silos weigh N^temperature
    central_lr: float
    own_lr: float
    personal_rounds: int
    personal_lr: float
    epochs: int  # of fine-tuning
    limit: int  # rows of assertion and relation data
    tries: int = 1  # of fine-tuning for entities, from seeds of their own: single ones differ by points of F1
    preset: str = "tiny"
    published: bool = False  # with the paper's own settings, on all the text there is


SIZES: dict[str, Size] = {
    "smoke": Size(600, 6, 4, 24, 1200, 2e-3, 0.5, 1e-3, 1e-3, 2, 1e-3, 1, 200),
    "small": Size(184_000, 2800, 4, 32, 2500, 1e-3, 0.35, 1e-5, 5e-4, 100, 2e-4, 3, 1500, 3),
    "full": Size(20_000_000, 1000, 2048, 128, 32_000, 3e-4, 1.0, 3e-5, 3e-5, 50, 3e-5, 4, 1_000_000, 3, "base", True),
}


# Tables 1 and 2 of the paper.
PUBLISHED_SETTINGS: dict[str, Any] = {
    "train": {"optimizer": "sgd", "lr": 1e-4, "batch": 2048, "samples": {"floor": 500, "fraction": 0.8e-4}},
    "server": {"optimizer": "adam", "lr": 3e-4, "schedule": {"kind": "linear", "decay": 1e-3}},
    "aggregate": {"weights": "samples"},
    "evaluate": {"every": 5, "share": 0.1},
}


def reproduce(asked: Asked) -> Reproduction:
    asked.need_text()
    scale, data, out, model, say = asked.scale, asked.data, asked.out, asked.model, asked.say
    began, size, tuned, choosing = perf_counter(), SIZES[scale], list[Table](), 0.0
    say("laying out the silos' data")
    silos = corpora.lay_out(data, out / "data", everything=size.published) if data else corpora.generate(out / "data")
    tasks = downstream.tasks(data, out / "data", size.limit)
    with Jobs(out, say, scale != "smoke") as jobs:
        if model is None:
            jobs.start("snapshot", snapshot(out / "data", list(silos), size))
        shape = model or str(jobs.begun("snapshot").resolve())
        # Beside the snapshot, which takes one core: they need no more than its shape.
        downstream.start(jobs, "none", tasks, size, shape, fresh=True)
        base = model or _model_of(jobs, "snapshot")
        share = tuning.equal_tokens(silos, base, size.length)
        if asked.tune:
            ready = perf_counter()
            size, tuned = tuning.tune(jobs, size, lambda kind, s: federation(kind, silos, s, base, share, False))
            choosing = perf_counter() - ready
        for kind in RUNS.values():
            # The federation takes longest, and its silos' own models come after it: it may use every core.
            jobs.start(kind, federation(kind, silos, size, base, share), None if kind == "federated" else 0)
        for kind in ("central", "federated"):  # the federation takes longest
            downstream.start(jobs, kind, tasks, size, _model_of(jobs, kind))
        if asked.encoder is not None:
            encoder.start(jobs, asked.encoder, tasks["NCBI-disease"], out / "data")
        outcomes = {column: jobs.result(kind) for column, kind in RUNS.items()}
        own_models = table_3_silos(outcomes["own silo"], silos, out / "data")
        kinds = ("federated", "central", "none")
        scores = {name: {kind: downstream.score(jobs, kind, name, size) for kind in kinds} for name in tasks}
        related = jobs.result("federated E3C relation")
        fine_tuned = encoder.results(jobs) if asked.encoder is not None else None
    languages = list(silos)
    personal = personal_models(outcomes["FL"])
    counts = html.weights_of(html.see(outcomes["FL"].folder))
    tables = [
        *tuned,
        table_3(outcomes, languages, counts),
        own_models,
        table_4(scores, fine_tuned, size.tries),
        table_5(scores, related, 2 * size.length),
        table_6(personal, languages),
        table_7(outcomes, languages),
    ]
    claims = [*pretraining_claims(outcomes, languages, counts), personal_claim(personal, languages, counts)]
    claims += [*downstream.claims(scores), *(encoder.claims(fine_tuned) if fine_tuned else [])]
    report = html.write(
        [(column, outcome.folder) for column, outcome in outcomes.items()],
        out / "report.html",
        "Medical: one model, nine languages, nine silos",
        [claim.line for claim in claims],
        tables,
    )
    took = perf_counter() - began
    return Reproduction("medical", scale, tables, claims, report, took, {"snapshot": model or "ours"}, choosing)


def _model_of(jobs: Jobs, name: str) -> str:
    return str((jobs.result(name).folder / "model").resolve())


# ── the runs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def snapshot(folder: Path, languages: list[str], size: Size) -> Federation:
    """The general-domain start: trained centrally on general text, with a vocabulary of that text."""
    rounds = 12
    each = max(1, size.base_samples // rounds // len(languages))
    return parse(
        {
            "name": "snapshot",
            "kind": "central",
            "model": size.preset,
            "tokenizer": {"size": size.vocabulary, "min_count": 2},
            "data": {"max_length": 2 * size.length, "valid": 0.0, "test": 0.005 if size.base_samples > 10_000 else 0.1},
            "silos": {
                code: {"train": str((folder / "general" / f"{code}.jsonl").resolve()), "language": code}
                for code in languages
            },
            "rounds": rounds,
            "train": {"samples": {"floor": each}},
            "baseline": {"optimizer": "adamw", "lr": 1e-3, "batch": 32, "keep_optimizer": True, "schedule": "linear"},
            "evaluate": {"every": 1, "share": 1.0},
        }
    )


def federation(
    kind: str, silos: dict[str, dict[str, str]], size: Size, path: str, share: float = 1.0, personal: bool = True
) -> Federation:
    """Few local batches, many rounds, tempered weights: the regime in which the paper's shape appears. ``share``: of
    the federation's samples, how many central training sees."""
    adamw = {
        "optimizer": "adamw",
        "eps": 1e-6,
        "weight_decay": 0.01,
        "batch": min(2048, 4 * size.batch),
        "keep_optimizer": True,
    }
    rounds = max(1, round(share * size.rounds)) if kind == "central" else size.rounds
    every = max(1, rounds // 10)
    settings: dict[str, Any] = {
        "name": kind,
        "kind": kind,
        "model": {"path": path},
        "data": {"max_length": size.length},
        "silos": silos,
        "rounds": rounds,
        "train": {"optimizer": "sgd", "lr": 0.1, "batch": size.batch, "samples": {"floor": size.batch}},
        "server": {"optimizer": "adam", "lr": size.server_lr, "schedule": "linear"},
        "aggregate": {"weights": {"by": "samples", "temperature": size.temperature}},
        "baseline": adamw | {"lr": size.central_lr if kind == "central" else size.own_lr, "schedule": "linear"},
        "personal": {
            "rounds": size.personal_rounds,
            "train": adamw | {"lr": size.personal_lr, "batch": size.batch},
            "nearby": 2,
            "draws": DRAWS,
        }
        if personal
        else None,
        "evaluate": {"every": every, "share": 0.5},
        "checkpoint": {"every": every},
    }
    return parse(settings | PUBLISHED_SETTINGS if size.published else settings)


# ── the tables ────────────────────────────────────────────────────────────────────────────────────────────────────


def perplexities(outcome: Outcome) -> dict[str, float]:
    return {language: metrics["perplexity"] for language, metrics in outcome.metrics.items()}


def weighted(values: dict[str, float], counts: dict[str, float]) -> float:
    return sum(values[code] * counts[code] for code in values) / sum(counts[code] for code in values)


def table_3(outcomes: dict[str, Outcome], languages: list[str], counts: dict[str, float]) -> Table:
    ours = {column: perplexities(outcome) for column, outcome in outcomes.items()}
    rows = [
        [
            corpora.NAMES[code],
            f"{counts[code]:,.0f}",
            *(short(ours[column][code]) for column in ours),
            *(f"{v:.2f}" for v in PUBLISHED.get(corpora.NAMES[code], ())),
        ]
        for code in languages
    ]
    rows = [row + ["–"] * (10 - len(row)) for row in rows]
    average = [fmean(values) for values in zip(*PUBLISHED.values(), strict=True)]
    rows.append(["mean", "", *(short(fmean(v.values())) for v in ours.values()), *(f"{v:.2f}" for v in average)])
    rows.append(["weighted by samples", "", *(short(weighted(v, counts)) for v in ours.values()), *["–"] * 4])
    worst = [max(values) for values in zip(*PUBLISHED.values(), strict=True)]
    rows.append(["worst language", "", *(short(max(v.values())) for v in ours.values()), *(f"{v:.2f}" for v in worst)])
    columns = ["", "samples", *ours, *(f"paper {column}" for column in ours)]
    return Table("Table 3: perplexity on each language's test set (lower is better)", columns, rows)


def table_3_silos(outcome: Outcome, silos: dict[str, dict[str, str]], folder: Path) -> Table:
    """Every silo's own model on every language: 81 evaluations, so on the first texts of each test set only."""
    rows: list[list[str]] = [[corpora.NAMES[code]] for code in silos]
    some = [corpora.first(Path(source["test"]), folder / f"{code}.some.jsonl") for code, source in silos.items()]
    for silo in silos:
        runtime, model = load(outcome.folder, silo)
        for row, file in zip(rows, some, strict=True):
            found = score(runtime, model, file, {})
            row.append(short(next(iter(found.values()))["perplexity"]))
    columns = ["", *(f"own {code}" for code in silos)]
    note = f"On the first {corpora.SOME} texts of each test set; Table 3 itself is on all of them."
    return Table("Table 3, continued: perplexity of the silos' own models on every language", columns, rows, note)


def table_4(scores: downstream.Scores, fine_tuned: dict[str, float] | None, tries: int) -> Table:
    rows = []
    for name in downstream.NER:
        for average in ("micro", "macro", "weighted"):
            key = "strict_f1" if average == "micro" else f"{average}_f1"
            paper = NER.get(name, {}).get(average)
            ours = [f"{scores[name][kind][key]:.4f}" for kind in ("federated", "central", "none")]
            rows.append([name, average, *ours, *(f"{v:.4f}" for v in paper or ()), *([] if paper else ["–", "–"])])
    for average, values in NER["i2b2-2009"].items():
        rows.append(["i2b2-2009", average, "–", "–", "–", *(f"{v:.4f}" for v in values)])
    if fine_tuned:
        both = [f"{fine_tuned[kind]:.4f}" for kind in ("federated", "central")]
        rows.append(["NCBI-disease, pre-trained encoder fine-tuned", "micro", *both, "–", "–", "–"])
    columns = ["", "average", "FL", "CL", "no pre-training", "paper FL", "paper CL"]
    title = "Table 4: strict F1 of named-entity recognition after fine-tuning the snapshots"
    several = ", of the pre-trained encoder one" if fine_tuned else ""
    note = f"Mean of {tries} fine-tunings{several}. " if tries > 1 else ""
    return Table(title, columns, rows, f"{note}The notes of i2b2-2009 are not public.")


def table_5(scores: downstream.Scores, pairs: Outcome, length: int) -> Table:
    def both(kind: str) -> str:
        found = scores["E3C NER"][kind]
        return f"{found['strict_f1']:.4f}/{found['type_f1']:.4f}"

    kinds = ("central", "federated", "none")
    rows = [["NER (strict/type)", *(both(kind) for kind in kinds), *TABLE_5["NER (strict/type)"]]]
    relation = [f"{scores['E3C relation'][kind]['micro_f1']:.4f}" for kind in kinds]
    assertion = [f"{scores['E3C assertion'][kind]['weighted_f1']:.4f}" for kind in kinds]
    rows.append(["Relation extraction", *relation, *TABLE_5["Relation Extraction"]])
    rows.append(["Assertion detection (weighted)", *assertion, "–", "–"])
    columns = ["", "CL", "FL", "no pre-training", "paper CL (public)", "paper FL"]
    left = downstream.left_out(pairs)
    note = (
        "The paper's data are proprietary: the structure is the same, the corpora are not. Annotated pairs whose "
        f"mentions are too far apart for a sample of {length} tokens are left out: {left['train']} in training, "
        f"{left['test']} in the test sets."
    )
    return Table("Table 5: F1 on downstream tasks", columns, rows, note)


def personal_models(outcome: Outcome) -> dict[str, Any]:
    ledger = Ledger(outcome.folder)
    try:
        found: dict[str, Any] = ledger.facts()["personal"]["silos"]
        return found
    finally:
        ledger.close()


def table_6(personal: dict[str, Any], languages: list[str]) -> Table:
    kinds = ("federated", "personalised", "interpolated", "nearby")
    rows = []
    for code in languages:
        ours = [f"{personal[code]['models'][kind][code]['accuracy']:.4f}" for kind in kinds]
        paper = [f"{v:.4f}" for v in TABLE_6.get(corpora.NAMES[code], ())] or ["–"] * 3
        rows.append([corpora.NAMES[code], *ours, f"{personal[code]['alpha']:.2f}", *paper])
    columns = ["", *kinds, "α", "paper federated", "paper personalised", "paper interpolated"]
    note = (
        "Interpolated: the α of 21 that validation data choose, or 0, the shared model, where it is not ahead of that "
        "by a standard error in loss and accuracy; so it is seldom worse. Nearby: personalised from a mixture with "
        "the two most similar silos; the others' local work is the same."
    )
    return Table("Table 6: masked-token accuracy of shared and personal models", columns, rows, note)


def table_7(outcomes: dict[str, Outcome], languages: list[str]) -> Table:
    rows = []
    spread = {column: html.see(outcomes[column].folder).facts["deviations"] for column in ("FL", "CL")}
    for code in languages:
        cells = [
            f"{short(outcomes[column].metrics[code]['perplexity'])} ± {short(spread[column][code]['perplexity'])}"
            for column in ("FL", "CL")
        ]
        rows.append([corpora.NAMES[code], *cells, *TABLE_7.get(corpora.NAMES[code], ("–", "–"))])
    title = "Table 7: perplexity, and its standard deviation over the test set cut in four"
    note = "Ours of the whole test set, the paper's the mean of the four parts."
    return Table(title, ["", "FL", "CL", "paper FL", "paper CL"], rows, note)


# ── the claims ────────────────────────────────────────────────────────────────────────────────────────────────────


def pretraining_claims(outcomes: dict[str, Outcome], languages: list[str], counts: dict[str, float]) -> list[Claim]:
    ours = {column: perplexities(outcome) for column, outcome in outcomes.items()}
    fl, cl, own = (ours[column] for column in ("FL", "CL", "own silo"))
    mean = {column: fmean(values.values()) for column, values in ours.items()}
    smallest = sorted(languages, key=lambda code: counts[code])[:3]
    beaten = [code for code in languages if fl[code] < own[code]]
    paper = {column: fmean(v[i] for v in PUBLISHED.values()) for i, column in enumerate(("FL", "CL"))}

    def listed(codes: list[str]) -> str:
        return ", ".join(f"{code} {short(fl[code])} against {short(cl[code])}" for code in codes)

    return [
        Claim(
            "the federated model's mean perplexity over languages is at most central training's",
            mean["FL"] <= mean["CL"],
            f"{short(mean['FL'])} against {short(mean['CL'])}",
            f"{paper['FL']:.2f} against {paper['CL']:.2f}",
        ),
        Claim(
            "it is below central training's for the three smallest languages",
            all(fl[code] < cl[code] for code in smallest),
            listed(smallest),
            "he 6.98 against 9.44, ar 8.36 against 10.48, ru 6.07 against 7.17",
        ),
        Claim(
            f"it is below the silo's own model on the silo's language, for at least {ENOUGH} of 9 languages",
            len(beaten) >= ENOUGH,
            f"{len(beaten)} of {len(languages)}",
            "9 of 9",
        ),
    ]


def personal_claim(personal: dict[str, Any], languages: list[str], counts: dict[str, float]) -> Claim:
    dominant = max(languages, key=lambda code: counts[code])
    others = [code for code in languages if code != dominant]

    def accuracy(code: str, kind: str) -> float:
        return float(personal[code]["models"][kind][code]["accuracy"])

    better = [code for code in others if accuracy(code, "interpolated") >= accuracy(code, "federated")]
    return Claim(
        "interpolated models are at least as accurate as the federated one in every language but the dominant",
        len(better) == len(others),
        f"{len(better)} of {len(others)}",
        "6 of 6",
    )
