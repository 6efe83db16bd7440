"""What of a silo remains in a model: the rounds in which it took part, and its share of them.

A silo that leaves takes part in no later round, but what the model learned from it stays until the run is repeated
without it (withdrawal.py).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hansa.runs.ledger import Ledger


@dataclass(frozen=True)
class Remains:
    """What of a silo is in a model: its rounds, its mean share of their training samples, its counts in the start."""

    rounds: tuple[int, ...]
    share: float
    in_start: bool  # whether the tokenizer or the labels were built from its counts, too

    @property
    def text(self) -> str:
        """One sentence for a report."""
        start = "the tokenizer and the labels were built from its counts, too" if self.in_start else ""
        if not self.rounds:
            return f"it took part in no round{'; ' + start if start else ', and nothing of it is in the model'}"
        first, last = self.rounds[0], self.rounds[-1]
        which = f"round {first}" if first == last else f"{len(self.rounds)} rounds between {first} and {last}"
        return f"it took part in {which}, with {self.share:.1%} of their training samples" + (
            f"; {start}" if start else ""
        )


def remains(ledger: Ledger, silo: str) -> Remains:
    """What of a silo is in the model of a run so far."""
    facts = ledger.facts()
    samples = {name: sum(card["groups"].get("train", {}).values()) for name, card in facts.get("cards", {}).items()}
    samples |= {name: one["samples"] for name, one in facts.get("withdrawn", {}).items()}
    # Of nodes below a region the ledger has bytes only; one whose update was not used has an event.
    rows = ledger.select(
        "select round, node from traffic t where seen > 0 or (loss is null and received > 0 and not exists "
        "(select 1 from events e where e.round = t.round and e.node = t.node and e.kind = 'lost'))"
    )
    took_part: dict[int, set[str]] = {}
    for number, node in rows:
        took_part.setdefault(number, set()).add(node)
    rounds = sorted(number for number, nodes in took_part.items() if silo in nodes)
    shares = [
        samples.get(silo, 0) / max(1, sum(samples.get(node, 0) for node in took_part[number])) for number in rounds
    ]
    counts = facts.get("survey", {}).get("silos", {}).get(silo, {})
    in_start = bool(counts.get("told") or counts.get("labels"))
    return Remains(tuple(rounds), sum(shares) / max(1, len(shares)), in_start)


def note_withdrawal(ledger: Ledger, silo: str, samples: int, after: int) -> None:
    """Note in the ledger that a silo has left after a round, with what remains of it."""
    known = ledger.facts().get("withdrawn", {})
    left = {"after": after, "samples": samples, "remains": asdict(remains(ledger, silo))}
    ledger.fact("withdrawn", known | {silo: left})
    ledger.event(after, silo, "left", "it has left the federation for good; later rounds go on without it")


def withdrawal_lines(facts: Mapping[str, Any]) -> list[str]:
    """For reports and model cards: one sentence for every silo that has left, or that the run was repeated without."""
    lines = []
    for silo, left in facts.get("withdrawn", {}).items():
        found = left["remains"]
        what = Remains(tuple(found["rounds"]), found["share"], found["in_start"])
        lines.append(
            f"{silo} left after round {left['after']}: {what.text}. What the model learned from it remains; only a run "
            "that is repeated without it ('hansa retrain') has nothing of it."
        )
    if again := facts.get("retrained"):
        begin = f"from the checkpoint of round {again['begin']}" if again["begin"] else "from the start"
        lines.append(f"This run repeats another one {begin} without {again['without']}: nothing of it is in the model.")
    return lines
