"""The tables and claims of WorldLM (Iacob et al., 2024), our figures beside the published ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

from hansa.experiments.reproduce import Claim, Table
from hansa.experiments.reproduce.cells import Cell
from hansa.experiments.reproduce.verdict import spread
from hansa.report.charts import short
from hansa.runs.results import Score, read_scores

# Tables 1 to 4 of the paper; of Table 4, the average improvement over FL.
TABLE_1 = {
    "WorldLM": "80.47 ± 68.53", "FL": "153.27 ± 95.47", "HierFAVG": "149.00 ± 95.55", "FedPer": "269.85 ± 129.00",
    "local, unbounded data": "45.47 ± 31.13", "central": "72.21 ± 49.78",
}  # fmt: skip
TABLE_2 = {
    "genres": {
        "WorldLM": "73.82 ± 44.18",
        "FL": "107.31 ± 52.50",
        "local": "40.66 ± 25.28",
        "central": "85.81 ± 24.42",
    },
    "iid": {"WorldLM": "167.31 ± 2.92", "FL": "145.32 ± 3.53", "local": "–", "central": "67.01 ± 1.67"},
}
TABLE_3 = {"WorldLM": ("73.82", "101.78", "140.05"), "FL": ("107.31", "724.56", "107.31")}
TABLE_4 = {"WorldLM": "+4.49%", "HierFAVG": "+2.81%", "FedPer": "−0.48%", "local, unbounded data": "−0.37%"}
PARTS = (
    "no key layers",
    "no residuals",
    "server lr 1",
    "moved",
    "no way back",
    "server lr 1, moved",
)
ATTACKS = ("flipped", "flipped ×3", "×100")
BREAKS = 1.5  # times the perplexity without an attack

Found = Mapping[str, "Figures"]
Curve = Mapping[str, Sequence[float]]  # own or global → mean perplexity after each pass


@dataclass(frozen=True)
class Figures:
    """Figures of one method, by seed: perplexity by leaf or node, and next-token accuracy and bits per byte by leaf."""

    own: list[dict[str, float]]  # every leaf's own model on its own test set
    nodes: list[dict[str, float]]  # the same for all seven nodes
    shared: list[dict[str, float]]  # the one global model on every leaf's test set
    accuracy: list[dict[str, float]]
    bits: list[dict[str, float]]

    @staticmethod
    def of(cells: Sequence[Cell], leaves: Sequence[str]) -> "Figures":
        """The figures of runs with different seeds; those of a run that diverged count as infinite."""
        broken = {leaf: {"perplexity": inf, "accuracy": 0.0, "bits_per_byte": inf} for leaf in leaves}
        own = [broken if cell.diverged else _own(cell, leaves) for cell in cells]
        shared = [broken if cell.diverged else cell.scores for cell in cells]

        def values(found: Sequence[Mapping[str, Mapping[str, float]]], metric: str, names: Sequence[str] = ()) -> Any:
            """For each seed, name → one metric; of the given names only, or of all if none are given."""
            return [{n: m[metric] for n, m in one.items() if n in names or not names} for one in found]

        return Figures(
            values(own, "perplexity", leaves),
            values(own, "perplexity"),
            values(shared, "perplexity", leaves),
            values(own, "accuracy", leaves),
            values(own, "bits_per_byte", leaves),
        )

    @property
    def first(self) -> "Figures":
        """The figures of the first seed, for comparison with runs that have one seed."""
        return Figures(self.own[:1], self.nodes[:1], self.shared[:1], self.accuracy[:1], self.bits[:1])

    def mean(self, which: str) -> float:
        """The mean over leaves and seeds; ``which``: the name of a field."""
        return fmean(fmean(one.values()) for one in getattr(self, which))

    def spread(self, which: str) -> float:
        """The standard deviation between seeds of the mean over leaves."""
        means = [fmean(one.values()) for one in getattr(self, which)]
        return deviation(means)

    def brief(self, which: str) -> str:
        """The mean over leaves and seeds, and with several seeds their standard deviation, as text."""
        between = f" (±{short(self.spread(which))})" if len(self.own) > 1 else ""
        return f"{short(self.mean(which))}{between}"

    def text(self, which: str) -> str:
        """Mean ± standard deviation over nodes, as in the paper's tables."""
        over_nodes = fmean(deviation(list(one.values())) for one in getattr(self, which))
        return f"{short(self.mean(which))} ± {short(over_nodes)}"


def deviation(values: Sequence[float]) -> float:
    """The sample standard deviation; infinite if a value is."""
    return spread(values) if inf not in values else inf


def _own(cell: Cell, leaves: Sequence[str]) -> dict[str, dict[str, float]]:
    """The scores of own models by node; by language if the run has only one model, or only models of silos."""
    return cell.own if set(leaves) <= set(cell.own) else {leaf: cell.scores[leaf] for leaf in leaves}


def curve_of(folder: Path, leaves: Sequence[str]) -> Curve:
    """The mean perplexity on the leaves' test texts, of their own models and of the global one, after every pass."""
    return {
        "own": _means(read_scores(folder, "perplexity", own=True), leaves),
        "global": _means(read_scores(folder, "perplexity"), leaves),
    }


def _means(scores: Sequence[Score], leaves: Sequence[str]) -> list[float]:
    """The mean over leaves, round by round, of the evaluations during training."""
    rounds: dict[int, list[float]] = {}
    for score in scores:
        if score.share < 1.0 and score.group in leaves:
            rounds.setdefault(score.round, []).append(score.value)
    return [fmean(values) for values in rounds.values()]


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────


def tables_of(found: Found, curves: Mapping[str, Curve], seeds: int) -> list[Table]:
    """All tables; ``seeds``: of the runs that claims need."""
    once = f"Marked ¹: one seed; all others: {seeds}." if seeds > 1 else ""
    tables = [table_1, table_2, table_3, table_4]
    return [table(found, once) for table in tables] + [figure_4(curves), parts(found, once), attacks(found, once)]


def named(found: Found, name: str, shown: str = "") -> str:
    """The name of a row, with a mark if it has fewer seeds than WorldLM."""
    return (shown or name) + ("¹" if len(found[name].own) < len(found["WorldLM"].own) else "")


def table_1(found: Found, once: str) -> Table:
    """Perplexity on the language tree."""
    rows = [
        [named(found, n), *(found[n].text(which) for which in ("own", "shared", "nodes")), TABLE_1.get(n, "–")]
        for n in (*TABLE_1, "central, as many tokens", "WorldLM, ours")
    ]
    note = (
        "Own: each leaf's own model after its last steps; global: the root's model on the same test sets; mean ± "
        "deviation over leaves. The paper compares WorldLM's own models, of all nodes, with the global models of the "
        "other methods. Central takes as many sequential steps as the tree; “as many tokens”: as many steps as all "
        f"nodes of the tree together. {once}"
    )
    return Table("Table 1: perplexity on the language tree", ["", "own", "global", "own, 7 nodes", "paper"], rows, note)


def table_2(found: Found, once: str) -> Table:
    """Perplexity on genres and on equal parts."""
    rows = []
    for layout, paper in TABLE_2.items():
        for method, published in paper.items():
            name = f"{method}, {layout}"
            if name not in found:
                rows.append([f"{layout}: {method}", "–", "–", published])
                continue
            texts = [found[name].text(which) for which in ("own", "shared")]
            rows.append([named(found, name, f"{layout}: {method}"), *texts, published])
    columns = ["", "own", "global", "paper"]
    return Table("Table 2: perplexity on genres of one language, and on equal parts", columns, rows, once)


def table_3(found: Found, once: str) -> Table:
    """Perplexity with differential privacy and on a wrong tree."""
    names = {"clean": "{}", "DP": "{}, DP", "DP shrunk": "{}, DP shrunk", "wrong tree": "{}, wrong tree"}
    rows = []
    for method, which, published in (
        ("WorldLM", "own", TABLE_3["WorldLM"]),
        ("WorldLM", "nodes", ()),
        ("no key layers", "own", ()),
        ("no key layers", "nodes", ()),
        ("FL", "shared", TABLE_3["FL"]),
        ("FL", "own", ()),
    ):
        cells = [found[n].brief(which) if (n := form.format(method)) in found else "–" for form in names.values()]
        what = {"own": "leaves' own", "nodes": "all nodes' own", "shared": "global"}[which]
        rows.append([f"{method}, {what}", *cells, *(published or ("–",) * 3)])
    literal = found["WorldLM, DP as published"].brief("own")
    note = (
        "DP at fr and it with noise of standard deviation σ·C/7, σ = 0.5; shrunk: the noisy update is scaled to its "
        "expected signal (`privacy.shrink`, ours). With σ·C on every coordinate, as published, WorldLM's leaves are at "
        f"{literal}. Shrunk, as published and wrong tree: one seed. {once}"
    )
    columns = ["", *names, "paper clean", "paper DP", "paper wrong tree"]
    return Table("Table 3: privacy and a wrong tree", columns, rows, note)


def table_4(found: Found, once: str) -> Table:
    """Next-token accuracy and bits per byte."""
    base = found["FL"].mean("accuracy")
    rows = []
    for name in ("WorldLM", "WorldLM, ours", "FL", "HierFAVG", "FedPer", "local, unbounded data", "central"):
        accuracy, bits = found[name].mean("accuracy"), found[name].mean("bits")
        against = f"{accuracy / base - 1:+.2%}"
        rows.append([named(found, name), f"{accuracy:.4f}", against, f"{bits:.3f}", TABLE_4.get(name, "–")])
    note = (
        "Models of this size cannot solve few-shot tasks: instead, next-token accuracy of own models relative to FL's "
        f"(paper: the average over five kinds of tasks, relative to FL's). {once}"
    )
    columns = ["", "accuracy", "against FL", "bits per byte", "paper"]
    return Table("Table 4: accuracy and bits per byte", columns, rows, note)


def figure_4(curves: Mapping[str, Curve]) -> Table:
    """Perplexity over passes with the first seed; the report draws it by language."""
    passes = max(len(curve) for by in curves.values() for curve in by.values())
    rows = [
        [f"{name}, {which}", *map(short, curve), *["–"] * (passes - len(curve))]
        for name, by in curves.items()
        for which, curve in by.items()
        if curve
    ]
    note = "First seed, a tenth of the test data; own: mean over all nodes."
    columns = ["", *(f"after {n}" for n in range(passes))]
    return Table("Figure 4: mean perplexity after passes over the tree", columns, rows, note)


def parts(found: Found, once: str) -> Table:
    """Own models of all methods, and ablations of WorldLM."""
    names = ("WorldLM", "WorldLM, ours", *PARTS, "HierFAVG", "FedPer", "FL")
    rows = [
        [named(found, n), found[n].brief("own"), short(found[n].first.mean("own")), found[n].brief("shared")]
        for n in names
    ]
    note = (
        "WorldLM as published with one change each; ours: server lr 1, similarity of movements, no residual back to "
        f"its origin. In brackets: deviation between seeds. {once}"
    )
    columns = ["", "own", "own, first seed", "global"]
    return Table("Own models, and ablations of WorldLM", columns, rows, note)


def attacks(found: Found, once: str) -> Table:
    """Perplexity with one poisoned leaf."""
    forms = ("WorldLM, {}, filter", "WorldLM, {}, filter by keys", "WorldLM, {}, median", "WorldLM, {}", "HierFAVG, {}")

    def cell(name: str) -> str:
        """Own and global perplexity of a run as text; a dash if it was not run, "diverged" if one is infinite."""
        if name not in found:
            return "–"
        if inf in found[name].own[0].values():
            return named(found, name, "diverged")
        return f"{named(found, name, found[name].brief('own'))} / {found[name].brief('shared')}"

    clean = [
        *(cell(f"WorldLM, {how}") for how in ("filter", "filter by keys")),
        "–",
        cell("WorldLM"),
        cell("HierFAVG"),
    ]
    rows = [["clean", *clean], *([kind, *(cell(form.format(kind)) for form in forms)] for kind in ATTACKS)]
    columns = ["", "WorldLM, filter", "filter by keys", "median", "WorldLM", "HierFAVG"]
    return Table("One poisoned leaf of four (uk): own / global perplexity", columns, rows, once)


# ── claims ────────────────────────────────────────────────────────────────────────────────────────────────────────


def claims_of(found: Found, price: str) -> list[Claim]:
    """All claims; ``price``: the privacy cost of a private leaf, in words."""
    return [*_tree_claims(found), _privacy_claim(found, price), *_poison_claims(found)]


def _tree_claims(found: Found) -> Iterator[Claim]:
    own, hier, flat = found["WorldLM"].mean("own"), found["HierFAVG"].mean("shared"), found["FL"].mean("shared")
    yield Claim(
        "WorldLM's own models are below HierFAVG's and FL's global model",
        own < min(hier, flat),
        f"WorldLM {short(own)}, HierFAVG {short(hier)}, FL {short(flat)}",
        "80.47, 149.00, 153.27",
    )
    steps, tokens = found["central"].mean("shared"), found["central, as many tokens"].mean("shared")
    yield Claim(
        "WorldLM is within a tenth of central training, on as many steps and on as many tokens",
        own <= 1.1 * min(steps, tokens),
        f"{short(own)} / {short(steps)}, {short(tokens)}",
        "80.47 / 72.21",
    )
    yield _own_claim(found)
    wrong, right = found["WorldLM, wrong tree"], found["WorldLM"].first
    yield Claim(
        "a wrong tree raises WorldLM's perplexity",
        wrong.mean("nodes") > right.mean("nodes"),
        f"all nodes {short(right.mean('nodes'))} to {short(wrong.mean('nodes'))}, "
        f"leaves {short(right.mean('own'))} to {short(wrong.mean('own'))}",
        "73.82 to 140.05",
    )
    tree, flat_iid = found["WorldLM, iid"], found["FL, iid"]
    yield Claim(
        "on equal parts WorldLM is not better than FL, neither its own models nor its global model",
        all(tree.mean(which) >= flat_iid.mean(which) for which in ("own", "shared")),
        ", ".join(
            f"{what} {short(tree.mean(which))} / {short(flat_iid.mean(which))}"
            for what, which in (("own WorldLM / FL", "own"), ("global", "shared"))
        ),
        "167.31, 145.32",
    )


def _own_claim(found: Found) -> Claim:
    best = found["WorldLM, ours"]
    others = {name: found[name] for name in ("HierFAVG", "FL", "FedPer")}
    strongest = min(others, key=lambda name: others[name].mean("own"))
    between = max(best.spread("own"), others[strongest].spread("own"))
    listed = ", ".join(f"{name} {short(figures.mean('own'))}" for name, figures in others.items())
    return Claim(
        "WorldLM's own models with our settings are at least as good as every other method's, within the seeds' spread",
        best.mean("own") <= others[strongest].mean("own") + between,
        f"{short(best.mean('own'))} / {listed}, spread {short(between)}; "
        f"as published {short(found['WorldLM'].mean('own'))}",
        "not shown",
    )


def _privacy_claim(found: Found, price: str) -> Claim:
    def growth(name: str, which: str) -> float:
        """Relative growth of a method's mean perplexity under differential privacy."""
        return found[f"{name}, DP"].mean(which) / found[name].mean(which) - 1

    tree, flat = growth("WorldLM", "own"), growth("FL", "shared")
    shrunk = found["WorldLM, DP shrunk"].mean("nodes") / found["WorldLM"].first.mean("nodes") - 1
    return Claim(
        "with two private leaves, WorldLM's perplexity grows by less than half as much as that of FL's global model",
        tree < flat / 2,
        f"WorldLM's leaves {tree:+.0%}, all its nodes {growth('WorldLM', 'nodes'):+.0%} (shrunk {shrunk:+.0%}), "
        f"FL {flat:+.0%}, the tree without key layers {growth('no key layers', 'own'):+.0%}; {price}",
        "+38%, +575%",
    )


def _poison_claims(found: Found) -> Iterator[Claim]:
    for kind in ATTACKS:
        kept, lied = found[f"WorldLM, {kind}, filter"], found[f"HierFAVG, {kind}"]
        clean, honest = found["WorldLM"], found["HierFAVG"]
        if len(kept.own) < len(clean.own):
            clean, honest = clean.first, honest.first
        broken = max(lied.mean(which) / honest.mean(which) for which in ("own", "shared"))
        yield Claim(
            f"one leaf of four {kind}: WorldLM with the filter is within 5% of clean, HierFAVG without it diverges",
            kept.mean("own") <= 1.05 * clean.mean("own") and broken > BREAKS,
            f"WorldLM {short(clean.mean('own'))} to {short(kept.mean('own'))}, HierFAVG times {short(broken)}",
            "open",
        )
