"""The problems that the Medical paper leaves open, each with an answer of ours beside the plain method.

fairness      which weights serve the worst language best, and at what cost to the average
stability     does it help when the amount of data per round follows validation loss
stragglers    how long until a target perplexity, by the virtual clock, when one silo is slow

Nine silos of generated notes, one language dominant; the same seed, start and number of rounds for all.

    python benchmarks/open_problems.py [rounds]
"""

import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from _figures import Figures

from hansa.config import Federation
from hansa.data import generator
from hansa.federation_file import parse
from hansa.report.html import see
from hansa.run import run

SIZES = {"en": 900, "de": 90, "es": 80, "fr": 80, "it": 70, "pt": 70, "ru": 40, "ar": 30, "he": 20}
SLOW = "en"  # the dominant silo needs eight times as long as the others
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 100

BY_SAMPLES: dict[str, Any] = {"weights": {"by": "samples", "temperature": 1.0}}
VARIANTS: dict[str, dict[str, Any]] = {
    "weights N": {"aggregate": BY_SAMPLES},
    "weights √N": {"aggregate": {"weights": {"by": "samples", "temperature": 0.5}}},
    "uniform": {"aggregate": {"weights": "uniform"}},
    "loss weights": {"aggregate": {"weights": {"by": "loss", "temperature": -1.0}}},
    "q-FFL, q = 1": {"method": {"name": "qffl", "q": 1.0}},
    "q-FFL, q = 3": {"method": {"name": "qffl", "q": 3.0}},
    "√N, adaptive amounts": {
        "aggregate": {"weights": {"by": "samples", "temperature": 0.5}},
        "train": {"lr": 0.1, "batch": 8, "samples": {"floor": 8, "adapt": {"every": 25, "least": 0.5, "most": 2.0}}},
    },
    "FedBuff, buffer 3": {
        "method": {"name": "fedbuff", "buffer": 3, "temperature": 0.5},
        "rounds": 3 * ROUNDS,
        "evaluate": {"every": max(1, ROUNDS // 4), "share": 0.5},
    },
}


def federation(folder: Path, changes: dict[str, Any]) -> Federation:
    raw: dict[str, Any] = {
        "name": "open",
        "tokenizer": {"size": 1500, "minimum": 2},
        "data": {"max_length": 32, "valid": 0.15, "test": 0.3},
        "silos": {code: {"train": str(folder / f"{code}.jsonl"), "language": code} for code in SIZES},
        "rounds": ROUNDS,
        "train": {"lr": 0.1, "batch": 8, "samples": {"floor": 8}},
        "server": {"optimizer": "adam", "lr": 2e-3, "schedule": "linear"},
        "simulate": {"delay": {SLOW: 8.0}},
        "evaluate": {"every": max(1, ROUNDS // 12), "share": 0.5},
        "checkpoint": {"every": 10_000},
    }
    return parse(raw | changes)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for code, count in SIZES.items():
            notes = generator.notes(code, count, seed=4)
            (folder / f"{code}.jsonl").write_text("".join(json.dumps(n, ensure_ascii=False) + "\n" for n in notes))
        runs = {}
        for number, (label, changes) in enumerate(VARIANTS.items()):
            runs[label] = see(run(federation(folder, changes), folder / f"run{number}").folder, label)
            print(f"{label}: done", file=sys.stderr, flush=True)
    final = {label: {g: m["perplexity"] for g, m in seen.final.items()} for label, seen in runs.items()}
    target = 1.2 * runs["weights √N"].times[-1][1]
    print(
        f"{'':24}{'mean':>9}{'worst':>9}{'virtual s':>11}{'s to target':>13}   (target: mean perplexity {target:.0f})"
    )
    reached = {}
    for label, seen in runs.items():
        values = final[label].values()
        reached[label] = next((at for at, mean in seen.times if mean <= target), float("inf"))
        clock = seen.times[-1][0]
        print(f"{label:24}{fmean(values):9.1f}{max(values):9.1f}{clock:11.0f}{reached[label]:13.0f}")
    worst = {label: max(values.values()) for label, values in final.items()}
    mean = {label: fmean(values.values()) for label, values in final.items()}
    figures = Figures()
    fair = min(worst[v] for v in ("weights √N", "uniform", "loss weights", "q-FFL, q = 1", "q-FFL, q = 3"))
    figures.add("fairest_worst_language_vs_weights_N", fair / worst["weights N"], "ratio", "<=", 0.95)
    adaptive, fixed = "√N, adaptive amounts", "weights √N"
    figures.add("adaptive_worst_language_vs_fixed", worst[adaptive] / worst[fixed], "ratio", "<=", 1.0)
    figures.add("adaptive_mean_vs_fixed", mean[adaptive] / mean[fixed], "ratio", "<=", 1.05)
    figures.add("fedbuff_time_to_target_vs_together", reached["FedBuff, buffer 3"] / reached[fixed], "ratio", "<=", 0.8)
    figures.end()


if __name__ == "__main__":
    main()
