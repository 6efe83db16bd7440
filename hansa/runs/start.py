"""Before the first round: collect the vocabulary, agree on the starting model, describe the silos' data."""

import json
import platform
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import ROOT, leaves, repeats
from hansa.config.tree import federated_vocabulary, holders
from hansa.core.errors import DataError
from hansa.core.inner_node import merge
from hansa.core.link import Link
from hansa.core.messages import CollectVocabulary, DataCard, NodeId, VocabularyCounts
from hansa.data.spellings import spelling_warnings
from hansa.files import atomically
from hansa.models import build, folder, tokenizer
from hansa.models.adapt import adapt
from hansa.models.base import check_base, save_start
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.enrolment import described, surveyed
from hansa.runs.ledger import Ledger
from hansa.runs.topology import check_models
from hansa.tasks.base import ExtraTokensTask, LabelledTask, Task, discovery_of

VERSIONS = ("hansa", "torch", "transformers", "tokenizers", "safetensors", "numpy")


def begin(federation: Federation, directory: RunDirectory, link: Link, ledger: Ledger, events: RunEvents) -> None:
    """Agree on the tokenizer, the labels and the starting weights: `start/` is the same for every silo.

    A frozen base is not part of it (`hansa.models.base`). Raises `DataError` if the task needs labels and the silos
    have too few, and `ConfigError` if a run is resumed with another base.
    """
    if directory.start.exists():
        if federation.model.keeps_base:
            check_base(directory.start, federation.model)
        return
    task = Runtime(federation, directory.path).task
    agreed = agree(federation, task, link, ledger, events)
    words, labels = agreed.tokenizer, agreed.labels
    model = build.initial(federation.model, task.auto, words, federation.data.max_length, labels, federation.seed)
    for line in head_lines(federation, model, labels):
        events.say(line)
    tree = build_method(federation).hierarchy
    if tree is not None:
        check_models(federation, tree, task.auto, deepcopy(model))
    with atomically(directory.start) as draft:
        words.save_pretrained(draft)
        if federation.model.keeps_base:
            save_start(adapt(model, federation.model, federation.seed), federation.model, draft)
        else:
            model.save_pretrained(draft)
        folder.tidy(draft)  # what silos in other organisations accept, and nothing else
        write_labels(draft, labels)
    facts = {name: version(name) for name in VERSIONS} | {"python": platform.python_version()}
    ledger.fact("versions", facts)
    ledger.fact("vocabulary", len(words))
    ledger.fact("parameters", sum(p.numel() for p in model.parameters()))
    if federation.model.path is not None:
        ledger.fact("base_model", base_model(federation))
        ledger.fact("new_weights", sorted(build.lacked_tensors(model)))


@dataclass(frozen=True)
class Agreement:
    """What all silos start with beside the weights: the tokenizer and the model's classes."""

    tokenizer: Any
    labels: tuple[str, ...]


def agree(federation: Federation, task: Task, link: Link, ledger: Ledger, events: RunEvents) -> Agreement:
    """Ask the silos for words and labels, as far as the settings leave them open.

    Raises `DataError` if the task needs labels and the silos have too few.
    """
    named: tuple[str, ...] = getattr(task, "labels", ())
    discovery = discovery_of(task)
    label_rows = (discovery.min_rows if discovery.allowed else 1) if task.needs_labels and not named else 0
    found = _collected(federation, label_rows, link, ledger, events)
    words = _tokenizer(federation, task, found.pieces)
    names = named or found.labels
    labels = cast(LabelledTask, task).classes(names) if task.needs_labels else ()
    if task.needs_labels and len(labels) < 2:
        raise DataError(
            f"task '{federation.task.name}' needs at least {'one type' if 'O' in labels else 'two labels'}, "
            f"and the silos have {list(names) or 'none'}; {_look_at(federation.task.name)}"
        )
    return Agreement(words, build.own_order(federation.model, labels))


def write_labels(start: Path, labels: tuple[str, ...]) -> None:
    """Write the model's classes beside the tokenizer."""
    (start / "labels.json").write_text(json.dumps(labels, ensure_ascii=False), encoding="utf-8")


def base_model(federation: Federation) -> str:
    """The name of the pre-trained model for people: a hub id, or the name of a folder without the folders above it."""
    path = str(federation.model.path)
    return Path(path).name if Path(path).is_dir() else path


def head_lines(federation: Federation, model: Any, labels: tuple[str, ...]) -> list[str]:
    """Sentences on the weights of a pre-trained model that the task needs and the model lacks, or has for other labels.

    Empty if it has all of them, and for a model that starts from random weights anyway.
    """
    if federation.model.path is None or federation.model.fresh:
        return []
    new, own, name = build.lacked_tensors(model), build.head_labels(federation.model), base_model(federation)
    if new:
        shown = ", ".join(sorted(new)[:6]) + (f" and {len(new) - 6} more" if len(new) > 6 else "")
        return [
            f"{name} has no weights for {len(new)} tensors that task '{federation.task.name}' needs; they start from "
            f"random values: {shown}"
        ]
    if own and labels and set(own) != set(labels):
        return [
            f"the head of {name} was trained for other labels ({', '.join(own[:8])}) than those of the task "
            f"({', '.join(labels[:8])}); training starts from its weights"
        ]
    return []


def _collected(federation: Federation, labels: int, link: Link, ledger: Ledger, events: RunEvents) -> VocabularyCounts:
    """Collect what a common start needs from the silos: counts of words, names of labels, both or nothing.

    ``labels``: the least number of rows behind a label; 0: the silos are not asked for labels.
    """
    pieces, minimum = federated_vocabulary(federation), federation.tokenizer.min_count
    if not pieces and not labels:
        return VocabularyCounts({})
    events.say("asking the silos for word counts" if pieces else "asking the silos for labels")
    request = CollectVocabulary(minimum if pieces else 0, labels)
    # A mixture would count its silos' words again.
    own = [ROOT] * bool(federation.root and federation.root.sources) + list(leaves(federation.silos))
    replies = surveyed(link, own, request, federation.participation, ledger, events)
    ledger.fact("survey", _released(replies, minimum, pieces))
    if labels:
        for line in spelling_warnings({name: dict.fromkeys(reply.labels, 0) for name, reply in replies.items()}):
            events.say(f"warning: {line}")
            ledger.event(0, "", "labels", line)
    merged = merge(list(replies.values()))
    assert isinstance(merged, VocabularyCounts)
    return merged


def _tokenizer(federation: Federation, task: Task, pieces: Mapping[str, int]) -> Any:
    settings = federation.tokenizer
    built = federated_vocabulary(federation) or settings.kind == "bytes"
    if federated_vocabulary(federation):
        words = tokenizer.train_vocabulary(pieces, settings.size)
    elif settings.kind == "bytes":
        words = tokenizer.byte_tokenizer()
    else:
        model = federation.model
        words = (
            tokenizer.load(settings.path)
            if settings.path is not None
            else tokenizer.load(str(model.path), model.revision, model.gguf)
        )
    if isinstance(task, ExtraTokensTask) and built:
        sources = (source for node in holders(federation).values() for source in node.sources)
        words.add_tokens(task.extra_tokens(sources), special_tokens=True)
    return words


def _released(sent: Mapping[NodeId, VocabularyCounts], minimum: int, pieces: bool) -> dict[str, object]:
    return {
        "minimum": minimum if pieces else 0,
        "silos": {n: {"told": len(f.pieces), "withheld": f.withheld, "labels": len(f.labels)} for n, f in sent.items()},
    }


def _look_at(task: str) -> str:
    """Where the labels of a task are, for messages."""
    if task == "ner":
        return "look at the fields 'tokens' and 'tags' of the files, or name them with 'tokens:' and 'tags:'"
    return "look at the field named by 'label:'"


def describe(
    federation: Federation, directory: RunDirectory, link: Link, ledger: Ledger, events: RunEvents
) -> dict[NodeId, DataCard]:
    """Return the data cards of the silos that take part, and note them in the ledger.

    Raises `DataError` if a silo's data has changed since the run began.
    """
    watched = watched_setting(federation)
    fact = f"cards:{federation.kind}" if federation.kind != "federated" else "cards"
    noted = ledger.facts().get(fact, {})
    before = {name: DataCard(**card | {"problems": tuple(card["problems"])}) for name, card in noted.items()}
    known = before if link.remote else {}
    left = ledger.facts().get("withdrawn", {})
    names = [name for name in holders(federation) if name not in left]
    answered = described(link, names, watched, federation.participation, ledger, events, known)
    times = repeats(federation.silos) | {ROOT: 1}
    new = {name: replace(card, per_round=times[name] * card.per_round) for name, card in answered.items()}
    cards = {name: known.get(name, card) for name, card in new.items()}
    for name, card in cards.items():
        if name in before and card.groups != before[name].groups:
            raise DataError(
                f"silos.{name}: its data has changed since the run began ({_counts(before[name])} samples then, "
                f"{_counts(card)} now); put it back, or begin anew without --resume"
            )
    for name, card in cards.items():
        for problem in card.problems:
            events.say(f"{name}: {problem}")
            if not ledger.select("select 1 from events where node=? and kind='data' and text=?", name, problem):
                ledger.event(0, name, "data", problem)
    ledger.fact(fact, {n: vars(c) for n, c in cards.items()})
    return cards


def watched_setting(federation: Federation) -> str:
    """The setting that needs validation data at every silo; empty if none does."""
    return "personal" if federation.personal else "train.samples.adapt" if federation.train.samples.adapt else ""


def _counts(card: DataCard) -> str:
    return " + ".join(f"{card.samples(split):,}" for split in ("train", "valid", "test"))
