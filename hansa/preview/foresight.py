"""What a run would begin with, found by the code of the run: tokenizer, labels, data cards, the outline of the model.

`foresee` goes through the first steps of a run in a temporary folder (`hansa.runs.start`), with silos in this process
and without weights. Samples that are tokenised on the way stay in the silos' cache, where the run finds them. Two cases
differ. Where the model must be downloaded first, nothing is tokenised: a text counts as one sample. Pairs of entities
(`DerivingTask`) are counted and not all encoded.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import ROOT, repeats
from hansa.config.tree import federated_vocabulary, holders
from hansa.core.messages import DataCard, NodeId
from hansa.core.model_parts import parts
from hansa.data.examples import Examples
from hansa.links.local import LocalLink
from hansa.models import build, folder
from hansa.preview.annotation import SourceReader
from hansa.privacy.dp.prices import update_mechanisms
from hansa.privacy.dp.units import UnitMechanism
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.enrolment import check_cards
from hansa.runs.ledger import Ledger
from hansa.runs.start import agree, describe, head_lines, watched_setting, write_labels
from hansa.runs.topology import check_models
from hansa.tasks.base import TASKS, DerivingTask


@dataclass(frozen=True)
class Foreseen:
    """What a run would begin with."""

    cards: Mapping[NodeId, DataCard]
    labels: tuple[str, ...] = ()  # the model's classes
    model: Any = None  # on the device meta; None if it would have to be downloaded
    parameters: int | None = None
    tokens: Mapping[NodeId, float] = field(default_factory=dict)  # of a training sample, the mean; {}: not known
    exact: bool = True  # False: a text counts as one sample, because the tokenizer is not on this machine
    notes: list[str] = field(default_factory=list)  # about the model
    warnings: list[str] = field(default_factory=list)


def foresee(federation: Federation) -> Foreseen:
    """Begin a run without weights; raises `ConfigError` and `DataError` as the run would."""
    reader = SourceReader(federation)
    if not _at_hand(federation):
        return Foreseen(_read(federation, reader), reader.labels, exact=False)
    task = TASKS.build(federation.task)
    with TemporaryDirectory() as temporary:
        directory, events = RunDirectory(Path(temporary)), RunEvents()
        host = SiloHost(Runtime(federation, directory.path))
        # What a policy says of a request is another line of the preview: here the silos answer.
        link = LocalLink(lambda name: host.silo(name).answer)
        ledger = Ledger(directory.path)
        try:
            agreed = agree(federation, task, link, ledger, events)
            length = federation.data.max_length
            model = build.outline(federation.model, task.auto, agreed.labels, length, agreed.tokenizer)
            _check_tree(federation, task.auto, model)
            directory.start.mkdir()
            agreed.tokenizer.save_pretrained(directory.start)
            model.config.save_pretrained(directory.start)
            folder.tidy(directory.start)
            write_labels(directory.start, agreed.labels)
            if isinstance(task, DerivingTask):
                cards, tokens = _read(federation, reader), dict[NodeId, float]()
            else:
                cards = describe(federation, directory, link, ledger, events)
                tokens = {name: _mean_tokens(host.silo(name).resident.examples("train")) for name in cards}
        finally:
            ledger.close()
    parameters = sum(p.numel() for p in model.parameters())
    notes = head_lines(federation, model, agreed.labels)
    return Foreseen(cards, agreed.labels, model, parameters, tokens, notes=notes)


def _mean_tokens(held: Examples) -> float:
    return len(held.ids) / max(1, len(held))


def _at_hand(federation: Federation) -> bool:
    """Whether tokenizer and model are on this machine."""
    model, words = federation.model, federation.tokenizer
    here = model.path is None or Path(model.path).is_dir()
    return here and (federated_vocabulary(federation) or words.path is None or Path(words.path).is_dir())


def _check_tree(federation: Federation, auto: str, model: Any) -> None:
    """Refuse key layers that do not exist, and nodes with a model of another architecture."""
    hierarchy = build_method(federation).hierarchy
    if hierarchy is None:
        return
    with torch.device("meta"):
        hierarchy.keys(parts(model))
        if federation.model.preset is None:
            check_models(federation, hierarchy, auto, deepcopy(model))


def _read(federation: Federation, reader: SourceReader) -> dict[NodeId, DataCard]:
    """Data cards from reading and counting alone."""
    mechanisms, times = update_mechanisms(federation), repeats(federation.silos) | {ROOT: 1}
    found = {}
    for name, node in holders(federation).items():
        groups: dict[str, dict[str, int]] = {split: {} for split in ("train", "valid", "test")}
        mechanism, problems = mechanisms.get(name), list[str]()
        unit = mechanism.field if isinstance(mechanism, UnitMechanism) else ""
        for source in node.sources:
            read, group = reader.read(source, unit), source.group(name)
            for split, count in read.counts.items():
                groups[split][group] = groups[split].get(group, 0) + count
            problems += read.problems
        total = sum(groups["train"].values())
        used = mechanism.expected(total) if isinstance(mechanism, UnitMechanism) else federation.train.per_round(total)
        found[name] = DataCard(groups, used, tuple(problems))
    check_cards(found, watched_setting(federation))
    return {name: replace(card, per_round=times[name] * card.per_round) for name, card in found.items()}
