"""WorldLM (Iacob et al., 2024): Tables 1 to 4 and Figure 4, on real text.

Seven nodes, a root, two regions and four leaves, in three layouts: languages (fr + it, uk + bg), genres of English
(general text, medical text) and equal parts of French. Every method spends the same sequential steps from the same
start, with the same local optimiser at a constant rate and its state kept. Every method is scored twice: a node's
*own* model after its last steps, and the one *global* model at the root; both on the leaves' test sets.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean, pstdev
from time import perf_counter
from typing import Any

from hansa.config import Federation
from hansa.errors import RunFailed
from hansa.federation_file import parse
from hansa.privacy.update import spent
from hansa.report import html
from hansa.report.charts import short
from hansa.reproduce import Asked, Claim, Reproduction, Table
from hansa.reproduce.jobs import Jobs
from hansa.reproduce.trees import Layout, lay_out, shape
from hansa.run import Outcome
from hansa.runs.ledger import OWN, Ledger

STAGES = 3  # root, regions, leaves: sequential steps of one pass over the tree, in units of one node's


@dataclass(frozen=True)
class Size:
    rounds: int  # passes over the tree
    steps: int  # of each node in each
    batch: int
    length: int
    vocabulary: int
    blocks: int
    width: int
    lr: float
    seeds: tuple[int, ...]


SIZES = {
    "smoke": Size(1, 2, 4, 24, 400, 3, 16, 2e-3, (0,)),
    "small": Size(3, 90, 16, 48, 2500, 3, 64, 2e-3, (0, 1, 2)),
    "full": Size(21, 500, 256, 2048, 250_000, 3, 896, 8e-4, (0, 1, 2)),
}

MOMENTUM = {"optimizer": "momentum", "lr": 0.2, "momentum": 0.9}
PLAIN = {"optimizer": "sgd", "lr": 1.0}
PRIVATE = {"privacy": {"sigma": 0.5, "among": 7}}  # σ·C/n with n = 7 nodes
LITERAL = {"privacy": {"sigma": 0.5}}
DP_LEAVES = ("fr", "it")
LIAR = "uk"
POISONS = {"flipped": {"kind": "sign-flip"}, "×100": {"kind": "scale", "factor": 100}}
SHOWN = ("WorldLM", "FL", "HierFAVG", "WorldLM, DP", "FL, DP", "WorldLM, wrong tree")  # in the report, and Figure 4
WORLDLM = {"method": {"name": "worldlm"}, "server": MOMENTUM}
# Where WorldLM is strongest here: no momentum, similarity of what moved, no residual back to its sender.
OURS = {"method": {"name": "worldlm", "similarity": "moved", "back": False}, "server": PLAIN}
FILTERED = {"method": {"name": "worldlm", "filter": {}}, "server": MOMENTUM}
HIERFAVG = {"method": {"name": "hierfavg"}, "server": PLAIN}
FEDPER = {"method": {"name": "fedper"}, "server": PLAIN}

# Tables 1, 2 and 3 of the paper.
TABLE_1 = {
    "WorldLM": "80.47 ± 68.53", "FL": "153.27 ± 95.47", "HierFAVG": "149.00 ± 95.55", "FedPer": "269.85 ± 129.00",
    "local, unbounded data": "45.47 ± 31.13", "central": "72.21 ± 49.78",
}  # fmt: skip
TABLE_2 = {
    "genres": {"WorldLM": "73.82", "FL": "107.31", "local": "40.66", "central": "85.81"},
    "iid": {"WorldLM": "167.31", "FL": "145.32", "local": "–", "central": "67.01"},
}
TABLE_3 = {"WorldLM": ("73.82", "101.78", "140.05"), "FL": ("107.31", "724.56", "107.31")}


@dataclass(frozen=True)
class Job:
    """One run of every seed: a layout, how its nodes stand, and what is set."""

    layout: str
    stand: str = "tree"  # tree · flat · pooled · alone · swapped
    settings: Mapping[str, Any] | None = None
    leaves: Mapping[str, Any] | None = None


def jobs_of() -> dict[str, Job]:
    """Everything that is run, by name."""
    flat: dict[str, Any] = {"method": {"name": "hierfavg"}, "server": MOMENTUM}
    private = dict.fromkeys(DP_LEAVES, PRIVATE)
    found = {
        "WorldLM": Job("languages", settings=WORLDLM),
        "WorldLM, ours": Job("languages", settings=OURS),
        "HierFAVG": Job("languages", settings=HIERFAVG),
        "FL": Job("languages", "flat", flat),
        "FedPer": Job("languages", settings=FEDPER),
        "central": Job("languages", "pooled", HIERFAVG),
        "local, unbounded data": Job("everything", "alone", {"method": {"name": "alone"}}),
        "no key layers": Job("languages", settings={"method": {"name": "hierfavg"}, "server": MOMENTUM}),
        "no residuals": Job("languages", settings={"method": {"name": "worldlm", "residuals": 0}, "server": MOMENTUM}),
        "server lr 1": Job("languages", settings={"method": {"name": "worldlm"}, "server": PLAIN}),
        "WorldLM, DP": Job("languages", settings=WORLDLM, leaves=private),
        "FL, DP": Job("languages", "flat", flat, private),
        "no key layers, DP": Job(
            "languages", settings={"method": {"name": "hierfavg"}, "server": MOMENTUM}, leaves=private
        ),
        "WorldLM, DP to the letter": Job("languages", settings=WORLDLM, leaves=dict.fromkeys(DP_LEAVES, LITERAL)),
        "WorldLM, wrong tree": Job("languages", "swapped", WORLDLM),
        "WorldLM, genres": Job("genres", settings=WORLDLM),
        "FL, genres": Job("genres", "flat", flat),
        "central, genres": Job("genres", "pooled", HIERFAVG),
        "local, genres": Job("genres", "alone", {"method": {"name": "alone"}}),
        "WorldLM, iid": Job("iid", settings=WORLDLM),
        "FL, iid": Job("iid", "flat", flat),
        "central, iid": Job("iid", "pooled", HIERFAVG),
    }
    for kind, poison in POISONS.items():
        lie = {"simulate": {"poison": {LIAR: poison}}}
        found[f"WorldLM, {kind}, filter"] = Job("languages", settings=FILTERED | lie)
        found[f"WorldLM, {kind}"] = Job("languages", settings=WORLDLM | lie)
        found[f"HierFAVG, {kind}"] = Job("languages", settings=HIERFAVG | lie)
    return found


def federation(name: str, job: Job, layout: Layout, size: Size, path: str, seed: int) -> Federation:
    stages = 1 if job.stand in ("tree", "swapped") else STAGES  # the others have one stage where a tree has three
    rounds = size.rounds * stages
    if job.stand in ("tree", "swapped"):
        nodes = (layout.swapped() if job.stand == "swapped" else layout).tree(job.leaves or {})
    else:
        nodes = layout.flat(job.leaves or {}) if job.stand == "flat" else getattr(layout, job.stand)()
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
            "evaluate": {"every": stages, "share": 0.3},
            "checkpoint": {"every": rounds},
            **nodes,
            **(job.settings or {}),
        }
    )


def reproduce(asked: Asked) -> Reproduction:
    asked.need_text()
    asked.refuse("worldlm", "encoder", "model", "tune")
    began, size = perf_counter(), SIZES[asked.scale]
    asked.say("laying out the trees")
    layouts = lay_out(asked.data, asked.out / "data")
    paths = {name: start(layouts, name, asked.out / "start", size) for name in ("everything", "genres", "iid")}
    paths["languages"] = paths["everything"]
    planned = jobs_of()
    with Jobs(asked.out, asked.say, asked.scale != "smoke") as jobs:
        for seed in size.seeds:
            for name, job in planned.items():
                file = federation(name, job, layouts[job.layout], size, paths[job.layout], seed)
                jobs.start(f"{name} {seed}", file, workers=0)
        outcomes = {name: [_result(jobs, f"{name} {seed}") for seed in size.seeds] for name in planned}
    found = {name: Figures.of(outcome, layouts[planned[name].layout].leaves) for name, outcome in outcomes.items()}
    first = {name: outcome[0] for name, outcome in outcomes.items() if outcome[0]}
    private = federation("price", planned["WorldLM, DP"], layouts["languages"], size, paths["languages"], 0)
    claims = claims_of(found, price(private))
    tables = [table_1(found), table_2(found), table_3(found), table_4(found), figure_4(first), ablations(found)]
    tables.append(table_poison(found))
    report = html.write(
        [(name, first[name].folder) for name in SHOWN if name in first],
        asked.out / "report.html",
        "WorldLM: federations of federations",
        [claim.line for claim in claims],
        tables,
    )
    return Reproduction("worldlm", asked.scale, tables, claims, report, perf_counter() - began)


def _result(jobs: Jobs, name: str) -> Outcome | None:
    """None of a run that a liar or noise has broken: its updates were no longer numbers."""
    try:
        return jobs.result(name)
    except RunFailed:
        return None


def start(layouts: Mapping[str, Layout], name: str, folder: Path, size: Size) -> str:
    """Tokeniser and shape, from the training texts of a layout."""
    files = [Path(source["train"]) for source in layouts[name].sources.values()]
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return shape(folder / name, rows, size.vocabulary, size.length, size.blocks, size.width)


# ── figures ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Figures:
    """Of one method, by seed: perplexities by leaf or node, and next-token accuracy and bits per byte of own models."""

    own: list[dict[str, float]]  # every leaf's own model on its own test set
    nodes: list[dict[str, float]]  # the same of all seven nodes
    shared: list[dict[str, float]]  # the one global model on every leaf's test set
    accuracy: list[dict[str, float]]
    bits: list[dict[str, float]]

    @staticmethod
    def of(outcomes: Sequence[Outcome | None], leaves: Sequence[str]) -> "Figures":
        broken = {leaf: {"perplexity": inf, "accuracy": 0.0, "bits_per_byte": inf} for leaf in leaves}
        own = [_own(outcome, leaves) if outcome else broken for outcome in outcomes]
        shared = [outcome.metrics if outcome else broken for outcome in outcomes]

        def values(found: Sequence[Mapping[str, Mapping[str, float]]], metric: str, names: Sequence[str] = ()) -> Any:
            return [{n: m[metric] for n, m in one.items() if n in names or not names} for one in found]

        return Figures(
            values(own, "perplexity", leaves),
            values(own, "perplexity"),
            values(shared, "perplexity", leaves),
            values(own, "accuracy", leaves),
            values(own, "bits_per_byte", leaves),
        )

    def mean(self, which: str) -> float:
        """Over leaves and seeds."""
        return fmean(fmean(one.values()) for one in getattr(self, which))

    def spread(self, which: str) -> float:
        """Of the mean over leaves, between seeds."""
        means = [fmean(one.values()) for one in getattr(self, which)]
        return deviation(means)

    def text(self, which: str) -> str:
        """Mean ± standard deviation over nodes, as the paper prints it."""
        spread = fmean(deviation(list(one.values())) for one in getattr(self, which))
        return f"{short(self.mean(which))} ± {short(spread)}"


def deviation(values: Sequence[float]) -> float:
    return pstdev(values) if inf not in values else inf


def _own(outcome: Outcome, leaves: Sequence[str]) -> dict[str, dict[str, float]]:
    """By node; where a run has no models but one, or nothing but own ones, its scores by language."""
    ledger = Ledger(outcome.folder)
    own = ledger.final(f"{OWN} test")
    ledger.close()
    return own if set(leaves) <= set(own) else outcome.metrics


def price(federation: Federation) -> str:
    """What a private leaf's updates cost; all pay the same."""
    return next(iter(spent(federation, federation.rounds).values())).line


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────


def table_1(found: Mapping[str, Figures]) -> Table:
    rows = [
        [name, found[name].text("own"), found[name].text("shared"), found[name].text("nodes"), TABLE_1.get(name, "–")]
        for name in (*TABLE_1, "WorldLM, ours")
    ]
    note = (
        "Own: each leaf's own model after its last steps; global: the root's model on the same test sets; mean ± "
        "deviation over leaves. The paper compares WorldLM's own models, of all nodes, with the others' global model."
    )
    return Table("Table 1: perplexity on the language tree", ["", "own", "global", "own, 7 nodes", "paper"], rows, note)


def table_2(found: Mapping[str, Figures]) -> Table:
    rows = []
    for layout, paper in TABLE_2.items():
        for name, published in paper.items():
            figures = found.get(f"{name}, {layout}")
            own, shared = (figures.text("own"), figures.text("shared")) if figures else ("–", "–")
            rows.append([f"{layout}: {name}", own, shared, published])
    return Table(
        "Table 2: perplexity on genres of one language, and on equal parts", ["", "own", "global", "paper"], rows
    )


def table_3(found: Mapping[str, Figures]) -> Table:
    rows = []
    for name, which in (("WorldLM", "own"), ("FL", "shared")):
        ours = [short(found[key].mean(which)) for key in (name, f"{name}, DP")]
        swapped = found["WorldLM, wrong tree"] if name == "WorldLM" else found[name]
        rows.append([name, *ours, short(swapped.mean(which)), *TABLE_3[name]])
    rows.append(
        ["no key layers", *(short(found[k].mean("own")) for k in ("no key layers", "no key layers, DP")), *"–" * 4]
    )
    letter = short(found["WorldLM, DP to the letter"].mean("own"))
    columns = ["", "clean", "DP", "wrong tree", "paper clean", "paper DP", "paper wrong tree"]
    note = (
        f"WorldLM: own models; FL: its global model, which no tree changes. DP at {' and '.join(DP_LEAVES)} with noise "
        f"σ·C/7, σ = 0.5. To the letter, with σ·C on every coordinate, WorldLM is at {letter}."
    )
    return Table("Table 3: privacy and a wrong tree", columns, rows, note)


def table_4(found: Mapping[str, Figures]) -> Table:
    base = found["FL"].mean("accuracy")
    rows = []
    for name in ("WorldLM", "WorldLM, ours", "FL", "HierFAVG", "FedPer", "local, unbounded data", "central"):
        accuracy = found[name].mean("accuracy")
        rows.append([name, f"{accuracy:.4f}", f"{accuracy / base - 1:+.2%}", f"{found[name].mean('bits'):.3f}"])
    note = (
        "In place of few-shot tasks, which models of this size cannot do: own models, next-token accuracy against FL's."
    )
    return Table("Table 4: accuracy and bits per byte", ["", "accuracy", "against FL", "bits per byte"], rows, note)


def figure_4(first: Mapping[str, Outcome]) -> Table:
    """Mean perplexity of the global model over passes, first seed; the report draws it by language."""
    curves = {name: [mean for _, mean in html.see(first[name].folder).times] for name in SHOWN if name in first}
    rows = [[name, *(short(value) for value in curve)] for name, curve in curves.items()]
    columns = ["", *(f"after {n}" for n in range(len(curves["WorldLM"])))]
    return Table("Figure 4: global model, mean perplexity after passes over the tree", columns, rows)


def ablations(found: Mapping[str, Figures]) -> Table:
    names = ("WorldLM", "WorldLM, ours", "no key layers", "no residuals", "server lr 1", "HierFAVG", "FedPer", "FL")
    rows = [
        [n, short(found[n].mean("own")), short(found[n].spread("own")), short(found[n].mean("shared"))] for n in names
    ]
    return Table("Own against own, and what each part earns", ["", "own", "between seeds", "global"], rows)


def table_poison(found: Mapping[str, Figures]) -> Table:
    rows = [["clean", *(short(found[n].mean("own")) for n in ("WorldLM", "WorldLM", "HierFAVG"))]]
    for kind in POISONS:
        names = (f"WorldLM, {kind}, filter", f"WorldLM, {kind}", f"HierFAVG, {kind}")
        rows.append([kind, *(short(found[name].mean("own")) for name in names)])
    title = f"One liar of four ({LIAR}): own perplexity"
    return Table(title, ["", "WorldLM, filter", "WorldLM", "HierFAVG"], rows)


# ── claims ────────────────────────────────────────────────────────────────────────────────────────────────────────


def claims_of(found: Mapping[str, Figures], price: str) -> list[Claim]:
    return [*_tree_claims(found), _privacy_claim(found, price), *_poison_claims(found)]


def _tree_claims(found: Mapping[str, Figures]) -> Iterator[Claim]:
    own, central = found["WorldLM"].mean("own"), found["central"].mean("shared")
    hier, flat = found["HierFAVG"].mean("shared"), found["FL"].mean("shared")
    ours = f"WorldLM {short(own)}, HierFAVG {short(hier)}, FL {short(flat)}"
    yield Claim(
        "WorldLM's own models are below HierFAVG's and FL's global model",
        own < min(hier, flat), ours, "80.47, 149.00, 153.27",
    )  # fmt: skip
    yield Claim(
        "WorldLM is within a tenth of central training", own <= 1.1 * central, f"{short(own)} / {short(central)}",
        "80.47 / 72.21",
    )  # fmt: skip
    best, rival = found["WorldLM, ours"], found["HierFAVG"]
    spread = max(best.spread("own"), rival.spread("own"))
    yield Claim(
        "own against own, WorldLM with our settings wins or ties with HierFAVG, within the spread of the seeds",
        best.mean("own") <= rival.mean("own") + spread,
        f"{short(best.mean('own'))} / {short(rival.mean('own'))}, spread {short(spread)}; as published {short(own)}",
        "not shown",
    )
    wrong, iid = found["WorldLM, wrong tree"].mean("own"), found["WorldLM, iid"].mean("own")
    yield Claim(
        "a wrong tree costs WorldLM something", wrong > own, f"{short(own)} to {short(wrong)}", "73.82 to 140.05"
    )
    fl = found["FL, iid"].mean("shared")
    yield Claim("on equal parts there is no gain", iid >= fl, f"WorldLM {short(iid)}, FL {short(fl)}", "167.31, 145.32")


def _privacy_claim(found: Mapping[str, Figures], price: str) -> Claim:
    tree = found["WorldLM, DP"].mean("own") / found["WorldLM"].mean("own") - 1
    flat = found["FL, DP"].mean("shared") / found["FL"].mean("shared") - 1
    nodes = found["WorldLM, DP"].mean("nodes") / found["WorldLM"].mean("nodes") - 1
    bare = found["no key layers, DP"].mean("own") / found["no key layers"].mean("own") - 1
    return Claim(
        "with two private leaves WorldLM grows by less than half of what FL's global model grows by",
        tree < flat / 2,
        f"WorldLM's leaves {tree:+.0%}, all its nodes {nodes:+.0%}, FL {flat:+.0%}, "
        f"the tree without key layers {bare:+.0%}; {price}",
        "+38%, +575%",
    )


def _poison_claims(found: Mapping[str, Figures]) -> Iterator[Claim]:
    for kind in POISONS:
        clean, kept = found["WorldLM"].mean("own"), found[f"WorldLM, {kind}, filter"].mean("own")
        lied, honest = found[f"HierFAVG, {kind}"], found["HierFAVG"]
        broken = max(lied.mean(which) / honest.mean(which) for which in ("own", "shared"))
        yield Claim(
            f"one leaf of four {kind}: WorldLM with the filter is within 5% of clean, HierFAVG without it breaks",
            kept <= 1.05 * clean and broken > 1.5,
            f"WorldLM {short(clean)} to {short(kept)}, HierFAVG times {short(broken)}",
            "open",
        )
