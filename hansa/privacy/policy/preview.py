"""Disclosure preview: what a policy will decide about a federation file, before any silo works.

`hansa check --policy` prints it. It reads what the slots of the method declare (`hansa.core.method`), so that a method
of a plug-in is previewed like the built-in ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

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
    no_tensors,
)
from hansa.core.model_parts import parts
from hansa.core.survey_messages import OfferSurveyKey, SealSurveyKey, TakeSurvey
from hansa.core.tensors import Layout, Tensors
from hansa.models import build
from hansa.models.adapt import adapt
from hansa.privacy.dp.charging import NO_NOISE, charges_for
from hansa.privacy.dp.prices import silo_price
from hansa.privacy.policy.guard import purpose_of_request
from hansa.privacy.policy.releases import requested_items, state_part
from hansa.privacy.policy.rules import Kind, Policy, Purpose, ReleaseItem, Verdict
from hansa.tasks.base import TASKS, LabelledTask, Task

DESCRIPTIONS: Mapping[Kind, str] = {
    "tensors": "model updates",
    "samples": "sample counts",
    "metrics": "losses and scores",
    "words": "words",
    "labels": "names of labels",
    "knowledge": "knowledge shared before training",
    "layers": "layers for other nodes",
    "personal": "scores of personal models",
    "survey": "statistics of the data",
    "sketches": "keyed sketches of texts and words",
}


@dataclass(frozen=True)
class SharedParts:
    """The parts of the model whose tensors leave a silo in a round, with the updates and with the shared state."""

    update: frozenset[str] = frozenset()
    state: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Decision:
    """A request that a silo will get, and its policy's verdict on one item that the reply would release."""

    request: str
    verdict: Verdict

    @property
    def what(self) -> str:
        """The item in words."""
        item = self.verdict.item
        named = f": {', '.join(sorted(item.parts))}" if item.parts else ""
        rows = f" {'of' if item.kind == 'survey' else 'in'} at least {item.min_count} rows" if item.min_count else ""
        return DESCRIPTIONS[item.kind] + named + rows

    def as_dict(self) -> dict[str, Any]:
        """The decision as plain values, for JSON."""
        verdict = self.verdict
        return {
            "request": self.request,
            "releases": self.what,
            "allowed": verdict.allowed,
            "rule": verdict.rule,
            "reason": verdict.reason,
        }


def preview_policy(policy: Policy, federation: Federation, node: str | None = None) -> list[Decision]:
    """The policy's decisions on everything that a silo will be asked for.

    Without a ``node``, for the silo whose cohort is smallest.
    """
    nodes = [node] if node is not None else list(leaves(federation.silos))
    purpose = min((Purpose.of(federation, name) for name in nodes), key=lambda found: found.cohort)
    shared, found = shared_parts(federation), []
    for request in expected_requests(federation, shared):
        masked = federation.secure_aggregation is not None and isinstance(request, Train)
        for item in _expected_items(federation, request, shared):
            promised = purpose_of_request(purpose, request, masked)
            if isinstance(request, Train | Evaluate):  # the request of a round will have masks, where the file has them
                promised = replace(promised, secure_metrics=purpose.secure_metrics)
            verdict = policy.judge(item, promised)
            if verdict.allowed and (why := _over_budget(policy, federation, nodes, request)):
                verdict = Verdict(item, "", why)
            found.append(Decision(type(request).__name__, verdict))
    return found


def _over_budget(policy: Policy, federation: Federation, nodes: list[str], request: Request) -> str:
    """Why the policy's budget, if it has one, is not enough for a run at any of the nodes; empty if it is."""
    if policy.budget is not None and isinstance(request, TakeSurvey):
        return NO_NOISE
    if policy.budget is None or not isinstance(request, Train | ShareKnowledge):
        return ""
    if not any(charges_for(federation, name, "", request) for name in nodes):
        return NO_NOISE
    prices = [price for name in nodes if (price := silo_price(federation, name, policy.budget.delta)) is not None]
    if not prices or min(prices)[0] <= policy.budget.epsilon:
        return ""
    return (
        f"the whole run costs ε = {min(prices)[0]:.4g} at δ = {policy.budget.delta:g}, and the policy's budget is "
        f"{policy.budget.epsilon:g}: rounds after it is spent are refused"
    )


def _expected_items(federation: Federation, request: Request, shared: SharedParts) -> list[ReleaseItem]:
    """What the reply to an expected request would release, with the parts of the model that its tensors belong to."""
    training = isinstance(request, Train)
    parts = shared.update | shared.state if training else shared.update
    items = [
        ReleaseItem("tensors", parts) if item.kind == "tensors" else item for item in requested_items(request) or []
    ]
    hierarchy = build_method(federation).hierarchy if training else None
    return [*items, ReleaseItem("layers")] if hierarchy is not None and hierarchy.forwards_layers else items


def refusals(federation: Federation) -> list[str]:
    """What the policies named in the federation file will refuse: one sentence for each node and request."""
    found = []
    for name, node in walk(federation.silos):
        if node.policy is None:
            continue
        policy = Policy.read(Path(node.policy))
        surveys = preview_policy(policy, federation.as_survey(), name) if federation.survey is not None else []
        for decision in [*preview_policy(policy, federation, name), *surveys]:
            if not decision.verdict.allowed:
                found.append(f"{name} will refuse the request {decision.request}: {decision.verdict.reason}")
    return list(dict.fromkeys(found))


def expected_requests(federation: Federation, shared: SharedParts) -> list[Request]:
    """The requests that a silo will get, without their contents."""
    if federation.kind == "survey":
        return survey_requests(federation)
    task, some = TASKS.build(federation.task), Tensors(Layout(("model",), ((0,),)), torch.zeros(0))
    min_count = federation.tokenizer.min_count if federated_vocabulary(federation) else 0
    labels = collects_labels(task)
    found: list[Request] = [CollectVocabulary(min_count, int(labels))] if min_count or labels else []
    found.append(DescribeData())
    if federation.rounds and federation.kind != "base":
        model = some if shared.update else no_tensors()
        method = build_method(federation)
        if method.exchange is not None and federation.kind == "federated":
            found.append(ShareKnowledge(1, model))
        found.append(Train(1, model, shared_state=some if shared.state else None))
    found.append(Evaluate(0, some))
    if federation.personal is not None and federation.kind == "federated":
        nearby = bool(federation.personal.nearby)
        found.append(Personalise(0, some, some, "", share=nearby))
    return found


def survey_requests(federation: Federation) -> list[Request]:
    """The requests of a survey."""
    settings, sealed = federation.surveyed, {"": ""}
    labels = settings.labels and TASKS.build(federation.task).needs_labels
    if not settings.sketches:
        return [TakeSurvey(settings.floor, labels)]
    return [OfferSurveyKey(), SealSurveyKey({}, ""), TakeSurvey(settings.floor, labels, sealed=sealed)]


def collects_labels(task: Task) -> bool:
    """Whether the silos are asked for the names of their labels: the task has labels and its settings name none."""
    return task.needs_labels and not cast(LabelledTask, task).labels


def shared_parts(federation: Federation) -> SharedParts:
    """The parts of the model whose tensors leave a silo; found on a model without values."""
    if federation.kind in ("per-silo", "survey"):
        return SharedParts()
    task, settings, method = TASKS.build(federation.task), federation.model, build_method(federation)
    model: Any = build.outline(settings, task.auto, ("0", "1"), federation.data.max_length)
    with torch.device("meta"):
        model = adapt(model, settings, federation.seed)
        trained = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
        layout, part = Layout(tuple(trained), tuple(trained.values())), parts(model)
        shared = layout.only(method.scope.shared(layout, part))
        state: tuple[str, ...] = ()
        if method.shared_state is not None and federation.kind == "federated":
            state = method.shared_state.begin(shared).layout.names
    update = frozenset(part[name] for name in shared.names)
    return SharedParts(update, frozenset(map(state_part(part.__getitem__), state)))
