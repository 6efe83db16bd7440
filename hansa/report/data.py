"""The report's data section: how many samples each silo holds, and how many of them a round uses."""

from collections.abc import Sequence
from statistics import fmean

from hansa.report.charts import bars
from hansa.runs.results import RunResults, SiloRound
from hansa.runs.shares import silo_shares

MAX_BARS = 60  # silos; the chart is left out for more


def silo_rows(run: RunResults) -> list[dict[str, str]]:
    """One row for every node with data: samples, samples per round, their shares, and the weight of its updates."""
    measured = mean_weights(run.silo_rounds)
    return [
        {
            "name": one.name,
            "samples": f"{one.samples:,}",
            "share": f"{one.share:.1%}",
            "per_round": f"{one.per_round:,}",
            "round_share": f"{one.round_share:.1%}",
            "weight": "–" if (weight := measured.get(one.name, one.weight)) is None else f"{weight:.1%}",
            "test": f"{one.test:,}",
        }
        for one in silo_shares(run.federation, run.cards)
    ]


def mean_weights(rounds: Sequence[SiloRound]) -> dict[str, float]:
    """The mean share that each silo's updates had in the aggregate, over the rounds in which it took part."""
    found: dict[str, list[float]] = {}
    for one in rounds:
        if one.weight is not None:
            found.setdefault(one.node, []).append(one.weight)
    return {node: fmean(values) for node, values in found.items()}


def sample_note(run: RunResults) -> str:
    """What a sample is."""
    length = run.federation.data.max_length
    return f"A sample is a window of at most {length} tokens: a long text gives several samples."


def share_chart(run: RunResults) -> str:
    """Each silo's share of all data and of a round's samples; empty for many silos, or if both are equal."""
    shares = silo_shares(run.federation, run.cards)
    if len(shares) > MAX_BARS or all(abs(one.share - one.round_share) < 0.001 for one in shares):
        return ""
    rows = [(one.name, (100 * one.share, 100 * one.round_share)) for one in shares]
    return bars("Share of the data (first bar) and of a round's samples (second)", rows, ["data", "round"], " %")
