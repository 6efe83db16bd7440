"""WorldLM on trees of 21 and 85 nodes on the worker pool, against the same training steps bare.

The trees have 1 + 4 + 16 (+ 64) nodes, all with data and a model of their own. The peer has as many processes, one
resident model each, batches made beforehand, and no tree.
"""

import os
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
import torch
from _federations import silos, words
from _figures import Figures, best_of
from many_silos import Bare

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.config.tree import holders
from hansa.links.pool import PoolLink
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.start import begin, describe
from hansa.runs.topology import build_topology

BATCH, STEPS, LENGTH, WIDTH = 8, 8, 32, 4
ROUNDS = 8  # the first ones touch new memory, which is slow on virtual machines


def tree(files: list[str], depth: int, name: str = "n") -> dict[str, Any]:
    """``WIDTH`` nodes per level, ``depth`` levels, a file for every node."""
    found = {}
    for number in range(WIDTH):
        child = f"{name}{number}"
        below = {"silos": tree(files, depth - 1, child)} if depth > 1 else {}
        found[child] = {"train": files.pop(), **below}
    return found


def federation(folder: Path, depth: int) -> Federation:
    count = sum(WIDTH**level for level in range(depth + 1))
    files = list(silos(folder / "data", count, BATCH * STEPS, 24, words(500)).values())
    return parse(
        {
            "name": "bench",
            "task": "causal-lm",
            "tokenizer": {"kind": "bytes"},
            "data": {"max_length": LENGTH, "valid": 0.0, "test": 0.0},
            "root": {"train": files.pop()},
            "silos": tree(files, depth),
            "method": "worldlm",
            "rounds": 100,
            "train": {"optimizer": "adamw", "lr": 1e-3, "batch": BATCH, "samples": {"floor": BATCH * STEPS}},
        }
    )


def measure(depth: int, workers: int, rounds: int) -> tuple[int, float, float]:
    """Nodes, the shortest round and the shortest bare run, taken in turns: what disturbs one disturbs the other."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        os.environ["HANSA_CACHE"] = str(root / "cache")
        settings = federation(root, depth)
        directory = RunDirectory.create(settings, root / "run", False)
        ledger = Ledger(directory.path)
        with PoolLink(settings, directory.path, workers) as link:
            begin(settings, directory, link, ledger, RunEvents())
            cards = describe(settings, directory, link, ledger, RunEvents())
            node = build_topology(SiloHost(Runtime(settings, directory.path)), link, cards)
            assert node.tree is not None
            names, state = list(holders(settings)), node.begin(node.tree.start.copy())
            bare = Bare(directory.path, names, workers)
            round_seconds = bare_seconds = float("inf")
            for number in range(rounds):
                began = perf_counter()
                record = node.root_round(state, number)
                round_seconds = min(round_seconds, perf_counter() - began)
                assert not record.failed
                assert not record.failures
                bare_seconds = min(bare_seconds, best_of(1, bare.run))
            bare.close()
        ledger.close()
    return len(names), round_seconds, bare_seconds


def main() -> None:
    torch.set_num_threads(1)
    figures, workers = Figures.from_arguments(), psutil.cpu_count() or 1
    ratios = {}
    for depth in (1, 2) if figures.smoke else (2, 3):
        nodes, seconds, bare = measure(depth, workers, 2 if figures.smoke else ROUNDS)
        ratios[nodes] = seconds / bare
        print(f"{nodes} nodes, {workers} workers: bare steps {bare:.2f} s, round {seconds:.2f} s")
    small, large = ratios
    what = f"a tree of {large} nodes against its bare training steps"
    figures.add("tree_85_nodes_vs_bare_steps", what, ratios[large], "ratio", "<=", 1.10)
    what = f"cost per node, {large} nodes against {small}"
    figures.add("cost_per_node_85_vs_21", what, ratios[large] / ratios[small], "ratio", "<=", 1.15)
    figures.end()


if __name__ == "__main__":
    main()
