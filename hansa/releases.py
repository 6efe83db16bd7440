"""What leaves the silos, in words: the administrator's question, answered the same before a run (`hansa check`),
after it (the report) and with the model (its card)."""

from collections.abc import Mapping
from typing import Any

from hansa import methods
from hansa.config import Federation, protected
from hansa.privacy import release
from hansa.privacy.update import spent


def releases(federation: Federation, survey: Mapping[str, Any] | None = None) -> list[str]:
    """``survey``: what the ledger noted of the silos' word counts and labels; without it, what the file foresees."""
    found = []
    if federation.data.deidentify is not None:
        found.append(
            f"Before anything reads the text, '{federation.data.deidentify}' replaces the personal details it finds; "
            "'hansa data deidentify --measure' tells how many it finds in annotated text of your own."
        )
    if federation.kind == "central":
        found.append("Everything: a central run pools the silos' data. It is for comparison only.")
    if survey is None and federated_vocabulary(federation):
        minimum = federation.tokenizer.minimum
        found.append(
            f"Once, to build the vocabulary: counts of word pieces that a silo has seen at least {minimum} times."
        )
    if survey is not None and survey["minimum"]:
        told, withheld = (sum(s[key] for s in survey["silos"].values()) for key in ("told", "withheld"))
        found.append(
            f"Once, to build the vocabulary: counts of {told:,} word pieces that a silo had seen at least "
            f"{survey['minimum']} times; {withheld:,} rarer ones were withheld."
        )
    if survey is not None and any(s["labels"] for s in survey["silos"].values()):
        found.append("Once: the names of the labels each silo uses.")
    found.append("Once: how many samples each silo holds, by language; where lines could not be used, and why.")
    if federation.kind == "federated" and federation.method.name != "alone" and federation.rounds:
        found.append(
            "In every round, from each silo taking part: its model update, mean training loss and step counts."
        )
    exchange = methods.build(federation).exchange if federation.kind == "federated" and federation.rounds else None
    if exchange is not None:
        found.append(
            f"In every round, from each silo taking part to all others: {exchange.says}. Such means can be turned "
            "back into text ('hansa audit attack' shows how far)."
        )
        if blurred := release.spent(federation, federation.rounds):
            found.append(f"What is exchanged is blurred before it leaves: {blurred.line}.")
    if federation.secure is not None and federation.kind == "federated":
        found.append(
            "The updates leave under masks that cancel in their sum: whoever coordinates learns the sum alone. Between "
            "organisations silos check one another's signatures and what they were told (docs/privacy.md). Sample "
            "counts, losses and scores are not masked."
        )
    for name, cost in spent(federation, federation.rounds).items():
        found.append(f"The updates of '{name}' are clipped and blurred before they leave: {cost.line}.")
    seeded = [name for name, settings in protected(federation).items() if not settings.secret]
    if seeded:
        found.append(
            f"The noise of {', '.join(seeded)} comes from the seed: whoever knows it can take the noise out again. "
            "That is for simulation; in earnest say privacy.secret: true."
        )
    if federation.kind == "federated" and federation.method.name == "worldlm" and federation.rounds:
        found.append(
            "In every round, on the tree: a node's key layers may be handed on to other nodes (residuals); whom it "
            "listened to, and how much."
        )
    if federation.kind == "federated" and federation.upload.steps:
        names = "+".join(step.name for step in federation.upload.steps)
        found.append(f"Of the update, what the upload '{names}' lets through; bytes are measured as they travel.")
        if any(name in names.split("+") for name in ("active", "calm", "random")):
            found.append(
                "With it: which tensors were chosen, and how far each tensor moved since the silo's last round."
            )
    personal = federation.personal if federation.kind == "federated" else None
    if personal is not None:
        found.append("At the end: how each silo's own models do on its validation and test data, and the α it chose.")
        if personal.nearby:
            found.append("Once, at the end: the update of each silo's own model, to find which silos are alike.")
    found.append("At every evaluation: sums of losses and hits on each silo's held-out data.")
    if federation.task.name == "translate":
        found.append("With BLEU and chrF: how many n-grams of the translations match, and their lengths; no text.")
    return found


def federated_vocabulary(federation: Federation) -> bool:
    """Whether the tokeniser is built from the silos' word counts."""
    settings = federation.tokenizer
    return settings.kind == "federated" or (
        settings.kind is None and settings.path is None and federation.model.path is None
    )
