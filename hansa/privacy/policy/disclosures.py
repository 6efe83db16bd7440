"""What leaves the silos, in words: the administrator's question, answered the same before a run (`hansa check`),
after it (the report) and with the model (its card)."""

from collections.abc import Iterator, Mapping
from typing import Any

from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.tree import federated_vocabulary, protected
from hansa.core.method import Method
from hansa.privacy.dp.prices import exchange_price, update_prices
from hansa.tasks.base import TASKS, Writing


def releases(federation: Federation, survey: Mapping[str, Any] | None = None) -> list[str]:
    """``survey``: what the ledger noted of the silos' word counts and labels; without it, what the file foresees."""
    found = list(_before(federation, survey))
    if federation.kind == "federated" and federation.rounds:
        found += _in_rounds(federation, build_method(federation))
    if federation.kind == "federated":
        found += _personal(federation)
    found.append("At every evaluation: sums of losses and hits on each silo's held-out data.")
    if isinstance(TASKS.build(federation.task), Writing):
        found.append("With BLEU and chrF: how many n-grams of the translations match, and their lengths; no text.")
    return found


def _before(federation: Federation, survey: Mapping[str, Any] | None) -> Iterator[str]:
    if federation.data.deidentify is not None:
        yield (
            f"Before anything reads the text, '{federation.data.deidentify}' replaces the personal details it finds; "
            "'hansa data deidentify --measure' tells how many it finds in annotated text of your own."
        )
    if federation.kind in ("central", "dominant"):
        yield f"Everything: a {federation.kind} run pools the silos' data. It is for comparison only."
    if survey is None and federated_vocabulary(federation):
        minimum = federation.tokenizer.min_count
        yield f"Once, to build the vocabulary: counts of word pieces that a silo has seen at least {minimum} times."
    if survey is not None and survey["minimum"]:
        told, withheld = (sum(s[key] for s in survey["silos"].values()) for key in ("told", "withheld"))
        yield (
            f"Once, to build the vocabulary: counts of {told:,} word pieces that a silo had seen at least "
            f"{survey['minimum']} times; {withheld:,} rarer ones were withheld."
        )
    if survey is not None and any(s["labels"] for s in survey["silos"].values()):
        yield "Once: the names of the labels each silo uses."
    yield "Once: how many samples each silo holds, by language; where lines could not be used, and why."


def _in_rounds(federation: Federation, method: Method) -> Iterator[str]:
    if not method.scope.shares_nothing:
        yield "In every round, from each silo taking part: its model update, mean training loss and step counts."
    if method.exchange is not None:
        yield (
            f"In every round, from each silo taking part to all others: {method.exchange.description}. Such means can "
            "be turned back into text ('hansa audit attack' shows how far)."
        )
        if blurred := exchange_price(federation, federation.rounds):
            yield f"What is exchanged is blurred before it leaves: {blurred.line}."
    if federation.secure_aggregation is not None:
        yield (
            "The updates leave under masks that cancel in their sum: whoever coordinates learns the sum alone. Between "
            "organisations silos check one another's signatures and what they were told (docs/privacy.md). Sample "
            "counts, losses and scores are not masked."
        )
    yield from _blurred(federation)
    if method.hierarchy is not None and method.hierarchy.forwards_layers:
        yield (
            "In every round, on the tree: a node's key layers may be handed on to other nodes (residuals); whom it "
            "listened to, and how much."
        )
    if federation.upload.steps:
        names = "+".join(step.name for step in federation.upload.steps)
        yield f"Of the update, what the upload '{names}' lets through; bytes are measured as they travel."
    if method.upload.selects:
        yield "With it: which tensors were chosen, and how far each tensor moved since the silo's last round."


def _blurred(federation: Federation) -> Iterator[str]:
    for name, cost in update_prices(federation, federation.rounds).items():
        yield f"The updates of '{name}' are clipped and blurred before they leave: {cost.line}."
    seeded = [name for name, settings in protected(federation).items() if not settings.secret]
    if seeded:
        yield (
            f"The noise of {', '.join(seeded)} comes from the seed: whoever knows it can take the noise out again. "
            "That is for simulation; in earnest say privacy.secret: true."
        )


def _personal(federation: Federation) -> Iterator[str]:
    if federation.personal is None:
        return
    yield "At the end: how each silo's own models do on its validation and test data, and the α it chose."
    if federation.personal.nearby:
        yield "Once, at the end: the update of each silo's own model, to find which silos are alike."
