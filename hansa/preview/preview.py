"""The preview of a federation: samples, shares, traffic and warnings. It prepares data as a run does."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from hansa.config.checks import check
from hansa.config.defaults import chosen_defaults
from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import repeats, walk
from hansa.config.outline import Branch, outline, ratios
from hansa.config.tree import holders, is_tree
from hansa.core.claims import UNSTATED_SHARE
from hansa.core.participation import cohort_size
from hansa.data.spellings import spelling_warnings
from hansa.models.adapt import adapt
from hansa.preview.annotation import SourceReader, language_warning
from hansa.preview.foresight import Foreseen, foresee
from hansa.preview.resources import LARGE, Resources, predict_resources
from hansa.preview.traffic import Traffic, predict_traffic
from hansa.privacy.policy.disclosures import disclosures
from hansa.privacy.policy.preview import refusals
from hansa.runs.shares import silo_shares, weighing
from hansa.tasks.base import TASKS

# There is a warning for a language with more than this share of a round. The Medical paper's rule, max(500, 0.8e-4·N),
# gives its English silo 73% of a round; the rule that the paper rejected, max(100, 1e-4·N), 94%.
DOMINANT = 0.75
MOST_NAMED = 5  # silos named in a warning
FEW = 20  # validation or test samples below which a silo's score says little


@dataclass(frozen=True)
class SiloPreview:
    """The data of one silo, and its share of a round."""

    name: str
    samples: int  # for training
    valid: int
    test: int
    per_round: int
    weight: float | None  # its share of the aggregate; None if that depends on more than sample counts
    problems: tuple[str, ...]
    sources: dict[str, int]  # samples by language


@dataclass(frozen=True)
class LanguagePreview:
    """The share of a language in a round, over all silos."""

    samples: int
    share: float  # of the training samples of a round
    weight: float | None


@dataclass(frozen=True)
class Preview:
    """What `hansa check` shows."""

    federation: Federation
    silos: list[SiloPreview]
    foreseen: Foreseen
    traffic: Traffic | None  # of a round, over all silos
    warnings: list[str]
    resources: Resources | None = None  # of a silo's round, for large models or on request

    def as_dict(self) -> dict[str, Any]:
        """The preview as JSON values."""
        return {
            "name": self.federation.name,
            "kind": self.federation.kind,
            "task": self.federation.task.name,
            "method": self.federation.method.name,
            "rounds": self.federation.rounds,
            "silos": [vars(s) for s in self.silos],
            "languages": {name: vars(share) for name, share in self.languages.items()},
            "sampling": self.sampling,
            "claims": self.claims,
            "samples_are": "samples" if self.foreseen.exact else "texts",
            "labels": list(self.foreseen.labels),
            "parameters": self.parameters,
            "defaults": [vars(one) for one in chosen_defaults(self.federation)],
            "notes": self.foreseen.notes,
            "traffic_per_round": self.traffic.total if self.traffic else None,
            "traffic": vars(self.traffic) if self.traffic else None,
            "resources": vars(self.resources) if self.resources else None,
            "releases": disclosures(self.federation),
            "warnings": self.warnings,
        }

    @property
    def parameters(self) -> int | None:
        """The number of parameters; None if the model would have to be downloaded."""
        return self.foreseen.parameters

    @property
    def languages(self) -> dict[str, LanguagePreview]:
        """The share of every language."""
        total = sum(s.per_round for s in self.silos)
        texts = shares(self.silos, lambda silo: silo.samples)
        of_round = shares(self.silos, lambda silo: silo.per_round / total)
        weights = shares(self.silos, lambda silo: silo.weight or 0.0)
        known = all(silo.weight is not None for silo in self.silos)
        return {
            name: LanguagePreview(round(texts[name]), of_round[name], weights[name] if known else None)
            for name in texts
        }

    @property
    def claims(self) -> str:
        """How far the weight of a silo may follow the number of samples that it claims."""
        share = self.federation.participation.max_share
        if self.federation.secure_aggregation is not None:
            return "under secure aggregation each silo weighs its own update by the samples that it announces"
        if share is not None:
            return f"no silo counts more than {share:.0%} of all training samples, whatever it claims"
        return (
            "a silo's weight follows the samples that it claims when the run begins, without a bound; between "
            f"organisations a silo that claims more than {UNSTATED_SHARE:.0%} of all is left out "
            "(participation.max_share sets a bound)"
        )

    @property
    def tree(self) -> Branch | None:
        """The tree of nodes with their samples; None if the federation is flat."""
        held = {silo.name: silo.sources for silo in self.silos}
        return outline(self.federation, held) if is_tree(self.federation) else None

    @property
    def sampling(self) -> dict[str, float]:
        """On a tree, the effective sampling ratio of every source; see `hansa.config.outline`."""
        return ratios(self.tree, weighing(self.federation)) if self.tree is not None else {}


def preview(federation: Federation, resources: bool = False) -> Preview:
    """Check a federation and prepare its data as a run would; what was prepared is kept in the silos' cache.

    ``resources``: predict memory and time also where the model is small.

    Raises `ConfigError` for settings that are refused, and `DataError` for data that cannot be used.
    """
    check(federation)
    foreseen, reader = foresee(federation), SourceReader(federation)
    warnings = [
        language_warning(name, code, texts, other)
        for name, node in holders(federation).items()
        for source in node.sources
        for code, (texts, other) in reader.foreign(source).items()
    ]
    if foreseen.labels:
        warnings += spelling_warnings(reader.label_counts())
    silos = [
        SiloPreview(
            one.name,
            one.samples,
            card.samples("valid"),
            card.samples("test"),
            one.per_round,
            one.weight,
            card.problems,
            dict(card.groups["train"]),
        )
        for one, card in zip(silo_shares(federation, foreseen.cards), foreseen.cards.values(), strict=True)
    ]
    traffic, needed = None, None
    if foreseen.model is not None:
        with torch.device("meta"):
            adapted = adapt(foreseen.model, federation.model, federation.seed)
        traffic = _traffic(federation, foreseen, adapted)
        if resources or (foreseen.parameters or 0) >= LARGE:
            needed = predict_resources(adapted, federation, TASKS.build(federation.task), *_longest(silos, foreseen))
    seen = Preview(federation, silos, foreseen, traffic, [], needed)
    return replace(seen, warnings=[*filter(None, warnings), *foreseen.warnings, *_warnings(seen)])


def _longest(silos: list[SiloPreview], foreseen: Foreseen) -> tuple[int, float | None]:
    """Samples of a round, and mean tokens of a sample where they are known, of the silo that has most to train on."""
    most = max(silos, key=lambda silo: silo.per_round * foreseen.tokens.get(silo.name, 1.0))
    return most.per_round, foreseen.tokens.get(most.name)


def shares(silos: list[SiloPreview], share: Callable[[SiloPreview], float]) -> dict[str, float]:
    """Split a share of every silo by language and add up over silos; a silo without a language counts as one."""
    found: dict[str, float] = {}
    for silo in silos:
        for name, count in silo.sources.items():
            found[name] = found.get(name, 0.0) + share(silo) * count / silo.samples
    return found


def _warnings(seen: Preview) -> list[str]:
    federation, silos, found = seen.federation, seen.silos, list[str]()
    for name, what, share, weight in _shares(seen) if len(silos) > 2 else ():
        if share > DOMINANT:
            found.append(
                f"{name} has {share:.0%} of the training samples of a round, and the model may learn little of other "
                f"{what}; lower train.samples.fraction, raise train.samples.floor, or set aggregate.weights"
            )
        if (weight or 0.0) > DOMINANT:
            found.append(
                f"{name} has {weight:.0%} of the aggregate weight; set aggregate.weights.temperature to "
                "0.5 to weigh silos by the square root of their samples, or aggregate.weights to 'uniform'"
            )
    found += _capped_weights(seen)
    small = [s.name for s in silos if s.samples < federation.train.batch]
    if small and federation.train.samples.epochs is not None:
        found.append(f"these silos have fewer samples than one batch of {federation.train.batch}: {', '.join(small)}")
    exchange = build_method(federation).exchange
    floor = exchange.min_samples if exchange is not None else 0
    silent = [s.name for s in silos if s.samples < floor]
    if silent and federation.kind == "federated":
        found.append(
            f"these silos have fewer than {floor} samples, the least behind what the method shares, and share no "
            f"knowledge: {', '.join(silent)}"
        )
    found += [*_few_held_out(seen), *_limited(seen)]
    inner = [name for name, node in walk(federation.silos) if node.silos]
    if federation.kind == "central" and inner:
        found.append("a central run pools all data and ignores the regions of the tree")
    return found + refusals(federation)


def _shares(seen: Preview) -> Iterator[tuple[str, str, float, float | None]]:
    """Name, kind, share of a round and weight of every language, where there are several; else of every silo."""
    languages = seen.languages
    if len(languages) > 1:
        yield from ((name, "languages", one.share, one.weight) for name, one in languages.items())
        return
    total = sum(silo.per_round for silo in seen.silos)
    yield from ((silo.name, "silos", silo.per_round / total, silo.weight) for silo in seen.silos)


def _few_held_out(seen: Preview) -> list[str]:
    """Silos with so few validation or test samples that a score of theirs is mostly chance."""
    few = [
        f"{silo.name} ({silo.valid} validation, {silo.test} test)"
        for silo in seen.silos
        if 0 < silo.valid < FEW or 0 < silo.test < FEW
    ]
    if not few:
        return []
    more = f" and {len(few) - MOST_NAMED} more" if len(few) > MOST_NAMED else ""
    return [
        f"these silos have fewer than {FEW} samples to be evaluated on, and their own scores are mostly chance: "
        f"{', '.join(few[:MOST_NAMED])}{more}; raise data.valid and data.test, or name files with more rows"
    ]


def _limited(seen: Preview) -> list[str]:
    """Silos whose limit on training rows leaves far more rows for evaluation."""
    limited = {
        name
        for name, node in holders(seen.federation).items()
        if any(source.limit and source.held_out_limit is None for source in node.sources)
    }
    cards = seen.foreseen.cards
    slow = [name for name in limited if cards[name].samples("test") > 2 * max(1, cards[name].samples())]
    return [
        f"{name}: 'limit' is for training rows alone, and it is evaluated on {cards[name].samples('test'):,} test "
        "samples: set held_out_limit, too, for a quick try"
        for name in sorted(slow)
    ]


def _capped_weights(seen: Preview) -> list[str]:
    """The silos that secure aggregation gives a smaller weight than the method would."""
    settings = seen.federation.secure_aggregation
    if settings is None or any(silo.weight is None for silo in seen.silos):
        return []
    weigh = weighing(seen.federation)
    total = sum(weigh(silo.samples) for silo in seen.silos)
    return [
        f"{silo.name} would have {weigh(silo.samples) / total:.0%} of the weight, and secure aggregation gives a silo "
        f"{settings.max_share:.0%} at most; set aggregate.weights.temperature below 1, or 'uniform', to choose the "
        "weights yourself"
        for silo in seen.silos
        if weigh(silo.samples) / total > settings.max_share
    ]


def _traffic(federation: Federation, foreseen: Foreseen, adapted: Any) -> Traffic | None:
    """The traffic of a round; None for baselines, which send nothing."""
    if federation.kind != "federated":
        return None
    method = build_method(federation)
    often, inside = repeats(federation.silos), holders(federation)
    asked = sum(often[name] for name in inside if name in often)
    if federation.participation.count is not None or federation.participation.share < 1.0:
        asked = cohort_size(federation.participation, asked)
    return predict_traffic(adapted, method, asked, len(foreseen.labels), federation.data.max_length)
