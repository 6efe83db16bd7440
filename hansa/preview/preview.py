"""`hansa check`: what a federation file would do. It reads the data and counts; it trains and writes nothing."""

from collections.abc import Callable
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
from hansa.core.errors import DataError
from hansa.core.messages import Update
from hansa.core.model_parts import parts
from hansa.core.participation import cohort_size
from hansa.core.tensors import NOTHING
from hansa.methods.fedavg import BySamples, Mean
from hansa.models import build
from hansa.models.adapt import adapt
from hansa.models.tokenizer import byte_tokenizer
from hansa.preview.annotation import Reading, language_warning
from hansa.preview.traffic import Traffic, foretell
from hansa.privacy.policy.disclosures import disclosures
from hansa.privacy.policy.preview import refusals
from hansa.runs.topology import check_models
from hansa.tasks.base import TASKS

# A silo with more than this share of a round is named. The Medical paper's rule, max(500, 0.8e-4·N), gives its English
# silo 73% of a round; the one it gave up, max(100, 1e-4·N), 94%.
DOMINANT = 0.75


@dataclass(frozen=True)
class SiloPreview:
    name: str
    samples: int
    per_round: int
    weight: float | None  # its share of the aggregate, where that depends on sample counts alone
    problems: tuple[str, ...]
    sources: dict[str, int]  # its samples by language


@dataclass(frozen=True)
class LanguagePreview:
    """What a language has of a round, over all silos."""

    samples: int
    share: float  # of what a round trains on
    weight: float | None


@dataclass(frozen=True)
class Preview:
    federation: Federation
    silos: list[SiloPreview]
    parameters: int | None
    traffic: Traffic | None  # of a round, in all
    warnings: list[str]

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.federation.name,
            "kind": self.federation.kind,
            "task": self.federation.task.name,
            "method": self.federation.method.name,
            "rounds": self.federation.rounds,
            "silos": [vars(s) for s in self.silos],
            "languages": {name: vars(share) for name, share in self.languages.items()},
            "sampling": self.sampling,
            "parameters": self.parameters,
            "traffic_per_round": self.traffic.total if self.traffic else None,
            "traffic": vars(self.traffic) if self.traffic else None,
            "releases": disclosures(self.federation),
            "warnings": self.warnings,
        }

    @property
    def languages(self) -> dict[str, "LanguagePreview"]:
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
    def tree(self) -> Branch | None:
        held = {silo.name: silo.sources for silo in self.silos}
        return outline(self.federation, held) if is_tree(self.federation) else None

    @property
    def sampling(self) -> dict[str, float]:
        """On a tree, how often each source is seen; see outline.py."""
        return ratios(self.tree, _weighing(self.federation)) if self.tree is not None else {}


def preview(federation: Federation) -> Preview:
    check(federation)
    silos, times, reading = [], repeats(federation.silos) | {ROOT: 1}, Reading(federation)
    warned: list[str] = []
    for name, node in holders(federation).items():
        problems, sources = list[str](), dict[str, int]()
        for source in node.sources:
            (found, said, foreign), group = reading.source(source), source.group(name)
            sources[group] = sources.get(group, 0) + found
            problems += said
            warned += [language_warning(name, language, found, seen) for language, seen in foreign.items()]
        count = sum(sources.values())
        if not count:
            raise DataError(f"silos.{name}: no training samples are left after reading and splitting its data")
        amount = times[name] * federation.train.per_round(count)
        silos.append(SiloPreview(name, count, amount, None, tuple(problems), sources))
    silos = [replace(s, weight=w) for s, w in zip(silos, _weights(federation, silos), strict=True)]
    parameters, traffic = _model(federation, reading.labels)
    seen = Preview(federation, silos, parameters, traffic, [])
    return replace(seen, warnings=[*filter(None, warned), *_warnings(seen)])


def _weights(federation: Federation, silos: list[SiloPreview]) -> list[float] | list[None]:
    """Each silo's share of the aggregate; unknown in trees, and for rules that go by losses or look at each update."""
    method = build_method(federation)
    by_samples = isinstance(method.weighting, BySamples) and isinstance(method.aggregator, Mean)
    if federation.kind != "federated" or not by_samples or is_tree(federation):
        return [None] * len(silos)
    weights = [_weighing(federation)(s.samples) for s in silos]
    return [weight / sum(weights) for weight in weights]


def _weighing(federation: Federation) -> Callable[[int], float]:
    """The weight of a node by its samples; where the method goes by something else, all count the same."""
    weighting = build_method(federation).weighting
    if not isinstance(weighting, BySamples):
        return lambda samples: 1.0
    return lambda samples: weighting.weight(Update(NOTHING, samples, 0, 0, 0.0, 0.0))


def shares(silos: list[SiloPreview], share: Callable[[SiloPreview], float]) -> dict[str, float]:
    """What every language has of a share, over all silos; a silo that nobody gave a language stands for its own."""
    found: dict[str, float] = {}
    for silo in silos:
        for name, count in silo.sources.items():
            found[name] = found.get(name, 0.0) + share(silo) * count / silo.samples
    return found


def _warnings(seen: Preview) -> list[str]:
    federation, silos, found = seen.federation, seen.silos, list[str]()
    for name, language in seen.languages.items() if len(silos) > 2 else ():
        if language.share > DOMINANT:
            found.append(
                f"{name} is {language.share:.0%} of what a round trains on: the others may drown; "
                "lower train.samples.fraction, raise train.samples.floor, or weigh silos with aggregate.weights"
            )
        if (language.weight or 0.0) > DOMINANT:
            found.append(
                f"{name} is {language.weight:.0%} of the aggregate: with aggregate.weights.temperature 0.5 silos "
                "count by the square root of their size, with 'uniform' all the same"
            )
    small = [s.name for s in silos if s.samples < federation.train.batch]
    if small and federation.train.samples.epochs is not None:
        found.append(f"fewer samples than one batch of {federation.train.batch}: {', '.join(small)}")
    floor = getattr(build_method(federation).exchange, "floor", 0)
    silent = [s.name for s in silos if s.samples < floor]
    if silent and federation.kind == "federated":
        found.append(f"fewer samples than method.floor {floor}, so these will tell nothing: {', '.join(silent)}")
    inner = [name for name, node in walk(federation.silos) if node.silos]
    if federation.kind == "central" and inner:
        found.append("a central run ignores the tree")
    return found + refusals(federation)


def _model(federation: Federation, labels: tuple[str, ...]) -> tuple[int | None, Traffic | None]:
    """The size of the model, and what of it a round sends; its values are not needed."""
    method, settings = build_method(federation), federation.model
    if settings.preset is None and not Path(str(settings.path)).is_dir():
        return None, None  # it would have to be fetched
    task = TASKS.build(federation.task)
    size = 0 if federation.tokenizer.kind == "bytes" else federation.tokenizer.size
    with torch.device("meta"):
        words, length = byte_tokenizer(), federation.data.max_length
        model: Any
        if settings.preset is not None:
            model = build.preset(settings.preset, task.auto, words, length, labels=labels, entries=size)
        else:
            model = build.load(str(settings.path), task.auto, labels, fresh=True)
        if method.hierarchy is not None:
            method.hierarchy.keys(parts(model))  # refuses key layers that do not exist
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
    return parameters, foretell(model, method, asked, len(labels), length)
