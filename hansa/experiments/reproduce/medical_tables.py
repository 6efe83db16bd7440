"""The tables and claims of the Medical paper (Manoel et al., 2023), our figures beside the published ones."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from hansa.experiments.reproduce import Claim, Table, corpora, downstream, tuning
from hansa.experiments.reproduce.cells import Cell
from hansa.experiments.reproduce.medical_facts import DEVIATIONS
from hansa.experiments.reproduce.medical_rivals import PUBLIC
from hansa.experiments.reproduce.published_medical import LANGUAGES as PUBLISHED
from hansa.experiments.reproduce.published_medical import NER, TABLE_5, TABLE_6, TABLE_7
from hansa.experiments.reproduce.verdict import Evidence
from hansa.report.charts import short
from hansa.runs.result import Result
from hansa.runs.results import PersonalModels

ENOUGH = 8  # languages of nine in which the federated model must be better than the silo's own model


def perplexities(outcome: Result) -> dict[str, float]:
    """Language → perplexity on its test set."""
    return {language: metrics["perplexity"] for language, metrics in outcome.metrics.items()}


def weighted(values: dict[str, float], counts: dict[str, float]) -> float:
    """The mean of values, weighted by counts."""
    return sum(values[code] * counts[code] for code in values) / sum(counts[code] for code in values)


def table_3(outcomes: dict[str, Result], languages: list[str], counts: dict[str, float]) -> Table:
    """Perplexity by language; ``counts``: training samples by language."""
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


def table_3_silos(found: Mapping[str, Mapping[str, float]]) -> Table:
    """Every silo's own model on every language: 81 evaluations, so only on the first texts of each test set.

    ``found``: silo → language → perplexity.
    """
    rows = [[corpora.NAMES[code], *(short(by_language[code]) for by_language in found.values())] for code in found]
    columns = ["", *(f"own {code}" for code in found)]
    note = f"On the first {corpora.SOME} texts of each test set; Table 3 uses all of them."
    return Table("Table 3, continued: perplexity of the silos' own models on every language", columns, rows, note)


def table_4(scores: downstream.Scores, fine_tuned: dict[str, float] | None, tries: int) -> Table:
    """Named-entity recognition; ``fine_tuned``: strict F1 of a pre-trained encoder; ``tries``: seeds of each."""
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


def table_5(scores: downstream.Scores, skipped: Mapping[str, int], length: int) -> Table:
    """Downstream tasks; ``skipped``: split → relations that are longer than ``length``."""

    def both(kind: str) -> str:
        """Strict and type F1 of the entities, as the text of one cell; ``kind``: the pre-training."""
        found = scores["E3C NER"][kind]
        return f"{found['strict_f1']:.4f}/{found['type_f1']:.4f}"

    kinds = (PUBLIC, "federated", "central", "none")
    rows = [["NER (strict/type)", *(both(kind) for kind in kinds), *TABLE_5["NER (strict/type)"]]]
    relation = [f"{scores['E3C relation'][kind]['micro_f1']:.4f}" for kind in kinds]
    assertion = [f"{scores['E3C assertion'][kind]['weighted_f1']:.4f}" for kind in kinds]
    rows.append(["Relation extraction", *relation, *TABLE_5["Relation Extraction"]])
    rows.append(["Assertion detection (weighted)", *assertion, "–", "–"])
    columns = ["", "CL, public text", "FL", "CL, all text", "no pre-training", "paper CL (public)", "paper FL"]
    note = (
        "Public text: central training without the private silo (Basque here, Hebrew in the paper), which the "
        "federation adds. The paper's data are proprietary: the tasks are the same, the corpora are not. "
        f"Annotated pairs whose mentions do not fit into a sample of {length} tokens are skipped: "
        f"{skipped['train']} in training, {skipped['test']} in the test sets."
    )
    return Table("Table 5: F1 on downstream tasks", columns, rows, note)


def table_6(personal: Mapping[str, PersonalModels], languages: list[str]) -> Table:
    """Accuracy of shared and personal models by language."""
    kinds = ("federated", "personalised", "interpolated", "nearby")
    rows = []
    for code in languages:
        ours = [f"{personal[code].models[kind][code]['accuracy']:.4f}" for kind in kinds]
        paper = [f"{v:.4f}" for v in TABLE_6.get(corpora.NAMES[code], ())] or ["–"] * 3
        rows.append([corpora.NAMES[code], *ours, f"{personal[code].alpha:.2f}", *paper])
    columns = ["", *kinds, "α", "paper federated", "paper personalised", "paper interpolated"]
    note = (
        "Interpolated: validation data select α from 21 values; α is 0 (the shared model) unless the best value is "
        "better by a standard error in loss and in accuracy. Nearby: personalised from a mixture with the two most "
        "similar silos, with the same amount of local training."
    )
    return Table("Table 6: masked-token accuracy of shared and personal models", columns, rows, note)


def table_7(cells: Mapping[str, Cell], languages: list[str]) -> Table:
    """Perplexity and its standard deviation; ``cells`` of the columns FL and CL."""
    rows = []
    for code in languages:
        ours = [
            f"{short(cell.scores[code]['perplexity'])} ± {short(cell.facts[DEVIATIONS][code])}"
            for cell in (cells["FL"], cells["CL"])
        ]
        rows.append([corpora.NAMES[code], *ours, *TABLE_7.get(corpora.NAMES[code], ("–", "–"))])
    title = "Table 7: perplexity, and its standard deviation over four parts of the test set"
    note = "Ours: perplexity on the whole test set; the paper's: the mean of the four parts."
    return Table(title, ["", "FL", "CL", "paper FL", "paper CL"], rows, note)


# ── claims ────────────────────────────────────────────────────────────────────────────────────────────────────────


def pretraining_claims(
    outcomes: dict[str, Result],
    languages: list[str],
    counts: dict[str, float],
    rivals: Mapping[str, Sequence[Mapping[str, float]]],
    grids: tuning.Grids,
) -> list[Claim]:
    """The federated model against central training and the silos' own models.

    ``rivals``: federated and central, one perplexity by language for each seed; ``grids``: see `tuning.tune`.
    """
    ours = {column: perplexities(outcome) for column, outcome in outcomes.items()}
    fl, cl, own = (ours[column] for column in ("FL", "CL", "own silo"))
    mean = {column: fmean(values.values()) for column, values in ours.items()}
    smallest = sorted(languages, key=lambda code: counts[code])[:3]
    beaten = [code for code in languages if fl[code] < own[code]]
    paper = {column: fmean(v[i] for v in PUBLISHED.values()) for i, column in enumerate(("FL", "CL"))}

    def evidence(codes: list[str]) -> Evidence:
        """Mean perplexity over some languages by seed, federated against central, with that of the common start."""
        by_seed = {kind: [fmean(one[code] for code in codes) for one in some] for kind, some in rivals.items()}
        start = fmean(ours["base"][code] for code in codes)
        federated, central = by_seed.get("federated", ()), by_seed.get("central", ())
        return Evidence("low", federated, central, start, grids.get("central"))

    def listed(codes: list[str]) -> str:
        """The federated and the central perplexity of each language, as text."""
        return ", ".join(f"{code} {short(fl[code])} against {short(cl[code])}" for code in codes)

    return [
        Claim(
            "the federated model's mean perplexity over languages is at most central training's",
            mean["FL"] <= mean["CL"],
            f"{short(mean['FL'])} against {short(mean['CL'])}",
            f"{paper['FL']:.2f} against {paper['CL']:.2f}",
            evidence(languages),
        ),
        Claim(
            "it is below central training's for the three smallest languages",
            all(fl[code] < cl[code] for code in smallest),
            listed(smallest),
            "he 6.98 against 9.44, ar 8.36 against 10.48, ru 6.07 against 7.17",
            evidence(smallest),
        ),
        Claim(
            f"it is below the silo's own model on the silo's language, for at least {ENOUGH} of 9 languages",
            len(beaten) >= ENOUGH,
            f"{len(beaten)} of {len(languages)}",
            "9 of 9",
        ),
    ]


def personal_claim(personal: Mapping[str, PersonalModels], languages: list[str], counts: dict[str, float]) -> Claim:
    """Interpolated models against the shared model, in all languages but the one with most samples."""
    dominant = max(languages, key=lambda code: counts[code])
    others = [code for code in languages if code != dominant]

    def accuracy(code: str, kind: str) -> float:
        """Accuracy of one kind of a silo's model on the silo's own language."""
        return personal[code].models[kind][code]["accuracy"]

    better = [code for code in others if accuracy(code, "interpolated") >= accuracy(code, "federated")]
    return Claim(
        "interpolated models are at least as accurate as the federated model in every language but the dominant one",
        len(better) == len(others),
        f"{len(better)} of {len(others)}",
        "6 of 6",
    )
