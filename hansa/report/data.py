"""The report's data section: how many samples each silo holds, and how many of them a round uses."""

from hansa.report.charts import bars
from hansa.runs.results import RunResults

MAX_BARS = 60  # silos; the chart is left out for more


def silo_rows(run: RunResults) -> list[dict[str, str]]:
    """One row for every node with data: samples, samples per round, and their shares."""
    total, per_round = _totals(run)
    return [
        {
            "name": name,
            "samples": f"{card.samples():,}",
            "share": f"{card.samples() / total:.1%}",
            "per_round": f"{card.per_round:,}",
            "round_share": f"{card.per_round / per_round:.1%}",
            "test": f"{card.samples('test'):,}",
        }
        for name, card in run.cards.items()
    ]


def sample_note(run: RunResults) -> str:
    """What a sample is."""
    length = run.federation.data.max_length
    return f"A sample is a window of at most {length} tokens: a long text gives several samples."


def share_chart(run: RunResults) -> str:
    """Each silo's share of all data and of a round's samples; empty if there are too many silos to draw."""
    cards, (total, per_round) = run.cards, _totals(run)
    if len(cards) > MAX_BARS:
        return ""
    rows = [(n, (100 * card.samples() / total, 100 * card.per_round / per_round)) for n, card in cards.items()]
    return bars("Share of the data (first bar) and of a round's samples (second)", rows, ["data", "round"], " %")


def _totals(run: RunResults) -> tuple[int, int]:
    cards = run.cards.values()
    return sum(card.samples() for card in cards) or 1, sum(card.per_round for card in cards) or 1
