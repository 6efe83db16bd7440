"""`hansa check`: what a federation file would do. It reads the data and counts; it trains and writes nothing."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from hansa import methods
from hansa.checks import check
from hansa.config import ROOT, Federation, holders, repeats, walk
from hansa.errors import DataError
from hansa.messages import Update
from hansa.methods.fedavg import BySamples, Mean
from hansa.models import build
from hansa.models.parts import parts
from hansa.models.tokenizer import byte_tokenizer
from hansa.outline import Branch, is_tree, outline, ratios
from hansa.privacy.foresee import refusals
from hansa.reading import Reading, language_warning
from hansa.releases import releases
from hansa.tasks import TASKS
from hansa.tensors import NOTHING

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
class Preview:
    federation: Federation
    silos: list[SiloPreview]
    parameters: int | None
    warnings: list[str]

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.federation.name,
            "kind": self.federation.kind,
            "task": self.federation.task.name,
            "method": self.federation.method.name,
            "rounds": self.federation.rounds,
            "silos": [vars(s) for s in self.silos],
            "sampling": self.sampling,
            "parameters": self.parameters,
            "traffic_per_round": self.traffic_per_round,
            "releases": releases(self.federation),
            "warnings": self.warnings,
        }

    @property
    def tree(self) -> Branch | None:
        held = {silo.name: silo.sources for silo in self.silos}
        return outline(self.federation, held) if is_tree(self.federation) else None

    @property
    def sampling(self) -> dict[str, float]:
        """On a tree, how often each source is seen; see outline.py."""
        return ratios(self.tree, _weighing(self.federation)) if self.tree is not None else {}

    @property
    def traffic_per_round(self) -> int | None:
        """Bytes per round, both ways, for the silos that take part."""
        if self.parameters is None:
            return None
        part = self.federation.participation
        asked = sum(repeats(self.federation.silos).values())
        if part.count is not None or part.share < 1.0:
            asked = part.count or max(1, int(part.share * asked + 0.5))
        return 2 * 4 * self.parameters * asked if self.federation.method.name != "alone" else 0


def preview(federation: Federation) -> Preview:
    check(federation)
    silos, times, reading = [], repeats(federation.silos) | {ROOT: 1}, Reading(federation)
    languages: list[str] = []
    for name, node in holders(federation).items():
        problems, sources = list[str](), dict[str, int]()
        for source in node.sources:
            (found, said, foreign), group = reading.source(source), source.group(name)
            sources[group] = sources.get(group, 0) + found
            problems += said
            languages.append(language_warning(name, source, found, foreign))
        count = sum(sources.values())
        if not count:
            raise DataError(f"silos.{name}: no training samples are left after reading and splitting its data")
        amount = times[name] * federation.train.per_round(count)
        silos.append(SiloPreview(name, count, amount, None, tuple(problems), sources))
    silos = [replace(s, weight=w) for s, w in zip(silos, _weights(federation, silos), strict=True)]
    warnings = [*filter(None, languages), *_warnings(federation, silos)]
    return Preview(federation, silos, _parameters(federation), warnings)


def _weights(federation: Federation, silos: list[SiloPreview]) -> list[float] | list[None]:
    """Each silo's share of the aggregate; unknown in trees, and for rules that go by losses or look at each update."""
    method = methods.build(federation)
    by_samples = isinstance(method.weigh, BySamples) and isinstance(method.aggregate, Mean)
    if federation.kind != "federated" or not by_samples or any(node.silos for node in federation.silos.values()):
        return [None] * len(silos)
    weights = [_weighing(federation)(s.samples) for s in silos]
    return [weight / sum(weights) for weight in weights]


def _weighing(federation: Federation) -> Callable[[int], float]:
    """The weight of a node by its samples; where the method goes by something else, all count the same."""
    weigh = methods.build(federation).weigh
    if not isinstance(weigh, BySamples):
        return lambda samples: 1.0
    return lambda samples: weigh.weight(Update(NOTHING, samples, 0, 0, 0.0, 0.0))


def _warnings(federation: Federation, silos: list[SiloPreview]) -> list[str]:
    found = []
    total = sum(s.per_round for s in silos)
    for silo in silos:
        share = silo.per_round / total
        if len(silos) > 2 and share > DOMINANT:
            found.append(
                f"{silo.name} is {share:.0%} of what a round trains on: the others may drown; "
                "lower train.samples.fraction, raise train.samples.floor, or weigh silos with aggregate.weights"
            )
        if len(silos) > 2 and silo.weight is not None and silo.weight > DOMINANT:
            found.append(
                f"{silo.name} is {silo.weight:.0%} of the aggregate: with aggregate.weights.temperature 0.5 silos "
                "count by the square root of their size, with 'uniform' all the same"
            )
    small = [s.name for s in silos if s.samples < federation.train.batch]
    if small and federation.train.samples.epochs is not None:
        found.append(f"fewer samples than one batch of {federation.train.batch}: {', '.join(small)}")
    inner = [name for name, node in walk(federation.silos) if node.silos]
    if federation.kind == "central" and inner:
        found.append("a central run ignores the tree")
    return found + refusals(federation)


def _parameters(federation: Federation) -> int | None:
    """The size of the model, without its values."""
    tree = methods.build(federation).tree
    if federation.model.preset is None:
        return None
    task = TASKS.build(federation.task)
    with torch.device("meta"):
        words = byte_tokenizer()
        labels = tuple(map(str, range(2)))
        model = build.preset(federation.model.preset, task.auto, words, federation.data.max_length, labels=labels)
        if tree is not None:
            tree.keys(parts(model))  # refuses key layers that do not exist
        per_token = model.get_input_embeddings().weight.shape[1]
    extra = 0 if federation.tokenizer.kind == "bytes" else (federation.tokenizer.size - len(words)) * per_token
    return int(sum(p.numel() for p in model.parameters()) + extra)
