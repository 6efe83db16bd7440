"""A round of DiLoCo over a link of 20 Mbit/s, against the local steps alone, with and without overlap.

A coordinator and two silos are processes as operators start them; each silo connects through an HTTP proxy of its own,
which forwards 20 Mbit/s in each direction. Updates and models travel in 4 bits. The peer is the time that the silos
spend in their steps, as they report it, in the same run; the median over the rounds in which both directions carry a
difference counts.
"""

import tempfile
from pathlib import Path
from statistics import median

import torch
from _agents import SlowProxy, federation_of, wait_for_the_end
from _federations import words
from _figures import Figures
from diloco import chains, model_of

from hansa.config.file import parse
from hansa.runs.ledger import Ledger

BITS = 20e6
SILOS, BATCH, ROUNDS = 2, 8, 6


def main() -> None:
    torch.set_num_threads(1)
    figures = Figures.from_arguments()
    entries, width, layers, local, rounds = (60, 32, 1, 2, 3) if figures.smoke else (400, 256, 4, 50, ROUNDS)
    ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        vocabulary = words(entries)
        files = {f"s{i}": chains(place / f"s{i}.jsonl", vocabulary, max(100, local * BATCH), i) for i in range(SILOS)}
        model = model_of(place / "model", vocabulary, width, layers)
        for name, overlap in (("waiting", False), ("overlapping", True)):
            settings = parse(
                {
                    "name": "overlap",
                    "task": "causal-lm",
                    "model": {"path": str(model)},
                    "data": {"max_length": 48, "valid": 0.0, "test": 0.0},
                    "silos": files,
                    "method": "diloco",
                    "rounds": rounds,
                    "train": {
                        "optimizer": "adamw",
                        "lr": 1e-3,
                        "batch": BATCH,
                        "samples": {"floor": local * BATCH},
                        "overlap": overlap,
                    },
                    "upload": "int4",
                    "download": "int4",
                    "evaluate": {"every": rounds},
                    "checkpoint": {"every": rounds},
                }
            )
            proxies = {silo: SlowProxy(BITS) for silo in files}
            urls = {silo: proxy.url for silo, proxy in proxies.items()}
            with federation_of(place / name, settings, files, model, urls) as started:
                wait_for_the_end(place / name, started, 1500)
            for proxy in proxies.values():
                proxy.close()
            ledger = Ledger(place / name / "run")
            rows = ledger.select("select round, work_seconds, step_seconds from rounds order by round")
            [[sent, received]] = ledger.select("select max(sent), max(received) from traffic where round = 3")
            ledger.close()
            for number, work, steps in rows:
                print(f"{name}, round {number}: {work:.2f} s, steps {steps / SILOS:.2f} s", flush=True)
            print(f"{name}: {sent / 1e6:.2f} MB down and {received / 1e6:.2f} MB up per silo", flush=True)
            # The last round has no steps ahead of it to wait for, and the first two carry whole models.
            ratios[name] = median(work / (steps / SILOS) for number, work, steps in rows if number > 2)
    print(f"without overlap a round takes {ratios['waiting']:.2f} times its steps")
    what = "a round of DiLoCo over 20 Mbit/s with overlap, against its local steps alone"
    figures.add("overlap_round", what, ratios["overlapping"], "ratio", "<=", 1.1)
    figures.end()


if __name__ == "__main__":
    main()
