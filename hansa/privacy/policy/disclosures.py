"""What leaves the silos of a federation, in words: for `hansa check`, the report and the model card.

The sentences follow from what the slots of the method declare (`hansa.core.method`) and from the privacy mechanisms
(`Exchange.release`, `UpdateMechanism`), so that a method of a plug-in gets the same disclosures as a built-in one.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.tree import families, federated_vocabulary, is_tree, masked_families, mixtures
from hansa.core.method import Exchange, Method
from hansa.privacy.dp.accounting import composed, price
from hansa.privacy.dp.distributed import DistributedMechanism, distributed_mechanism
from hansa.privacy.dp.prices import update_mechanisms, update_prices
from hansa.privacy.dp.units import UnitMechanism
from hansa.tasks.base import TASKS, GenerationTask, LabelledTask, discovery_of

SEEDED = (
    "is drawn from the federation's seed, and anyone who knows the seed can subtract it: that is for simulations; "
    "leave 'seeded' out to draw it from the operating system."
)


def disclosures(federation: Federation, survey: Mapping[str, Any] | None = None, silo: str | None = None) -> list[str]:
    """What leaves the silos, one sentence for each release.

    ``survey``: what the ledger of a run states about the word counts and labels that the silos sent; without it
    the sentences follow from the federation file alone. ``silo``: leave out what concerns the noise of other silos.
    """
    if federation.kind == "survey":
        return list(survey_disclosures(federation))
    found = [f"In a survey ('hansa survey'): {line}" for line in survey_disclosures(federation) if federation.survey]
    found += _before_training(federation, survey)
    if federation.kind == "federated" and federation.rounds:
        found += _in_rounds(federation, build_method(federation), silo)
    if federation.kind == "federated":
        found += _personal(federation)
    found.append("At every evaluation: sums of losses and scores on each silo's held-out data.")
    if isinstance(task := TASKS.build(federation.task), GenerationTask):
        found.append(task.disclosure)
    return found


def survey_disclosures(federation: Federation) -> Iterator[str]:
    """What leaves the silos in a survey: each release with its mechanism and its price."""
    settings, task = federation.surveyed, TASKS.build(federation.task)
    price = "no noise, so that no ε bounds what several surveys tell about a row"
    yield (
        f"Once: how many rows each silo has, by split, by length in words and characters (in powers of two) and by "
        f"language, and how many different words at least {settings.floor} rows have. Mechanism: a count of fewer than "
        f"{settings.floor} rows is withheld, and others are rounded down to a multiple of it. Price: {price}."
    )
    if settings.labels and task.needs_labels:
        yield (
            f"Once: how many rows have each label, for labels that at least {settings.floor} rows have. Mechanism and "
            "price: the same."
        )
    if settings.sketches:
        yield (
            f"Once: MinHash sketches of the words that at least {settings.floor} rows have, and of at most "
            f"{settings.max_documents:,} documents. Mechanism: every word and every three words in a row are hashed "
            "under a key that the silos agree on and the coordinator does not know. Price: the coordinator learns "
            "which sketches are equal or similar, and how many there are; a silo that gives it the key lets it test "
            "texts that it knows."
        )


def _before_training(federation: Federation, survey: Mapping[str, Any] | None) -> Iterator[str]:
    if federation.data.deidentify is not None:
        yield (
            f"Before the text is used, '{federation.data.deidentify}' replaces the personal details that it finds; "
            "'hansa data deidentify --measure' measures on annotated text how many it finds."
        )
    if federation.kind in ("central", "dominant"):
        yield f"All data: a {federation.kind} run pools the silos' data. Use it for comparison only."
    if survey is None and federated_vocabulary(federation):
        min_count = federation.tokenizer.min_count
        yield (
            f"Once, to build the vocabulary: the words, numbers and punctuation marks that at least {min_count} rows "
            "of a silo have, each with the number of these rows (whole words, not sub-words)."
        )
    if survey is not None and survey["minimum"]:
        sent, withheld = (sum(s[key] for s in survey["silos"].values()) for key in ("told", "withheld"))
        yield (
            f"Once, to build the vocabulary: {sent:,} words with counts, that at least {survey['minimum']} "
            f"rows of a silo had; {withheld:,} rarer ones were withheld."
        )
    if survey is None and (rows := _label_rows(federation)):
        few = "" if rows == 1 else f" that at least {rows} of its rows have"
        yield f"Once, since task.labels lists none: the names of the labels of each silo{few}."
    if survey is not None and any(s["labels"] for s in survey["silos"].values()):
        yield "Once: the names of the labels that each silo uses."
    yield "Once: how many samples each silo holds, by language; which rows could not be used, and why."


def _label_rows(federation: Federation) -> int:
    """The least number of rows behind a label name that silos report; 0: they report none."""
    task = TASKS.build(federation.task)
    if not task.needs_labels or cast(LabelledTask, task).labels:
        return 0
    return discovery_of(task).min_rows if discovery_of(task).allowed else 1


def _in_rounds(federation: Federation, method: Method, silo: str | None) -> Iterator[str]:
    if not method.scope.shares_nothing:
        yield "In every round, from each silo taking part: its model update, mean training loss and step counts."
    if method.shared_state is not None:
        yield (
            "In every round, from each silo taking part: its contribution to the state that the method shares with the "
            "server."
        )
    if method.exchange is not None:
        yield from _exchange(method.exchange, federation.rounds)
    yield from _masking(federation, method)
    for name in mixtures(federation):
        yield (
            f"'{name}' trains on the text of all silos below it ('mixture'): in a simulation alone; between "
            "organisations it is refused."
        )
    yield from _noise(federation, silo)
    if method.hierarchy is not None and method.hierarchy.forwards_layers:
        residuals = "key layers of a node may be forwarded to other nodes (residuals), and "
        yield (
            f"In every round, on the tree: {'' if federation.secure_aggregation is not None else residuals}each node "
            "reports its attention weights."
        )
    if method.upload.selects or method.upload.lossy:
        names = "+".join(step.name for step in federation.upload.steps)
        by = f" by the upload '{names}'" if names else ""
        yield f"The update is compressed{by} before it leaves; bytes are counted as they are sent."
    if method.upload.selects:
        yield "With the update: which tensors were chosen, and how far each tensor moved since the silo's last round."


def _masking(federation: Federation, method: Method) -> Iterator[str]:
    settings = federation.secure_aggregation
    if settings is None:
        return
    yield (
        "The updates are masked (secure aggregation): the server learns only their sum. Between organisations, the "
        "silos verify one another's signatures (docs/privacy.md). "
        + (
            "Losses, step counts and scores are masked too: only their sums over the silos are known."
            if settings.metrics
            else "Sample counts, losses and scores are not masked."
        )
    )
    yield (
        f"A silo weighs at most {settings.max_share:.0%} of a sum; what it has beyond that goes to the others in "
        f"proportion. A sum has {settings.min_cohort} silos or more."
    )
    masked = masked_families(federation)
    for family in families(federation):
        if is_tree(federation) and family.name not in masked:
            regions = ", ".join(family.children)
            yield (
                f"Each of {regions} aggregates its silos under masks, and its mean goes up unmasked: "
                f"{len(family.children)} regions are too few to hide in."
            )
    if method.hierarchy is not None and method.hierarchy.keys_travel:
        yield (
            "On the tree the backbone is masked. Key layers travel unmasked, because attention needs each child's (a "
            "policy refuses them with 'layers: false'). Residuals are not used where updates are masked."
        )


def _exchange(exchange: Exchange, rounds: int) -> Iterator[str]:
    yield (
        f"In every round, from each silo taking part to all others: {exchange.description}. Text can be reconstructed "
        "from such knowledge ('hansa audit attack' measures how much)."
    )
    if exchange.release is None:
        return
    yield f"Noise is added to the shared knowledge before it leaves: {price(exchange.release, rounds).line}."
    if exchange.release.seeded:
        yield f"The noise of the shared knowledge {SEEDED}"


def _noise(federation: Federation, silo: str | None) -> Iterator[str]:
    distributed = distributed_mechanism(federation)
    if distributed is not None:
        yield from _distributed(distributed, federation.rounds)
        return
    mechanisms = {name: one for name, one in update_mechanisms(federation).items() if silo in (None, name)}
    for name, spent in update_prices(federation, federation.rounds).items():
        if name in mechanisms:
            yield f"The updates of '{name}' are clipped and noise is added before they leave: {spent.line}."
    inside = [name for name, one in mechanisms.items() if isinstance(one, UnitMechanism)]
    if inside:
        yield f"The training loss of {', '.join(inside)} does not leave."
    seeded = [name for name, mechanism in mechanisms.items() if mechanism.seeded]
    if seeded:
        yield f"The noise of {', '.join(seeded)} {SEEDED}"


def _distributed(mechanism: DistributedMechanism, rounds: int) -> Iterator[str]:
    """Noise in shares: the price of the sums, what remains of it if silos collude, and what may go wrong."""
    smallest, cohort = mechanism.smallest, mechanism.cohort
    yield (
        f"Every update is clipped to norm {mechanism.settings.clip:g} and gets a share of noise before it is masked; "
        f"the sum of the fewest silos that can be unmasked ({smallest} of {cohort}) carries all of it: "
        f"{price(mechanism, rounds).line}."
    )
    half = smallest // 2
    less = composed([mechanism.event(rounds, half)], mechanism.delta)
    yield (
        f"If c silos give their share of the noise to the server, the noise in the sum shrinks by √(({smallest} − "
        f"c)/{smallest}): ε = {less:,.3g} with c = {half}."
    )
    yield (
        f"The probability that a round's sum wraps around, which spoils the round and not privacy, is at most "
        f"{max(mechanism.wrap_probability(), 1e-99):.1g}."
    )
    if mechanism.seeded:
        yield f"The noise {SEEDED}"


def _personal(federation: Federation) -> Iterator[str]:
    if federation.personal is None:
        return
    yield "At the end: the scores of each silo's personal models on its validation and test data, and its chosen α."
    if federation.personal.nearby:
        yield "Once, at the end: the update of each silo's personal model, to find similar silos."
