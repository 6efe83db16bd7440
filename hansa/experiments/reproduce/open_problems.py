"""The open problems of the Medical paper, each with a solution that is compared with the plain method.

fairness      which weights give the best result for the worst language, and at what cost to the average
stability     whether it helps to adapt the number of samples per round to the validation loss
stragglers    the virtual time to a target perplexity if one silo is slow
nearby        whether a personal model is better if it starts from a mixture with the most similar silos

All runs use the nine silos of `hansa reproduce medical`, and the same seed, start and number of rounds. What is
compared with the plain weights is selected on validation data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.experiments.reproduce import Claim, Options, Reproduction, Table, corpora
from hansa.experiments.reproduce.cells import Cell
from hansa.experiments.reproduce.jobs import Jobs
from hansa.experiments.reproduce.study import report_of
from hansa.report.charts import short
from hansa.runs.results import RunResults

UNUSED = ("encoder", "tune")  # options of the command that this paper does not use
SLOW, SLOWNESS = "en", 8.0  # the dominant silo takes this many times as long as the others
TARGET = 1.2  # times the final mean perplexity of the synchronous run
FAIR, FASTER, AS_GOOD = 0.95, 0.8, 1.05  # thresholds of the claims
OPEN = "left open"

PLAIN, USUAL, ADAPTIVE, BUFFERED = "weights N", "weights √N", "√N, adaptive amounts", "FedBuff, buffer 3"
ROOT_N: dict[str, Any] = {"aggregate": {"weights": {"by": "samples", "temperature": 0.5}}}
FAIRNESS: dict[str, dict[str, Any]] = {
    PLAIN: {"aggregate": {"weights": {"by": "samples", "temperature": 1.0}}},
    USUAL: ROOT_N,
    "uniform": {"aggregate": {"weights": "uniform"}},
    "loss weights": {"aggregate": {"weights": {"by": "loss", "temperature": -1.0}}},
    "q-FFL, q = 1": {"method": {"name": "qffl", "q": 1.0}},
    "q-FFL, q = 3": {"method": {"name": "qffl", "q": 3.0}},
}


@dataclass(frozen=True)
class Size:
    """The size of the experiments."""

    rounds: int
    batch: int
    length: int
    vocabulary: int
    preset: str = "tiny"


SIZES = {
    "smoke": Size(4, 2, 16, 600, "mini"),
    "small": Size(400, 8, 32, 2500),
    "medium": Size(1600, 8, 48, 4000),
    "full": Size(4000, 32, 128, 32_000),
}


def reproduce(options: Options) -> Reproduction:
    """Run the experiments, or resume them; return the tables and claims."""
    options.require_data()
    options.reject("open-problems", *UNUSED)
    began, size, folder = perf_counter(), options.size_of(SIZES, "open-problems"), options.out / "data"
    options.say("writing the silos' data")
    silos = corpora.lay_out(options.data, folder) if options.data else corpora.generate(folder)
    runs = variants(size)
    with Jobs.of(options, "open-problems") as jobs:
        for label, changes in runs.items():
            jobs.start(label, federation(silos, size, options.model, changes), facts=FACTS)
        results = {label: jobs.cell(label) for label in runs}
        shown = [(label, jobs.folder(label)) for label in runs]
    final = {label: {g: m["perplexity"] for g, m in cell.scores.items()} for label, cell in results.items()}
    curves = {label: cell.facts["curves"] for label, cell in results.items()}
    times, target = to_target(results)
    own: dict[str, dict[str, float]] = results[USUAL].facts["personal"]
    tables = [fairness(final), stability(curves, final), stragglers(results, times, target), nearby(own)]
    found = claims(final, curves, times, own)
    report = report_of(options, shown, "Open problems of the Medical paper", found, tables)
    return Reproduction("open-problems", options.scale, tables, found, report, perf_counter() - began, cells=jobs.kept)


# ── the runs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def variants(size: Size) -> dict[str, dict[str, Any]]:
    """Run → what it changes in the federation file; the usual run also makes personal models."""
    every = max(1, size.rounds // 12)
    amounts = {"floor": size.batch, "adapt": {"every": every, "least": 0.5, "most": 2.0}}
    adamw = {"optimizer": "adamw", "lr": 5e-4, "batch": size.batch}
    return FAIRNESS | {
        USUAL: ROOT_N | {"personal": {"rounds": max(2, size.rounds // 10), "train": adamw, "mix": "none", "nearby": 2}},
        ADAPTIVE: ROOT_N | {"train": {"lr": 0.1, "batch": size.batch, "samples": amounts}},
        BUFFERED: {
            "method": {"name": "fedbuff", "buffer": 3, "temperature": 0.5},
            "rounds": 3 * size.rounds,  # three of nine silos take part in each: the same work in total
            "evaluate": {"every": max(1, size.rounds // 4), "share": 0.5},
        },
    }


def federation(silos: dict[str, dict[str, str]], size: Size, model: str | None, changes: dict[str, Any]) -> Federation:
    """The settings of a run; ``model``: the folder to start from, None for random weights."""
    raw: dict[str, Any] = {
        "name": "open",
        "model": {"path": model} if model else size.preset,
        "data": {"max_length": size.length},
        "silos": silos,
        "rounds": size.rounds,
        "train": {"lr": 0.1, "batch": size.batch, "samples": {"floor": size.batch}},
        "server": {"optimizer": "adam", "lr": 2e-3, "schedule": "linear"},
        "simulate": {"delay": {SLOW: SLOWNESS}},
        "evaluate": {"every": max(1, size.rounds // 12), "share": 0.5},
        "checkpoint": {"every": 10_000},
    }
    words = {} if model else {"tokenizer": {"size": size.vocabulary, "min_count": 2}}
    return parse(raw | words | changes)


# ── what tables need ──────────────────────────────────────────────────────────────────────────────────────────────────


def validation_curves(folder: Path) -> dict[str, list[float]]:
    """Language → validation perplexity, evaluation by evaluation."""
    return {code: [value for _, value in curve] for code, curve in RunResults.read(folder).curves.items()}


def clock(folder: Path) -> list[tuple[float, float]]:
    """Virtual seconds and the mean validation perplexity, evaluation by evaluation."""
    return RunResults.read(folder).times


def personal_perplexities(folder: Path) -> dict[str, dict[str, float]]:
    """Language → personal model → perplexity on the language's test set; empty if the run made none."""
    made = RunResults.read(folder).personal
    return {
        code: {kind: silo.models[kind][code]["perplexity"] for kind in ("federated", "personalised", "nearby")}
        for code, silo in (made.silos if made is not None else {}).items()
    }


FACTS = {"curves": validation_curves, "clock": clock, "personal": personal_perplexities}


# ── tables and claims ─────────────────────────────────────────────────────────────────────────────────────────────────

Final = dict[str, dict[str, float]]  # run → language → perplexity
Curves = Mapping[str, Mapping[str, list[float]]]  # run → language → validation perplexity over training


def fairness(final: Final) -> Table:
    """Mean and worst perplexity for every weighting."""
    rows = [
        [label, short(fmean(final[label].values())), short(max(final[label].values())), worst(final[label])]
        for label in FAIRNESS
    ]
    return Table("Fairness: perplexity on the test sets", ["", "mean", "worst", "worst language"], rows)


def worst(values: dict[str, float]) -> str:
    """The name of the language with the largest perplexity."""
    return corpora.NAMES[max(values, key=lambda code: values[code])]


def stability(curves: Curves, final: Final) -> Table:
    """Over-fitting with constant and with adaptive numbers of samples."""
    rows = []
    for label in (USUAL, ADAPTIVE):
        risen = {code: curve[-1] / min(curve) for code, curve in curves[label].items()}
        most = max(risen, key=lambda code: risen[code])
        means = [short(pick(final[label].values())) for pick in (fmean, max)]
        rows.append([label, *means, f"{risen[most] - 1:.1%}", corpora.NAMES[most]])
    columns = ["", "mean", "worst", "most over-fitted", "language"]
    note = "Over-fitted: by how much the last validation perplexity exceeds the lowest one."
    return Table("Stability: samples per round adapted to the validation loss", columns, rows, note)


def to_target(results: Mapping[str, Cell]) -> tuple[dict[str, float], float]:
    """Run → virtual seconds until the mean perplexity was at most the target, and the target."""
    target = TARGET * results[USUAL].facts["clock"][-1][1]
    found = {
        label: next((at for at, mean in results[label].facts["clock"] if mean <= target), float("inf"))
        for label in (USUAL, BUFFERED)
    }
    return found, target


def stragglers(results: Mapping[str, Cell], times: dict[str, float], target: float) -> Table:
    """Virtual seconds in total and until the target."""
    rows = [[label, f"{results[label].facts['clock'][-1][0]:,.0f}", f"{at:,.0f}"] for label, at in times.items()]
    title = f"Stragglers: {corpora.NAMES[SLOW]} takes {SLOWNESS:g} times as long; virtual seconds"
    return Table(title, ["", "total", f"to a mean perplexity of {short(target)}"], rows)


def nearby(own: dict[str, dict[str, float]]) -> Table:
    """Perplexity of shared and personal models by language."""
    rows = [[corpora.NAMES[code], *(short(v) for v in models.values())] for code, models in own.items()]
    columns = ["", *next(iter(own.values()))]
    note = "Personalised and nearby train for as many steps; nearby starts its second half from a mixture."
    return Table("Nearby silos: perplexity of shared and personal models", columns, rows, note)


def claims(final: Final, curves: Curves, times: dict[str, float], own: dict[str, dict[str, float]]) -> list[Claim]:
    """Whether each solution is better than the plain method; ``curves`` select the fairest weights."""
    lowest = {label: max(final[label].values()) for label in final}
    mean = {label: fmean(final[label].values()) for label in final}
    others = (label for label in FAIRNESS if label != PLAIN)
    fairest = min(others, key=lambda label: max(curve[-1] for curve in curves[label].values()))
    better = [code for code, models in own.items() if models["nearby"] < models["personalised"]]
    return [
        Claim(
            f"other weights lower the perplexity of the worst language by at least {1 - FAIR:.0%} against {PLAIN}",
            lowest[fairest] <= FAIR * lowest[PLAIN],
            f"{fairest}, selected on validation data: worst {short(lowest[fairest])} against {short(lowest[PLAIN])}, "
            f"mean {short(mean[fairest])} against {short(mean[PLAIN])}",
            OPEN,
        ),
        Claim(
            "adaptive numbers of samples do not raise the worst perplexity, nor the mean by more than 5%",
            lowest[ADAPTIVE] <= lowest[USUAL] and mean[ADAPTIVE] <= AS_GOOD * mean[USUAL],
            f"worst {short(lowest[ADAPTIVE])} against {short(lowest[USUAL])}, "
            f"mean {short(mean[ADAPTIVE])} against {short(mean[USUAL])}",
            OPEN,
        ),
        Claim(
            f"with a slow silo, FedBuff reaches the target in at most {FASTER:g} of the time",
            times[BUFFERED] <= FASTER * times[USUAL],
            f"{times[BUFFERED]:,.0f} against {times[USUAL]:,.0f} virtual seconds",
            OPEN,
        ),
        Claim(
            "a start from similar silos gives a better personal model in most languages",
            2 * len(better) > len(own),
            f"{len(better)} of {len(own)}",
            OPEN,
        ),
    ]
