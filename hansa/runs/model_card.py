"""The model card: what a person who takes the model away should know."""

from collections.abc import Mapping
from typing import Any

from hansa.config.federation import Federation
from hansa.core.messages import DataCard, NodeId
from hansa.privacy.policy.disclosures import releases


def model_card(
    federation: Federation,
    cards: Mapping[NodeId, DataCard],
    metrics: Mapping[str, Mapping[str, float]],
    facts: Mapping[str, Any],
    silo: str,
) -> str:
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
        f"{federation.rounds} rounds, seed {federation.seed}) while the text of every silo stayed where it is.",
        "",
        "## Data",
        "",
        "| silo | training samples | languages or domains |",
        "|---|---:|---|",
        *(f"| {name} | {card.samples():,} | {', '.join(card.groups['train'])} |" for name, card in cards.items()),
        "",
        "## Figures on the held-out test data",
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
        *(f"- {line}" for line in releases(federation, facts.get("survey", {"minimum": 0, "silos": {}}))),
        "",
        "Versions: " + ", ".join(f"{k} {v}" for k, v in facts.get("versions", {}).items()) + ".",
        "",
    ]
    return "\n".join(lines)
