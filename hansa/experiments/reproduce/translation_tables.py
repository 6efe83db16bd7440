"""The tables and claims of Passban et al. (2022), our figures beside the published ones: Tables 2 to 7, Figures 1, 3.

A cell of ours is BLEU · chrF · cross-entropy per token, averaged over seeds: where BLEU is near zero, the other two
differ more. A client's own model is the server's, with the client's values of the tensors that it did not send.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

from hansa.experiments.reproduce import Claim, Table
from hansa.experiments.reproduce.domains import DOMAINS
from hansa.experiments.reproduce.published_translation import (
    FEDERATED,
    TABLE_2,
    TABLE_3,
    TABLE_4,
    TABLE_5,
    TABLE_6,
    TABLE_7,
)
from hansa.experiments.reproduce.verdict import spread
from hansa.tasks.translate import Translate

SERVER = "server"
CONTROL = "no exchange"
Metrics = Mapping[str, float]
ByDomain = Mapping[str, Metrics]
MEASURES = {"bleu": "BLEU", "chrf": "chrF", "loss": "cross-entropy"}
DIGITS = {"bleu": 2, "chrf": 1, "loss": 3}
FEWER = 8.0  # times fewer bytes for
CLOSE = 0.02  # at most this relative loss of BLEU
RETAINED, SPENT = 0.9, 0.5  # share of the gain; share of the bytes


@dataclass(frozen=True)
class Scored:
    """Scores of a run: the server's model, and clients' own models on their own domains and, averaged, on others."""

    server: ByDomain
    own: ByDomain
    others: ByDomain
    uplink: int
    valid: float | None = None  # mean cross-entropy of the server's model on validation data, at the end


@dataclass(frozen=True)
class Found:
    """The results of all runs."""

    rounds: tuple[int, int, int]
    start: Scored  # the generic model
    scored: Mapping[str, Sequence[Scored]]  # run → scores of every seed
    single: Mapping[str, ByDomain]  # domain of the model → domain of the test set → scores
    fine_tuned: Mapping[str, ByDomain]  # the same, after fine-tuning of the server's model
    curves: Mapping[int, Sequence[float]]  # number of rounds → validation losses of the smallest domain
    movement: Mapping[str, Mapping[str, Sequence[float]]]  # client → side → how far each tensor moved
    signatures: tuple[str, ...]

    def server(self, name: str) -> dict[str, Metrics]:
        """The scores of the server's model by domain, averaged over seeds."""
        return _over_seeds([one.server for one in self.scored[name]])

    def values(self, name: str, model: str = "server", metric: str = "loss") -> list[float]:
        """The mean over domains, seed by seed.

        The control has no exchange after its first round: its server's model is that of the run with one round.
        """
        if name == CONTROL and model == "server":
            name = "after 1 round"
        return [_average(getattr(one, model), metric) for one in self.scored[name]]

    def mean(self, name: str, model: str = "server", metric: str = "loss", like: str = "") -> float:
        """The mean over seeds and domains; ``like``: only over the seeds that this other run has, too."""
        return fmean(self.values(name, model, metric)[: len(self.scored[like or name])])

    def valid(self, name: str) -> float:
        """The server's cross-entropy on validation data, over seeds and domains; what is selected, is selected by it.

        Infinite where it was not recorded.
        """
        found = [one.valid for one in self.scored[name]]
        return fmean(inf if one is None else one for one in found)

    def retained(self, name: str, model: str, metric: str = "loss") -> float:
        """The gain over the generic model, as a share of the full exchange's gain."""
        start = _average(getattr(self.start, model), metric)
        return (start - self.mean(name, model, metric)) / (start - self.mean(SERVER, model, metric, like=name))

    def spent(self, name: str) -> float:
        """The share of the full exchange's uplink bytes."""
        if name == CONTROL:
            name = "after 1 round"
        return fmean(one.uplink for one in self.scored[name]) / fmean(one.uplink for one in self.scored[SERVER])


def _average(by_domain: ByDomain, metric: str) -> float:
    return fmean(metrics[metric] for metrics in by_domain.values())


def _over_seeds(several: Sequence[ByDomain]) -> dict[str, Metrics]:
    return {
        domain: {metric: fmean(one[domain][metric] for one in several) for metric in several[0][domain]}
        for domain in several[0]
    }


def cell(metrics: Metrics) -> str:
    """BLEU, chrF and cross-entropy as text."""
    return " · ".join(f"{metrics[metric]:.{digits}f}" for metric, digits in DIGITS.items())


# ── the tables ────────────────────────────────────────────────────────────────────────────────────────────────────


def tables(found: Found) -> list[Table]:
    """All tables."""
    few, more, most = found.rounds
    by_rounds = {f"{few} rounds": SERVER, f"{more} rounds": f"{more} rounds", f"{most} rounds": f"{most} rounds"}
    published_5 = dict(zip(by_rounds, TABLE_5, strict=True))
    baselines = ["combination", "chained", "combination, all work", "chained, all work"]
    made = [
        _table("Table 2: single-domain models", found.single, TABLE_2) if found.single else None,
        _table(
            "Table 3: central domain adaptation",
            {"generic": found.start.server} | {name: found.server(name) for name in baselines},
            TABLE_3,
            "As many steps in total as one client of the federation takes; “all work”: as all clients together. "
            "Chained: WMT, UB, PHP, TED, OS.",
        ),
        _table(
            "Table 4: the server's model, and the same after fine-tuning at each client",
            {"S": found.server(SERVER), **found.fine_tuned},
            TABLE_4 | {"S": FEDERATED},
        ),
        _table(
            "Table 5: rounds at the same number of steps",
            {k: found.server(v) for k, v in by_rounds.items()},
            published_5,
        ),
        figure_3(found),
        _table(
            "Table 6: dynamic pulling, the server's model",
            {name: found.server(name) for name in TABLE_6},
            TABLE_6,
            "Half of the parameters of each side, by relative movement; all parameters are sent in the first round.",
        ),
        pulling(found),
        gains(found),
        _known(
            "Table 7: a third of the parameters in both directions, against controllers",
            found,
            TABLE_7,
            "With controllers the server has no complete model: these are clients' own models on their own domains.",
        ),
        codes(found),
        figure_1(found) if found.movement else None,
    ]
    return [table for table in made if table is not None]


def _table(title: str, rows: Mapping[str, ByDomain], published: Mapping[str, Sequence[float]], note: str = "") -> Table:
    cells = []
    for name, by_domain in rows.items():
        ours = [cell(by_domain[domain]) for domain in DOMAINS]
        mean = cell({metric: _average(by_domain, metric) for metric in MEASURES})
        paper = [f"{v:.2f}" for v in published[name]] if name in published else ["–"] * len(DOMAINS)
        cells.append([name, *ours, mean, *paper])
    columns = ["", *DOMAINS, "mean", *(f"paper {domain}" for domain in DOMAINS)]
    return Table(f"{title} (BLEU · chrF · cross-entropy)", columns, cells, note)


def _known(title: str, found: Found, published: Mapping[str, Sequence[float]], note: str) -> Table | None:
    rows = {name: found.server(name) for name in published if name in found.scored}
    return _table(title, rows, published, note) if rows else None


def figure_3(found: Found) -> Table:
    """Figure 3: validation loss over training."""
    count = max(len(curve) for curve in found.curves.values())
    rows = [
        [f"{rounds} rounds", *(f"{value:.3f}" for value in curve), *["–"] * (count - len(curve))]
        for rounds, curve in found.curves.items()
    ]
    columns = ["", *(f"{i / max(1, count - 1):.0%} of the steps" for i in range(count))]
    return Table("Figure 3: the smallest domain's (UB) cross-entropy on validation data", columns, rows)


MODELS = {"server": "server", "own": "own domains", "others": "other domains"}


def pulled(name: str) -> bool:
    """Whether a run belongs to the comparison of dynamic pulling."""
    return name in (SERVER, CONTROL) or name.startswith(("DP_", "random"))


def _pulled(found: Found) -> list[str]:
    return [name for name in found.scored if pulled(name)]


def _spread(found: Found, name: str, model: str) -> str:
    cells = []
    for metric in MEASURES:
        digits, values = DIGITS[metric], found.values(name, model, metric)
        between = f" ± {spread(values):.{digits}f}" if len(values) > 1 else ""
        cells.append(f"{fmean(values):.{digits}f}{between}")
    return " · ".join(cells)


def pulling(found: Found) -> Table:
    """Scores of server and own models, with their deviation over seeds."""
    rows = [[n, *(_spread(found, n, model) for model in MODELS), _seeds(found, n)] for n in _pulled(found)]
    note = (
        "The server's model, and clients' own models on their own domains and on other domains; ± standard deviation "
        "over seeds. No exchange: after the first round every client trains alone; the server's model is that of the "
        "first round. Synchronised: clients take the server's values of the tensors that they did not send, so that "
        "they have no models of their own."
    )
    title = "Dynamic pulling: server, own and other domains (BLEU · chrF · cross-entropy)"
    return Table(title, ["", *MODELS.values(), "seeds"], rows, note)


def gains(found: Found) -> Table:
    """The share of the full exchange's gain that is retained, and the share of its bytes."""
    rows = []
    for name in _pulled(found):
        shares = [" · ".join(_share(found, name, model, metric) for metric in MEASURES) for model in MODELS]
        per_byte = found.retained(name, "server") / found.spent(name)
        rows.append([name, f"{found.spent(name):.1%}", *shares, f"{per_byte:.2f}", _seeds(found, name)])
    columns = ["", "uplink bytes", *(f"gain retained, {label}" for label in MODELS.values())]
    note = (
        "Gain: over the generic model, as a share of the full exchange's gain; –: the full exchange is not better than "
        "the generic model. Per byte: the server's share of the gain in cross-entropy over the share of the bytes, "
        "measured on the wire."
    )
    title = "Dynamic pulling: the gain retained, and the bytes sent (BLEU · chrF · cross-entropy)"
    return Table(title, [*columns, "gain per byte, server", "seeds"], rows, note)


def _share(found: Found, name: str, model: str, metric: str) -> str:
    gained = found.mean(SERVER, model, metric) - _average(getattr(found.start, model), metric)
    improved = gained < 0 if metric in Translate.lower_metrics else gained > 0
    return f"{found.retained(name, model, metric):.0%}" if improved else "–"


def codes(found: Found) -> Table:
    """Quality against bytes of all uploads."""
    names = [name for name in found.scored if found.scored[name][0].server and _sends(name)]
    rows = []
    for name in sorted(names, key=found.spent):
        figures = [f"{found.mean(name, metric=metric):.{DIGITS[metric]}f}" for metric in MEASURES]
        against = [f"{_better(found, name, metric):+.1%}" for metric in MEASURES]
        rows.append([name, f"{1 / found.spent(name):.1f}×", *figures, *against, _seeds(found, name)])
    labels = list(MEASURES.values())
    columns = ["", "fewer uplink bytes", *labels, *(f"{label} against all" for label in labels), "seeds"]
    note = "The server's model; against all: better (+) or worse (−) than the full exchange with the same seeds."
    return Table("Quality against uplink bytes, of all uploads", columns, rows, note)


def _better(found: Found, name: str, metric: str) -> float:
    """The relative change against the full exchange; positive is better."""
    full = found.mean(SERVER, metric=metric, like=name)
    return (found.mean(name, metric=metric) / full - 1) * (-1 if metric in Translate.lower_metrics else 1)


def _seeds(found: Found, name: str) -> str:
    return str(len(found.scored[name]))


def _sends(name: str) -> bool:
    """Whether a run is a federation of as many rounds as the full exchange."""
    return name in (SERVER, "random") or name.startswith(("DP_", "bf16", "int8", "rows", "top-k"))


def figure_1(found: Found) -> Table:
    """Histograms of movement, in ten bins up to the largest."""
    rows = []
    for client, sides in found.movement.items():
        for side, moved in sides.items():
            top = max(moved) or 1.0
            bins = [0] * 10
            for d in moved:
                bins[min(9, int(10 * d / top))] += 1
            rows.append([client, side, f"{top:.3g}", *map(str, bins)])
    columns = ["client", "side", "largest norm", *(f"{10 * i}–{10 * i + 10}%" for i in range(10))]
    return Table("Figure 1: tensors by their movement between two rounds", columns, rows)


# ── the claims ────────────────────────────────────────────────────────────────────────────────────────────────────


def claims(found: Found) -> list[Claim]:
    """All claims."""
    return [*against_baselines(found), *pulling_claims(found), rounds_claim(found), code_claim(found)]


def _three(found: Found, name: str, like: str) -> str:
    return " · ".join(f"{found.mean(name, metric=m, like=like):.{digits}f}" for m, digits in DIGITS.items())


def _paper(published: Sequence[float]) -> str:
    return f"{fmean(published):.2f}"


def _exceptions(found: Found, baseline: str) -> str:
    """The metrics in which the server's model is worse than a baseline, in words."""
    names = {"bleu": "BLEU", "chrf": "chrF"}
    worse = [
        n for m, n in names.items() if found.mean(SERVER, metric=m, like=baseline) < found.mean(baseline, metric=m)
    ]
    return f"; worse in {' and '.join(worse)}" if worse else ""


def _clear(found: Found, better: str, worse: str, model: str) -> bool:
    """Whether a difference in cross-entropy is larger than the deviation over seeds."""
    between = max(spread(found.values(name, model, "loss")) for name in (better, worse))
    return found.mean(worse, model) - found.mean(better, model) > between


def against_baselines(found: Found) -> list[Claim]:
    """The server's model against baselines, by cross-entropy."""
    made = []
    label_of = {"combination": "data combination", "chained": "chained fine-tuning"}
    for name in label_of:
        for work, label in (
            ("", "as many steps as one client takes"),
            (", all work", "as many steps as all clients together"),
        ):
            run = name + work
            made.append(
                Claim(
                    f"the server's model is better than {label_of[name]} with {label}, by cross-entropy",
                    found.mean(SERVER, like=run) < found.mean(run),
                    f"{_three(found, SERVER, run)} against {_three(found, run, run)}{_exceptions(found, run)}",
                    f"BLEU {_paper(FEDERATED)} against {_paper(TABLE_3[name])}" if not work else "not shown",
                )
            )
    return made


def pulling_claims(found: Found) -> list[Claim]:
    """The order of the rules of dynamic pulling, and the bytes that it saves."""
    made = []
    order = ("DP_l", "random", "DP_g")
    for model, label in MODELS.items():
        made.append(
            Claim(
                f"dynamic pulling, {label}: DP_l is better than random, random than DP_g, by more than seeds differ",
                _clear(found, *order[:2], model) and _clear(found, *order[1:], model),
                ", ".join(f"{name} {_spread(found, name, model)}" for name in order),
                "BLEU " + ", ".join(f"{name} {_paper(TABLE_6[name])}" for name in order),
            )
        )
    parts = [name for name in found.scored if name.startswith("DP_") and found.spent(name) <= SPENT]
    best = min(parts, key=found.valid, default="")
    made.append(
        Claim(
            f"the variant of dynamic pulling that validation data select keeps {RETAINED:.0%} of the server's gain in "
            f"cross-entropy for {SPENT:.0%} of the uplink bytes",
            bool(best) and found.retained(best, "server") >= RETAINED,
            f"{best}: {found.retained(best, 'server'):.0%} for {found.spent(best):.0%}"
            if best
            else "no variant sends so little",
            "95% of BLEU for 50%",
        )
    )
    return made


def rounds_claim(found: Found) -> Claim:
    """More rounds with the same number of steps."""
    few, _, most = found.rounds
    one, other = found.server(SERVER), found.server(f"{most} rounds")
    small = ("PHP", "UB")
    return Claim(
        f"{most} rounds instead of {few} lower the loss of the small domains",
        all(other[domain]["loss"] < one[domain]["loss"] for domain in small),
        ", ".join(f"{domain} {one[domain]['loss']:.3f} to {other[domain]['loss']:.3f}" for domain in small),
        "BLEU, PHP 37.32 to 43.99, UB 47.9 to 51.07",
    )


def code_claim(found: Found) -> Claim:
    """Compression of updates against the loss of BLEU."""
    names = [n for n in found.scored if _sends(n) and found.scored[n][0].server and 1 / found.spent(n) >= FEWER]
    best = min(names, key=lambda name: (-len(found.scored[name]), found.valid(name)), default="")
    holds, ours = False, "no upload sends so little"
    if best:
        bleu, full = found.mean(best, metric="bleu"), found.mean(SERVER, metric="bleu", like=best)
        holds = bleu >= (1 - CLOSE) * full
        scores, all_scores = _three(found, best, best), _three(found, SERVER, best)
        ours = f"{best}: {1 / found.spent(best):.1f} times fewer, {scores} against {all_scores}"
    claim = (
        f"of the uploads that send {FEWER:.0f} times fewer bytes, the one that validation data select loses at most "
        f"{CLOSE:.0%} of BLEU"
    )
    return Claim(claim, holds, ours, "not shown")
