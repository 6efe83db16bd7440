"""The model card: how a model was trained, on which data, its scores, and what left the silos."""

from collections.abc import Mapping
from typing import Any

from hansa.config.federation import Federation
from hansa.core.messages import DataCard, NodeId
from hansa.privacy.policy.disclosures import disclosures
from hansa.runs.remains import withdrawal_lines


def model_card(
    federation: Federation,
    cards: Mapping[NodeId, DataCard],
    metrics: Mapping[str, Mapping[str, float]],
    facts: Mapping[str, Any],
    silo: str,
) -> str:
    """The model card as Markdown with the metadata block of Hugging Face.

    ``metrics``: group → metric → value on the test data; ``facts``: the ledger's facts about the run; ``silo``: the
    silo whose own model the card describes, empty for the shared model.
    """
    columns = sorted({metric for values in metrics.values() for metric in values})
    lines = [
        "---",
        "library_name: transformers",
        f"language: [{', '.join(sorted(g for g in metrics if len(g) in (2, 3)))}]",
        "tags: [federated-learning, hansa]",
        "---",
        "",
        f"# {federation.name}" + (f": the model of silo {silo}" if silo else ""),
        "",
        f"Trained with Hansa ({federation.kind}, method `{federation.method.name}`, task `{federation.task.name}`, "
        f"{federation.rounds} rounds, seed {federation.seed}). The training text did not leave the silos.",
        "",
        "## Data",
        "",
        "| silo | training samples | languages or domains |",
        "|---|---:|---|",
        *(f"| {name} | {card.samples():,} | {', '.join(card.groups['train'])} |" for name, card in cards.items()),
        "",
        "## Scores on the test data",
        "",
        f"| | {' | '.join(columns)} |",
        "|---" + "|---:" * len(columns) + "|",
        *(
            f"| {group} | " + " | ".join(f"{values.get(c, float('nan')):.4g}" for c in columns) + " |"
            for group, values in metrics.items()
        ),
        "",
        "## What left the silos",
        "",
        *(f"- {line}" for line in disclosures(federation, facts.get("survey", {"minimum": 0, "silos": {}}))),
        "",
        *(part for line in withdrawal_lines(facts) for part in (line, "")),
        "Versions: " + ", ".join(f"{k} {v}" for k, v in facts.get("versions", {}).items()) + ".",
        "",
    ]
    return "\n".join(lines)
