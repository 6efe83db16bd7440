"""A round of DiLoCo over a link of 20 Mbit/s, against the local steps alone, with and without overlap.

A coordinator and two silos are processes as operators start them; each silo connects through an HTTP proxy of its own,
which forwards 20 Mbit/s in each direction. Updates and models travel in 4 bits. A round lasts from the end of the round
before it to its own end, with the server step and the checkpoint. It is compared with the time that a silo spends in
its steps, as silos report it, twice: in the same run, and in the run without overlap, where nothing is sent while steps
are taken. The larger ratio counts; both are medians over the rounds in which both directions carry a difference.
"""

import tempfile
from itertools import pairwise
from operator import truediv
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
    entries, width, layers, local, rounds = (60, 32, 1, 2, 4) if figures.smoke else (400, 256, 4, 50, ROUNDS)
    lengths, steps = dict[str, list[float]](), dict[str, list[float]]()  # seconds of rounds, and of their steps
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
            # Seconds of steps are the mean over the silos, which work at the same time.
            rows = ledger.select("select round, at, work_seconds, step_seconds from rounds order by round")
            [[sent, received]] = ledger.select("select max(sent), max(received) from traffic where round = 3")
            ledger.close()
            lengths[name], steps[name] = [], []
            for (_, before, *_), (number, at, work, stepping) in pairwise(rows):
                print(
                    f"{name}, round {number}: {at - before:.2f} s, asking {work:.2f} s, steps {stepping:.2f} s",
                    flush=True,
                )
                if 2 < number < rounds:  # the first two carry whole models, and the last one ends with an evaluation
                    lengths[name].append(at - before)
                    steps[name].append(stepping)
            print(f"{name}: {sent / 1e6:.2f} MB down and {received / 1e6:.2f} MB up per silo", flush=True)
    alone = median(steps["waiting"])
    print(f"without overlap a round takes {median(lengths['waiting']) / alone:.2f} times its steps")
    same_run = median(map(truediv, lengths["overlapping"], steps["overlapping"]))
    other_run = median(lengths["overlapping"]) / alone
    print(f"with overlap {same_run:.2f} times its own steps, and {other_run:.2f} times those without overlap")
    what = "a round of DiLoCo over 20 Mbit/s with overlap, against its local steps alone"
    figures.add("overlap_round", what, max(same_run, other_run), "ratio", "<=", 1.1)
    figures.end()


if __name__ == "__main__":
    main()
