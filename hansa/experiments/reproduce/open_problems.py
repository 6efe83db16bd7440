"""The problems that the Medical paper leaves open, each with an answer of ours beside the plain method.

fairness      which weights serve the worst language best, and at what cost to the average
stability     does it help when the amount of data per round follows validation loss
stragglers    how long until a target perplexity, by the virtual clock, when one silo is slow
nearby        is a personal model better that starts from a mixture with the most similar silos

The nine silos of `hansa reproduce medical`; the same seed, start and number of rounds for all.
"""

from dataclasses import dataclass
from statistics import fmean
from time import perf_counter
from typing import Any

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.experiments.reproduce import Options, Claim, Reproduction, Table, corpora
from hansa.experiments.reproduce.jobs import Jobs
from hansa.report import html
from hansa.report.charts import short
from hansa.report.html import Seen, see

SLOW, SLOWNESS = "en", 8.0  # the dominant silo needs so many times as long as the others
TARGET = 1.2  # times the mean perplexity that waiting for everybody ends with
FAIR, FASTER, AS_GOOD = 0.95, 0.8, 1.05  # what counts as an answer
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
    rounds: int
    batch: int
    length: int
    vocabulary: int
    preset: str = "tiny"


SIZES = {"smoke": Size(4, 2, 16, 600, "mini"), "small": Size(400, 8, 32, 2500), "full": Size(4000, 32, 128, 32_000)}


def reproduce(options: Options) -> Reproduction:
    options.require_data()
    options.reject("open-problems", "encoder", "tune")
    began, size, folder = perf_counter(), SIZES[options.scale], options.out / "data"
    options.say("laying out the silos' data")
    silos = corpora.lay_out(options.data, folder) if options.data else corpora.generate(folder)
    runs = variants(size)
    with Jobs(options.out, options.say, options.scale != "smoke") as jobs:
        for number, changes in enumerate(runs.values()):
            jobs.start(f"run {number}", federation(silos, size, options.model, changes))
        outcomes = {label: jobs.result(f"run {number}") for number, label in enumerate(runs)}
    seen = {label: see(outcome.folder, label) for label, outcome in outcomes.items()}
    final = {label: {g: m["perplexity"] for g, m in one.final.items()} for label, one in seen.items()}
    times, target = to_target(seen)
    own = personal_perplexities(seen[USUAL])
    tables = [fairness(final), stability(seen, final), stragglers(seen, times, target), nearby(own)]
    found = claims(final, times, own)
    report = html.write(
        [(label, outcome.folder) for label, outcome in outcomes.items()],
        options.out / "report.html",
        "What the Medical paper leaves open",
        [claim.line for claim in found],
        tables,
    )
    return Reproduction("open-problems", options.scale, tables, found, report, perf_counter() - began)


# ── the runs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def variants(size: Size) -> dict[str, dict[str, Any]]:
    """By what they change in the federation file; the usual one also gives every silo a model of its own."""
    look = max(1, size.rounds // 12)
    amounts = {"floor": size.batch, "adapt": {"every": look, "least": 0.5, "most": 2.0}}
    adamw = {"optimizer": "adamw", "lr": 5e-4, "batch": size.batch}
    return FAIRNESS | {
        USUAL: ROOT_N | {"personal": {"rounds": max(2, size.rounds // 10), "train": adamw, "mix": "none", "nearby": 2}},
        ADAPTIVE: ROOT_N | {"train": {"lr": 0.1, "batch": size.batch, "samples": amounts}},
        BUFFERED: {
            "method": {"name": "fedbuff", "buffer": 3, "temperature": 0.5},
            "rounds": 3 * size.rounds,  # three of nine silos in each: as much work in all
            "evaluate": {"every": max(1, size.rounds // 4), "share": 0.5},
        },
    }


def federation(silos: dict[str, dict[str, str]], size: Size, model: str | None, changes: dict[str, Any]) -> Federation:
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


# ── what came out ─────────────────────────────────────────────────────────────────────────────────────────────────

Final = dict[str, dict[str, float]]  # run → language → perplexity


def fairness(final: Final) -> Table:
    rows = [
        [label, short(fmean(final[label].values())), short(max(final[label].values())), worst(final[label])]
        for label in FAIRNESS
    ]
    return Table("Fairness: perplexity on the test sets", ["", "mean", "worst", "worst language"], rows)


def worst(values: dict[str, float]) -> str:
    return corpora.NAMES[max(values, key=lambda code: values[code])]


def stability(seen: dict[str, Seen], final: Final) -> Table:
    rows = []
    for label in (USUAL, ADAPTIVE):
        risen = {code: curve[-1][1] / min(v for _, v in curve) for code, curve in seen[label].curves.items()}
        most = max(risen, key=lambda code: risen[code])
        means = [short(pick(final[label].values())) for pick in (fmean, max)]
        rows.append([label, *means, f"{risen[most] - 1:.1%}", corpora.NAMES[most]])
    columns = ["", "mean", "worst", "most over-fitted", "language"]
    note = "Over-fitted: how far the last validation perplexity is above the best one on the way."
    return Table("Stability: the amount of data per round follows validation loss", columns, rows, note)


def to_target(seen: dict[str, Seen]) -> tuple[dict[str, float], float]:
    """Virtual seconds until the mean perplexity of running looks is below the target."""
    target = TARGET * seen[USUAL].times[-1][1]
    found = {
        label: next((at for at, mean in seen[label].times if mean <= target), float("inf"))
        for label in (USUAL, BUFFERED)
    }
    return found, target


def stragglers(seen: dict[str, Seen], times: dict[str, float], target: float) -> Table:
    rows = [[label, f"{seen[label].times[-1][0]:,.0f}", f"{at:,.0f}"] for label, at in times.items()]
    title = f"Stragglers: {corpora.NAMES[SLOW]} takes {SLOWNESS:g} times as long; virtual seconds"
    return Table(title, ["", "in all", f"to a mean perplexity of {short(target)}"], rows)


def personal_perplexities(run: Seen) -> dict[str, dict[str, float]]:
    """Language → personal model → perplexity on the language's test set."""
    return {
        code: {kind: known["models"][kind][code]["perplexity"] for kind in ("federated", "personalised", "nearby")}
        for code, known in run.facts["personal"]["silos"].items()
    }


def nearby(own: dict[str, dict[str, float]]) -> Table:
    rows = [[corpora.NAMES[code], *(short(v) for v in models.values())] for code, models in own.items()]
    columns = ["", *next(iter(own.values()))]
    note = "Personalised and nearby do the same amount of local work; nearby starts its second half from a mixture."
    return Table("Nearby silos: perplexity of shared and personal models", columns, rows, note)


def claims(final: Final, times: dict[str, float], own: dict[str, dict[str, float]]) -> list[Claim]:
    lowest = {label: max(final[label].values()) for label in final}
    mean = {label: fmean(final[label].values()) for label in final}
    fairest = min((label for label in FAIRNESS if label != PLAIN), key=lambda label: lowest[label])
    better = [code for code, models in own.items() if models["nearby"] < models["personalised"]]
    return [
        Claim(
            f"other weights serve the worst language better than {PLAIN}, by at least {1 - FAIR:.0%}",
            lowest[fairest] <= FAIR * lowest[PLAIN],
            f"{fairest}: worst {short(lowest[fairest])} against {short(lowest[PLAIN])}, "
            f"mean {short(mean[fairest])} against {short(mean[PLAIN])}",
            OPEN,
        ),
        Claim(
            "adaptive amounts do not harm the worst language, nor the mean by more than 5%",
            lowest[ADAPTIVE] <= lowest[USUAL] and mean[ADAPTIVE] <= AS_GOOD * mean[USUAL],
            f"worst {short(lowest[ADAPTIVE])} against {short(lowest[USUAL])}, "
            f"mean {short(mean[ADAPTIVE])} against {short(mean[USUAL])}",
            OPEN,
        ),
        Claim(
            f"with a slow silo, FedBuff gets to the target in at most {FASTER:g} of the time",
            times[BUFFERED] <= FASTER * times[USUAL],
            f"{times[BUFFERED]:,.0f} against {times[USUAL]:,.0f} virtual seconds",
            OPEN,
        ),
        Claim(
            "a start from nearby silos gives a better personal model in most languages",
            2 * len(better) > len(own),
            f"{len(better)} of {len(own)}",
            OPEN,
        ),
    ]
