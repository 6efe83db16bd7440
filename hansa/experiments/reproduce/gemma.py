"""WorldLM's tree of languages with a pre-trained model: Gemma 3 270M, LoRA adapters as key layers.

French and Italian make one region, Ukrainian and Bulgarian the other. The base is frozen at every node; the adapters
are what the methods exchange, and with WorldLM all of them are key layers (`key_layers: 1`). The measure is bits per
byte, of each leaf's own model and of the root's model on the same texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter
from typing import Any

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.experiments.reproduce import Claim, Options, Reproduction, Table, pretrained
from hansa.experiments.reproduce.cells import Cell
from hansa.experiments.reproduce.study import BASE, SEEDS, Study, figure, written
from hansa.experiments.reproduce.trees import Layout, halves
from hansa.experiments.reproduce.verdict import Evidence
from hansa.experiments.reproduce.worldlm import MOMENTUM, PLAIN, STAGES, baseline, worldlm

UNUSED = ("encoder", "tune")  # options of the command that this paper does not use
PAPER, METRIC = "gemma", "bits_per_byte"
FLAT, TREE, WORLDLM, OURS = "flat FL", "HierFAVG", "WorldLM", "WorldLM, ours"
ARMS: dict[str, dict[str, Any]] = {
    FLAT: baseline("hierfavg", MOMENTUM),
    TREE: baseline("hierfavg"),
    WORLDLM: worldlm(key_layers=1.0),
    OURS: worldlm(PLAIN, key_layers=1.0, similarity="moved", back=False),
}


@dataclass(frozen=True)
class Size:
    """The size of the experiments."""

    rounds: int  # passes over the tree
    steps: int  # of a node in a pass
    batch: int
    length: int
    texts: int  # training texts of each language at most
    tested: int  # texts of each language in each half of dev
    seeds: int
    rates: Sequence[float]


SIZES = {
    "smoke": Size(1, 1, 2, 24, 14, 7, 1, (1e-3,)),
    "small": Size(2, 4, 2, 64, 2_100, 42, 3, (3e-4, 1e-3, 3e-3)),
    "medium": Size(3, 20, 8, 128, 26_000, 140, 3, (1e-4, 3e-4, 1e-3)),
}


def federation(arm: str, layout: Layout, model: str, size: Size, rate: float, seed: int) -> Federation:
    """The settings of a run."""
    flat = arm in (FLAT, BASE)
    stages = STAGES if flat else 1  # a pass over the tree has three stages, one after another
    settings: dict[str, Any] = {
        "name": "gemma",
        "kind": "base" if arm == BASE else "federated",
        "seed": seed,
        "task": "causal-lm",
        "model": {
            "path": model,
            "adapt": "lora",
            "lora": {"rank": 8, "alpha": 16, "targets": ["q_proj", "v_proj"]},
            "dtype": "bfloat16",
        },
        "data": {"max_length": size.length},
        "rounds": size.rounds * stages,
        "train": {
            "optimizer": "adamw",
            "lr": rate,
            "precision": "bf16",
            "betas": [0.9, 0.95],
            "clip": 1.0,
            "batch": size.batch,
            "samples": {"floor": size.steps * size.batch, "replace": False},
            "keep_optimizer": True,
        },
        "aggregate": {"weights": "uniform"},
        "evaluate": {"every": size.rounds * stages, "share": 1.0, "batch": 4},
        "checkpoint": {"every": 1},
        **(layout.flat({}) if flat else layout.tree({})),
        **({} if arm == BASE else ARMS[arm]),
    }
    return parse(settings)


def reproduce(options: Options) -> Reproduction:
    """Run the experiments, or resume them; return the tables and claims."""
    options.require_data()
    options.reject(PAPER, *UNUSED)
    began, size = perf_counter(), options.size_of(SIZES, PAPER)
    model = pretrained.model_of(options, pretrained.GEMMA3)
    options.say("writing the data of the tree")
    layout = halves(options.data, options.out / "data", size.texts, size.tested)
    study = Study(
        options,
        options.cells_of(PAPER),
        lambda arm, rate, seed: federation(arm, layout, model, size, rate, seed),
        {FLAT: size.rates, TREE: size.rates, WORLDLM: size.rates},
        {OURS: WORLDLM},
        size.seeds,
        METRIC,
    )
    if not options.finished:
        study.run()
    found = {arm: study.of(arm) for arm in study.arms}
    tables = [_scores(found, study, size, layout.leaves), _leaves(found, layout.leaves), study.rate_table()]
    cells = [cell for some in found.values() for cell in some]
    judged = claims(found, study, layout.leaves)
    report = written(options, tables, judged)
    return Reproduction(PAPER, options.scale, tables, judged, report, perf_counter() - began, cells=cells)


# ── tables and claims ─────────────────────────────────────────────────────────────────────────────────────────────


def own(cells: Sequence[Cell], leaves: Sequence[str]) -> list[float]:
    """Mean over leaves of each leaf's own model on its own texts, by seed.

    The untrained base counts as every leaf's own.
    """
    return [fmean((cell.own or cell.scores)[leaf][METRIC] for leaf in leaves) for cell in cells]


def shared(cells: Sequence[Cell], leaves: Sequence[str]) -> list[float]:
    """Mean over leaves of the root's model on the leaves' texts, by seed."""
    return [fmean(cell.scores[leaf][METRIC] for leaf in leaves) for cell in cells]


def _scores(found: Mapping[str, Sequence[Cell]], study: Study, size: Size, leaves: Sequence[str]) -> Table:
    rows = [
        [
            arm,
            figure(own(cells, leaves)),
            figure(shared(cells, leaves)),
            "–" if arm == BASE or not cells else f"{study.rate(arm):g}",
            f"{cells[0].samples:,}" if cells else "–",
            f"{(cells[0].bytes_up + cells[0].bytes_down) / 1e6:.1f}" if cells else "–",
        ]
        for arm, cells in found.items()
    ]
    note = (
        f"Mean over the leaves {', '.join(leaves)}. {size.rounds} passes over the tree, {size.steps} steps of "
        f"{size.batch} × {size.length} tokens at each of seven nodes in a pass (flat FL: in each of {STAGES} rounds "
        f"for a pass). {SEEDS}"
    )
    columns = ["", "own", "global", "rate", "samples", "MB in all"]
    return Table("Bits per byte on the tree of languages", columns, rows, note)


def _leaves(found: Mapping[str, Sequence[Cell]], leaves: Sequence[str]) -> Table:
    rows = [[arm, *(figure(own(cells, [leaf])) for leaf in leaves)] for arm, cells in found.items()]
    return Table("Bits per byte of each leaf's own model", ["", *leaves], rows)


def claims(found: Mapping[str, Sequence[Cell]], study: Study, leaves: Sequence[str]) -> list[Claim]:
    """WorldLM against the two other methods: its own models against their global model as published, and own to own."""
    base = shared(found[BASE], leaves)
    judged = []
    for rival in (TREE, FLAT):
        for kind, theirs in (("global model", shared), ("own models", own)):
            evidence = Evidence(
                better="low",
                ours=own(found[WORLDLM], leaves),
                rival=theirs(found[rival], leaves),
                start=base[0] if base else None,
                grid=study.grid(rival),
                published=False,  # the paper trains models of 75M to 400M parameters from nothing
            )
            name = f"with adapters on Gemma, WorldLM's own models have fewer bits per byte than the {kind} of {rival}"
            figures = f"{figure(evidence.ours)} against {figure(evidence.rival)}"
            judged.append(Claim.of(name, evidence, figures, "none for adapters"))
    return judged
