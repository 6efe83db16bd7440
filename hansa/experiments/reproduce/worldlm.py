"""WorldLM (Iacob et al., 2024): Tables 1 to 4 and Figure 4, on real text.

Seven nodes, a root, two regions and four leaves, in three layouts: languages (fr + it, uk + bg), genres of English
(general text, medical text) and equal parts of French. Each node holds shards of its own (trees.py). Every method takes
the same number of sequential steps from the same start, with the same local optimizer at a constant rate and its state
kept. Every method is scored twice: a node's *own* model after its last steps, and the *global* model at the root; both
on the leaves' test sets.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.experiments.reproduce import Options, Reproduction
from hansa.experiments.reproduce.jobs import Jobs
from hansa.experiments.reproduce.study import report_of
from hansa.experiments.reproduce.trees import Layout, lay_out, shape
from hansa.experiments.reproduce.worldlm_tables import Figures, claims_of, curve_of, tables_of
from hansa.privacy.dp.prices import update_prices

UNUSED = ("encoder", "model", "tune")  # options of the command that this paper does not use
EVALUATED = 0.1  # the share of the test data that is used after every pass
NODES = 7
STAGES = 3  # root, regions, leaves: sequential steps of one pass over the tree, in units of one node's


@dataclass(frozen=True)
class Size:
    """The size of the experiments."""

    rounds: int  # passes over the tree
    steps: int  # of each node in each pass
    batch: int
    length: int
    vocabulary: int
    blocks: int
    width: int
    lr: float
    seeds: tuple[int, ...]


SIZES = {
    "smoke": Size(1, 2, 4, 24, 400, 3, 16, 2e-3, (0,)),
    "small": Size(3, 45, 16, 48, 2500, 3, 64, 2e-3, (0, 1, 2)),
    "medium": Size(4, 150, 16, 96, 4000, 4, 128, 2e-3, (0, 1, 2)),
    "full": Size(21, 500, 256, 2048, 250_000, 3, 896, 8e-4, (0, 1, 2)),
}

MOMENTUM = {"optimizer": "momentum", "lr": 0.2, "momentum": 0.9}
PLAIN = {"optimizer": "sgd", "lr": 1.0}
PRIVATE = {"noise_multiplier": 0.5, "clip": "median", "noise_shared_by": NODES, "seeded": True}  # noise of σ·C/7
DP_LEAVES = ("fr", "it")
ATTACKER = "uk"
POISONS: dict[str, dict[str, Any]] = {
    "flipped": {"kind": "sign-flip"},
    "flipped ×3": {"kind": "sign-flip", "factor": 3},
    "×100": {"kind": "scale", "factor": 100},
}
SHOWN = ("WorldLM", "FL", "HierFAVG", "WorldLM, DP", "FL, DP", "WorldLM, wrong tree")  # in the report, and Figure 4
TREE, FLAT, POOLED, LOCAL, SWAPPED = "tree", "flat", "pooled", "local", "swapped"


def worldlm(server: Mapping[str, Any] = MOMENTUM, **method: Any) -> dict[str, Any]:
    """The settings of WorldLM."""
    return {"method": {"name": "worldlm", **method}, "server": server}


def baseline(name: str, server: Mapping[str, Any] = PLAIN, **method: Any) -> dict[str, Any]:
    """The settings of another method."""
    return {"method": {"name": name, **method}, "server": server}


# The best settings of WorldLM here: no momentum, similarity of movements, no residual back to its origin.
OURS = worldlm(PLAIN, similarity="moved", back=False)
NO_EXCHANGE = {"method": {"name": "alone"}}


@dataclass(frozen=True)
class Job:
    """A run: a layout, the arrangement of its nodes, and settings; with every seed, or only the first (``once``)."""

    settings: Mapping[str, Any]
    layout: str = "languages"
    arrangement: str = TREE
    leaves: Mapping[str, Any] | None = None  # settings of single leaves
    stages: int = STAGES  # rounds for one pass, where nodes are not in a tree
    once: bool = False


def jobs_of() -> dict[str, Job]:
    """All runs by name. Runs that no claim needs have one seed."""
    found = {
        "WorldLM": Job(worldlm()),
        "WorldLM, ours": Job(OURS),
        "HierFAVG": Job(baseline("hierfavg")),
        "FL": Job(baseline("hierfavg", MOMENTUM), arrangement=FLAT),
        "FedPer": Job(baseline("fedper")),
        "central": Job(baseline("hierfavg"), arrangement=POOLED),
        "central, as many tokens": Job(baseline("hierfavg"), arrangement=POOLED, stages=NODES),
        "no key layers": Job(baseline("hierfavg", MOMENTUM)),
        "no residuals": Job(worldlm(residuals=0)),
        "server lr 1": Job(worldlm(PLAIN)),
        "local, unbounded data": Job(NO_EXCHANGE, "everything", LOCAL, once=True),
        "moved": Job(worldlm(similarity="moved"), once=True),
        "no way back": Job(worldlm(back=False), once=True),
        "server lr 1, moved": Job(worldlm(PLAIN, similarity="moved"), once=True),
        "WorldLM, wrong tree": Job(worldlm(), arrangement=SWAPPED, once=True),
    }
    return found | _private() | _layouts() | _attacks()


def _private() -> dict[str, Job]:
    def at(**settings: Any) -> dict[str, Any]:
        """The private leaves, each with these privacy settings."""
        return {leaf: {"privacy": settings} for leaf in DP_LEAVES}

    flat = baseline("hierfavg", MOMENTUM)
    return {
        "WorldLM, DP": Job(worldlm(), leaves=at(**PRIVATE)),
        "FL, DP": Job(flat, arrangement=FLAT, leaves=at(**PRIVATE)),
        "no key layers, DP": Job(flat, leaves=at(**PRIVATE)),
        "WorldLM, DP shrunk": Job(worldlm(), leaves=at(**PRIVATE, shrink=True), once=True),
        "WorldLM, DP as published": Job(worldlm(), leaves=at(**{**PRIVATE, "noise_shared_by": 1}), once=True),
    }


def _layouts() -> dict[str, Job]:
    found = {}
    for layout in ("genres", "iid"):
        found[f"WorldLM, {layout}"] = Job(worldlm(), layout, once=True)
        found[f"FL, {layout}"] = Job(baseline("hierfavg", MOMENTUM), layout, FLAT, once=True)
        found[f"central, {layout}"] = Job(baseline("hierfavg"), layout, POOLED, once=True)
    found["local, genres"] = Job(NO_EXCHANGE, "genres", LOCAL, once=True)
    return found


def _attacks() -> dict[str, Job]:
    found = {
        "WorldLM, filter": Job(worldlm(filter={}), once=True),
        "WorldLM, filter by keys": Job(worldlm(filter={"by": "keys"}), once=True),
    }
    for kind, poison in POISONS.items():
        attack: dict[str, Any] = {"simulate": {"poison": {ATTACKER: poison}}}
        found[f"WorldLM, {kind}, filter"] = Job(worldlm(filter={}) | attack, once=kind == "flipped ×3")
        found[f"HierFAVG, {kind}"] = Job(baseline("hierfavg") | attack, once=kind == "flipped ×3")
        if kind != "flipped ×3":
            found[f"WorldLM, {kind}"] = Job(worldlm() | attack, once=True)
    attack = {"simulate": {"poison": {ATTACKER: POISONS["×100"]}}}
    found["WorldLM, ×100, filter by keys"] = Job(worldlm(filter={"by": "keys"}) | attack, once=True)
    median = {"aggregate": {"weights": "uniform", "rule": "median"}}
    found["WorldLM, ×100, median"] = Job(worldlm() | median | attack, once=True)
    return found


def federation(name: str, job: Job, layout: Layout, size: Size, path: str, seed: int) -> Federation:
    """The settings of one run; ``path``: the folder of the tokenizer and the model configuration."""
    tree = job.arrangement in (TREE, SWAPPED)
    stages = 1 if tree else job.stages  # a round of a tree has three stages
    rounds = size.rounds * stages
    if tree:
        nodes = (layout.swapped() if job.arrangement == SWAPPED else layout).tree(job.leaves or {})
    else:
        nodes = layout.flat(job.leaves or {}) if job.arrangement == FLAT else getattr(layout, job.arrangement)()
    return parse(
        {
            "name": "".join(c if c.isalnum() else "-" for c in f"{name} {seed}"),
            "seed": seed,
            "task": "causal-lm",
            "model": {"path": path, "fresh": True},
            "data": {"max_length": size.length, "valid": 0.0, "test": 0.0},
            "rounds": rounds,
            "train": {
                "optimizer": "adamw",
                "lr": size.lr,
                "betas": [0.9, 0.95],
                "batch": size.batch,
                "samples": {"floor": size.steps * size.batch, "replace": False},
                "keep_optimizer": True,
            },
            "aggregate": {"weights": "uniform"},
            "evaluate": {"every": stages, "share": EVALUATED},
            "checkpoint": {"every": rounds},
            **nodes,
            **(job.settings or {}),
        }
    )


def reproduce(options: Options) -> Reproduction:
    """Run the experiments, or resume them; return the tables and claims."""
    options.require_data()
    options.reject("worldlm", *UNUSED)
    began, size = perf_counter(), options.size_of(SIZES, "worldlm")
    options.say("writing the data of the trees")
    layouts = lay_out(options.data, options.out / "data")
    paths = {name: start(layouts, name, options.out / "start", size) for name in ("everything", "genres", "iid")}
    paths["languages"] = paths["everything"]
    planned = jobs_of()
    seeds = {name: size.seeds[:1] if job.once else size.seeds for name, job in planned.items()}
    leaves = layouts["languages"].leaves
    with Jobs.of(options, "worldlm") as jobs:
        for seed in size.seeds:
            for name, job in planned.items():
                if seed in seeds[name]:
                    file = federation(name, job, layouts[job.layout], size, paths[job.layout], seed)
                    drawn = name in SHOWN and seed == size.seeds[0]
                    facts = {"curve": partial(curve_of, leaves=leaves)} if drawn else None
                    jobs.start(f"{name} {seed}", file, facts=facts)
        cells = {name: [jobs.cell(f"{name} {seed}") for seed in seeds[name]] for name in planned}
        ended = [name for name in SHOWN if not cells[name][0].diverged]
        shown = [(name, jobs.folder(f"{name} {size.seeds[0]}")) for name in ended]
    found = {name: Figures.of(some, layouts[planned[name].layout].leaves) for name, some in cells.items()}
    private = federation("price", planned["WorldLM, DP"], layouts["languages"], size, paths["languages"], 0)
    claims = claims_of(found, price(private))
    curves = {name: cells[name][0].facts["curve"] for name in ended}
    tables = tables_of(found, curves, len(size.seeds))
    report = report_of(options, shown, "WorldLM: federations of federations", claims, tables)
    return Reproduction("worldlm", options.scale, tables, claims, report, perf_counter() - began, cells=jobs.kept)


def start(layouts: Mapping[str, Layout], name: str, folder: Path, size: Size) -> str:
    """Write the tokenizer and the model configuration for a layout; return their folder."""
    files = [Path(shard["train"]) for source in layouts[name].sources.values() for shard in source.values()]
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return shape(folder / name, rows, size.vocabulary, size.length, size.blocks, size.width)


def price(federation: Federation) -> str:
    """The privacy cost of a private leaf's updates, which is the same for all."""
    return next(iter(update_prices(federation, federation.rounds).values())).line
