"""The preview of a federation: samples, shares, traffic and warnings. It reads data; it trains and writes nothing."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hansa.config.checks import check
from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import ROOT, repeats, walk
from hansa.config.outline import Branch, outline, ratios
from hansa.config.tree import holders, is_tree
from hansa.core.claims import UNSTATED_SHARE, largest_count
from hansa.core.errors import DataError
from hansa.core.messages import Update
from hansa.core.model_parts import parts
from hansa.core.participation import cohort_size
from hansa.core.tensors import NOTHING
from hansa.models import build
from hansa.models.adapt import adapt
from hansa.preview.annotation import SourceReader, language_warning
from hansa.preview.traffic import Traffic, predict_traffic
from hansa.privacy.dp.prices import update_mechanisms
from hansa.privacy.dp.units import UnitMechanism
from hansa.privacy.policy.disclosures import disclosures
from hansa.privacy.policy.preview import refusals
from hansa.privacy.secure_aggregation.limits import capped
from hansa.runs.topology import check_models
from hansa.tasks.base import TASKS

# There is a warning for a language with more than this share of a round. The Medical paper's rule, max(500, 0.8e-4·N),
# gives its English silo 73% of a round; the rule that the paper rejected, max(100, 1e-4·N), 94%.
DOMINANT = 0.75


@dataclass(frozen=True)
class SiloPreview:
    """The data of one silo, and its share of a round."""

    name: str
    samples: int
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
    parameters: int | None
    traffic: Traffic | None  # of a round, over all silos
    warnings: list[str]

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
            "parameters": self.parameters,
            "traffic_per_round": self.traffic.total if self.traffic else None,
            "traffic": vars(self.traffic) if self.traffic else None,
            "releases": disclosures(self.federation),
            "warnings": self.warnings,
        }

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
        return ratios(self.tree, _weighing(self.federation)) if self.tree is not None else {}


def preview(federation: Federation) -> Preview:
    """Check a federation and read its data.

    Raises `ConfigError` for settings that are refused, and `DataError` for data that cannot be used.
    """
    check(federation)
    silos, times, reader = [], repeats(federation.silos) | {ROOT: 1}, SourceReader(federation)
    warnings: list[str] = []
    units = {n: one for n, one in update_mechanisms(federation).items() if isinstance(one, UnitMechanism)}
    for name, node in holders(federation).items():
        problems, sources = list[str](), dict[str, int]()
        for source in node.sources:
            found, group = reader.read(source, units[name].field if name in units else ""), source.group(name)
            sources[group] = sources.get(group, 0) + found.count
            problems += found.problems
            warnings += [language_warning(name, code, found.texts, other) for code, other in found.foreign.items()]
        count = sum(sources.values())
        if not count:
            raise DataError(
                f"silos.{name}: no training samples are left after reading and splitting the data; give it more rows, "
                "or reduce data.valid and data.test"
            )
        amount = times[name] * (units[name].expected if name in units else federation.train.per_round)(count)
        silos.append(SiloPreview(name, count, amount, None, tuple(problems), sources))
    silos = [replace(s, weight=w) for s, w in zip(silos, _weights(federation, silos), strict=True)]
    parameters, traffic = _model(federation, reader.labels)
    seen = Preview(federation, silos, parameters, traffic, [])
    return replace(seen, warnings=[*filter(None, warnings), *_warnings(seen)])


def _weights(federation: Federation, silos: list[SiloPreview]) -> list[float] | list[None]:
    """Each silo's share of the aggregate; None in trees, and where weights need more than sample counts."""
    method = build_method(federation)
    known = method.weighting.known_before_training and method.aggregator.linear
    if federation.kind != "federated" or not known or is_tree(federation):
        return [None] * len(silos)
    counts, share = [s.samples for s in silos], federation.participation.max_share
    most = max(counts) if share is None else largest_count(counts, share)
    weights = {s.name: _weighing(federation)(min(s.samples, most)) for s in silos}
    cap = federation.secure_aggregation.max_share if federation.secure_aggregation is not None else 1.0
    return list(capped(weights, cap).values())


def _weighing(federation: Federation) -> Callable[[int], float]:
    """The weight of a node by its samples; 1 for all where the method's weights need more than that."""
    weighting = build_method(federation).weighting
    if not weighting.known_before_training:
        return lambda samples: 1.0
    return lambda samples: weighting.weight(Update(NOTHING, samples, 0, 0, 0.0, 0.0))


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


def _capped_weights(seen: Preview) -> list[str]:
    """The silos that secure aggregation gives a smaller weight than the method would."""
    settings = seen.federation.secure_aggregation
    if settings is None or any(silo.weight is None for silo in seen.silos):
        return []
    weigh = _weighing(seen.federation)
    total = sum(weigh(silo.samples) for silo in seen.silos)
    return [
        f"{silo.name} would have {weigh(silo.samples) / total:.0%} of the weight, and secure aggregation gives a silo "
        f"{settings.max_share:.0%} at most; set aggregate.weights.temperature below 1, or 'uniform', to choose the "
        "weights yourself"
        for silo in seen.silos
        if weigh(silo.samples) / total > settings.max_share
    ]


def _model(federation: Federation, labels: tuple[str, ...]) -> tuple[int | None, Traffic | None]:
    """The number of parameters and the traffic of a round; None if the model would have to be downloaded."""
    method, settings = build_method(federation), federation.model
    if settings.preset is None and not Path(str(settings.path)).is_dir():
        return None, None
    task = TASKS.build(federation.task)
    size = 0 if federation.tokenizer.kind == "bytes" else federation.tokenizer.size
    length = federation.data.max_length
    model: Any = build.outline(settings, task.auto, labels, length, size)
    with torch.device("meta"):
        if method.hierarchy is not None:
            method.hierarchy.keys(parts(model))  # raises an error for key layers that do not exist
            if settings.preset is None:
                check_models(federation, method.hierarchy, task.auto, deepcopy(model))
        parameters = sum(p.numel() for p in model.parameters())
        adapt(model, federation.model, federation.seed)
    if federation.kind != "federated":
        return parameters, None
    often, inside = repeats(federation.silos), holders(federation)
    asked = sum(often[name] for name in inside if name in often)
    if federation.participation.count is not None or federation.participation.share < 1.0:
        asked = cohort_size(federation.participation, asked)
    return parameters, predict_traffic(model, method, asked, len(labels), length)
