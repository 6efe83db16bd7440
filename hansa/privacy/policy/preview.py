"""What a policy will say to a federation file, before anybody works: `hansa check --policy`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import leaves, walk
from hansa.config.tree import federated_vocabulary
from hansa.core.messages import (
    CollectVocabulary,
    DescribeData,
    Evaluate,
    Personalise,
    Request,
    ShareKnowledge,
    Train,
)
from hansa.core.model_parts import parts
from hansa.core.tensors import Layout, Tensors
from hansa.models import build
from hansa.models.adapt import adapt
from hansa.models.tokenizer import byte_tokenizer
from hansa.privacy.policy.guard import asked_for, met
from hansa.privacy.policy.rules import Policy, Purpose, Verdict, Wanted
from hansa.tasks.base import TASKS

WORDS = {
    "tensors": "model updates",
    "samples": "sample counts",
    "metrics": "losses and scores",
    "pieces": "word pieces",
    "labels": "names of labels",
    "offers": "what is traded before training",
    "residuals": "layers for other nodes",
    "personal": "scores of the silo's own models",
}


@dataclass(frozen=True)
class Decision:
    """What is asked of a silo, and its policy's verdict on one thing that the answer would release."""

    request: str
    verdict: Verdict

    @property
    def what(self) -> str:
        wanted = self.verdict.wanted
        named = f": {', '.join(sorted(wanted.parts))}" if wanted.parts else ""
        return WORDS[wanted.kind] + named + (f" seen {wanted.seen} times or more" if wanted.seen else "")

    def as_dict(self) -> dict[str, Any]:
        verdict = self.verdict
        return {
            "request": self.request,
            "releases": self.what,
            "allowed": verdict.allowed,
            "rule": verdict.rule,
            "reason": verdict.reason,
        }


def decide(policy: Policy, federation: Federation, node: str | None = None) -> list[Decision]:
    """The policy's verdict on everything a silo would be asked for; without a node, where the cohort is smallest."""
    nodes = [node] if node is not None else list(leaves(federation.silos))
    purpose = min((Purpose.of(federation, name) for name in nodes), key=lambda found: found.cohort)
    travels, tree = travelling(federation), build_method(federation).hierarchy
    forwarded = [Wanted("residuals")] if tree is not None and tree.forwards_layers else []
    found = []
    for request in foreseen(federation):
        for wanted in [*(asked_for(request) or []), *(forwarded if isinstance(request, Train) else [])]:
            if wanted.kind == "tensors":
                wanted = Wanted("tensors", travels)
            masked = federation.secure_aggregation is not None and isinstance(request, Train)
            found.append(Decision(type(request).__name__, policy.judge(wanted, met(purpose, request, masked))))
    return found


def refusals(federation: Federation) -> list[str]:
    """What the policies that the file itself names would refuse, one sentence for each node and request."""
    found = []
    for name, node in walk(federation.silos):
        if node.policy is None:
            continue
        for decision in decide(Policy.read(Path(node.policy)), federation, name):
            if not decision.verdict.allowed:
                found.append(f"{name} will refuse to {decision.request.lower()}: {decision.verdict.reason}")
    return list(dict.fromkeys(found))


def foreseen(federation: Federation) -> list[Request]:
    """The requests a silo will get, without their contents."""
    task, some = TASKS.build(federation.task), Tensors(Layout(("model",), ((0,),)), torch.zeros(0))
    pieces = federation.tokenizer.min_count if federated_vocabulary(federation) else 0
    labels = task.needs_labels and not getattr(task, "labels", ())
    found: list[Request] = [CollectVocabulary(pieces, labels)] if pieces or labels else []
    found.append(DescribeData())
    if federation.rounds and federation.kind != "base":
        empty = Tensors.zeros(Layout((), ()))
        model = some if travelling(federation) else empty
        method = build_method(federation)
        if method.exchange is not None and federation.kind == "federated":
            found.append(ShareKnowledge(1, model))
        found.append(Train(1, model))
    found.append(Evaluate(0, some))
    if federation.personal is not None and federation.kind == "federated":
        nearby = bool(federation.personal.nearby)
        found.append(Personalise(0, some, some, "", share=nearby))
    return found


def travelling(federation: Federation) -> frozenset[str]:
    """The parts of the model whose updates travel; found on a model without values."""
    if federation.kind == "per-silo":
        return frozenset()
    task, settings = TASKS.build(federation.task), federation.model
    with torch.device("meta"):
        if settings.preset is not None:
            words = byte_tokenizer()
            model: Any = build.preset(settings.preset, task.auto, words, federation.data.max_length, labels=("0", "1"))
        else:
            model = build.load(str(settings.path), task.auto, fresh=True)
        model = adapt(model, settings, federation.seed)
    trained = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    layout = Layout(tuple(trained), tuple(trained.values()))
    part = parts(model)
    return frozenset(part[name] for name in build_method(federation).scope.shared(layout, part))
