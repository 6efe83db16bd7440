"""The guard of a node: enforces the node's policy on every request and reply, and writes both to its audit log.

Before the work the guard judges the request: whether the approved settings imply it (request_limits.py), whether the
policy's rules allow what the reply would release (rules.py), whether enough samples are behind it, and whether its
model is one that this run may send (model_check.py). After the work it judges the reply, tensor by tensor, and removes
scores with too few samples behind them. A message or a field that this module does not list is refused, so that a new
one cannot leave by accident.

The operator of the node finds the reason for a refusal in the log; between organisations the node that asked learns
only that there was one.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hansa.core import wire
from hansa.core.errors import HansaError, RunFailed
from hansa.core.messages import (
    PART,
    Evaluate,
    Failure,
    Personalise,
    Reply,
    Request,
    RevealShares,
    Scores,
    ShareSecrets,
    Train,
    Update,
)
from hansa.core.survey_messages import TakeSurvey
from hansa.privacy.dp.charging import RunCharging
from hansa.privacy.policy.audit_log import AuditLog
from hansa.privacy.policy.limits import Limits
from hansa.privacy.policy.model_check import ModelHistory, Received, received_models
from hansa.privacy.policy.releases import PartOf, digest, released_items, requested_items
from hansa.privacy.policy.request_limits import RequestLimits
from hansa.privacy.policy.rules import Policy, Purpose, ReleaseItem, Verdict

REFUSED = "its policy refuses this request; the log of the silo says why"
log = logging.getLogger("hansa.policy")

Answering = Callable[[Request], Reply]


@dataclass(frozen=True)
class Behind:
    """How many samples a release stands for.

    ``groups``: for scores, by the name under which they leave; ``patients``: None where rows name no patients.
    """

    samples: int = 0
    patients: int | None = None
    groups: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RunContext:
    """The run that requests belong to, for the audit log: its id, the digests of its settings and of its start."""

    run: str = ""
    settings: str = ""
    start: str = ""

    def entry(self, request: Request, models: Sequence[Received] | None = None) -> dict[str, Any]:
        """What every entry of an audit log about a request names; ``models``: the request's, if they are known."""
        entry: dict[str, Any] = {"message": type(request).__name__, "round": getattr(request, "round", 0)}
        entry |= {name: value for name, value in vars(self).items() if value}
        for received in (received_models(request) if models is None else models)[:1]:
            entry["model"] = received.digest
        if isinstance(request, Evaluate):
            entry |= {"split": request.split, "parts": request.parts, "share": request.share}
        if isinstance(request, TakeSurvey):
            entry["floor"] = request.floor
        return entry


NO_RUN = RunContext()


@dataclass(frozen=True)
class SiloChecks:
    """What a guard checks at a silo, beside its rules; regions leave it to the silos below them."""

    requests: RequestLimits
    models: ModelHistory
    behind: Callable[[Request], Behind]
    charging: RunCharging
    needs_losses: bool = False  # the method's weights follow from losses, so that they cannot be withheld


@dataclass(frozen=True)
class Guard:
    """Answers requests with a node's ``answer``, within its policy.

    ``to``: the name of the node that asks, for the audit log; ``explain``: tell it why a request is refused, as in a
    simulation, where both belong to the same person. The policy file is read for every request, so that a change by
    its operator takes effect at once.
    """

    answer: Answering
    policy: Path
    purpose: Purpose
    log: AuditLog
    part_of: PartOf
    to: str
    context: RunContext = NO_RUN
    checks: SiloChecks | None = None
    explain: bool = True

    def __call__(self, request: Request) -> Reply:
        """The node's reply, or a `Failure` where the policy refuses the request or the reply."""
        policy, models = Policy.read(self.policy), received_models(request)
        entry = self.context.entry(request, models) | {"to": self.to}
        refusal, figures = self._judge_request(policy, request, models)
        known = requested_items(request) is not None
        self.log.add("request", **entry | figures, bytes=wire.size(request) if known else 0)
        if refusal:
            return self._refuse(entry, refusal)
        reply = self._work(request, entry)
        if isinstance(reply, Failure):
            self.log.add("failed", **entry, reason=reply.reason)
            return reply
        entry["message"] = type(reply).__name__
        return self._release(policy, request, reply, entry)

    def _judge_request(self, policy: Policy, request: Request, models: list[Received]) -> tuple[str, dict[str, Any]]:
        """Why a request is refused, empty if it is not, and figures for the audit log."""
        masked = bool(roster_of(request))
        items = requested_items(request)
        hidden = self.purpose.secure_metrics and masked  # what is masked with the update cannot be left out of it
        if isinstance(request, Train) and items is not None and not self._keeps_losses and not hidden:
            items = [item for item in items if item.kind != "metrics"]  # what no rule releases is left out of the reply
        refusal, _ = _judge(policy, purpose_of_request(self.purpose, request, masked), items, type(request).__name__)
        if refusal or self.checks is None:
            return refusal, {}
        refusal = self.checks.requests.objection(request) or self._too_few(policy.limits, request)
        if refusal:
            return refusal, {}
        judged = self.checks.models.judge(request, models, policy.limits)
        limit = (policy.budget.epsilon, policy.budget.delta) if policy.budget is not None else None
        return judged.refusal or self.checks.charging.refusal(limit, self.context.run, request), judged.figures

    @property
    def _keeps_losses(self) -> bool:
        return self.checks is not None and self.checks.needs_losses

    def _too_few(self, limits: Limits, request: Request) -> str:
        """Why too little data is behind an update or a personal model; empty if there is enough."""
        assert self.checks is not None
        if isinstance(request, Personalise) and not request.share:
            few = {name: n for name, n in self.checks.behind(request).groups.items() if n < limits.min_samples}
            return "" if not few else _few(f"scores of {min(few)}", few[min(few)], limits.min_samples, "min_samples")
        if isinstance(request, Evaluate) and request.masking is not None:
            return self._too_few_masked(limits, request)
        if not isinstance(request, Train | Personalise):
            return ""
        behind = self.checks.behind(request)
        if behind.samples < limits.min_update_samples:
            return _few("an update", behind.samples, limits.min_update_samples, "min_update_samples")
        if behind.patients is None and limits.min_update_patients:
            return "the policy has min_update_patients, and the settings name no field for patients (privacy.field)"
        if behind.patients is not None and behind.patients < limits.min_update_patients:
            return _few("an update", behind.patients, limits.min_update_patients, "min_update_patients", "patients")
        return ""

    def _too_few_masked(self, limits: Limits, request: Evaluate) -> str:
        """Why too few samples are behind scores under masks, which are summed over groups; none at all reveal none."""
        assert self.checks is not None
        parts: dict[str, int] = {}
        for group, samples in self.checks.behind(request).groups.items():
            part = group.rpartition(PART)[2] if request.parts > 1 else ""
            parts[part] = parts.get(part, 0) + samples
        few = min((samples for samples in parts.values() if samples), default=limits.min_samples)
        return "" if few >= limits.min_samples else _few("masked scores", few, limits.min_samples, "min_samples")

    def _release(self, policy: Policy, request: Request, reply: Reply, entry: dict[str, Any]) -> Reply:
        """What of a reply leaves: all of it, less what the policy withholds, or a refusal."""
        masked = bool(roster_of(request)) and (not isinstance(reply, Update) or reply.masked is not None)
        purpose = purpose_of_request(self.purpose, request, masked, reply)
        reply, withheld = self._without_metrics(policy, purpose, request, reply)
        if isinstance(reply, Scores) and isinstance(request, Evaluate) and self.checks is not None and reply.sums:
            reply, few = _without_small_groups(reply, self.checks.behind(request), policy.limits.min_samples)
            withheld += few
            if few and not reply.sums:
                return self._refuse(entry, f"no group has {policy.limits.min_samples} samples (limits.min_samples)")
        items = released_items(reply, request, self.part_of)
        refusal, verdicts = _judge(policy, purpose, items, type(reply).__name__)
        if refusal:
            return self._refuse(entry, refusal)
        rules = {verdict.item.kind: verdict.rule for verdict in verdicts}
        left = {"withheld": withheld} if withheld else {}
        self.log.add("release", **entry, **left, bytes=wire.size(reply), digest=digest(reply), rules=rules)
        return reply

    def _without_metrics(
        self, policy: Policy, purpose: Purpose, request: Request, reply: Reply
    ) -> tuple[Reply, list[str]]:
        """An update without losses and times, where no rule releases metrics; and what was left out."""
        if not isinstance(reply, Update) or self._keeps_losses or not isinstance(request, Train):
            return reply, []
        if policy.judge(ReleaseItem("metrics"), purpose).allowed or not _plain_metrics(request, reply):
            return reply, []
        plain = replace(reply, loss=0.0, seconds=0.0, movement=(), below=None)
        return plain, ["metrics"]

    def _work(self, request: Request, entry: dict[str, Any]) -> Reply:
        """The node's own reply. An error's message may quote the silo's text, so only the error's type is released."""
        try:
            return self.answer(request)
        except HansaError as error:
            self.log.add("failed", **entry, reason=type(error).__name__)
            raise
        except Exception as error:
            self.log.add("failed", **entry, reason=type(error).__name__)
            raise RunFailed(f"{type(error).__name__} (its message stays at the silo)") from None

    def _refuse(self, entry: dict[str, Any], reason: str) -> Failure:
        """Write a refusal to the operator's log and to the audit log; return it for the node that asked."""
        log.warning("%s refused a %s of %s: %s", self.log.node, entry["message"], self.to, reason)
        self.log.add("refusal", **entry, reason=reason)
        return Failure(f"its policy refuses: {reason}" if self.explain else REFUSED)


def _few(what: str, seen: int, needed: int, setting: str, unit: str = "samples") -> str:
    return f"{seen} {unit} are behind {what}, and the policy needs {needed} (limits.{setting})"


def _without_small_groups(scores: Scores, behind: Behind, least: int) -> tuple[Scores, list[str]]:
    """Scores without the groups and parts that stand for fewer than ``least`` samples, and the names of those."""
    few = sorted(name for name in scores.sums if behind.groups.get(name, 0) < least)
    return replace(scores, sums={name: sums for name, sums in scores.sums.items() if name not in few}), few


def roster_of(request: Request) -> Mapping[str, tuple[str, ...]]:
    """The silos whose updates would be summed under masks; empty where no masks are asked for."""
    if isinstance(request, ShareSecrets):
        return request.roster
    return request.masking.roster if isinstance(request, Train | Evaluate) and request.masking is not None else {}


def _plain_metrics(request: Request, reply: Reply | None) -> bool:
    """Whether a reply has losses or scores without masks; before there is one, whether the request asks for such."""
    match reply:
        case Update():
            hidden = reply.masked is not None and reply.masked.metrics is not None
            return not hidden or any((reply.loss, reply.seen, reply.steps, reply.seconds))
        case Scores():
            return reply.masked is None or bool(reply.sums)
        case _:
            return isinstance(request, Train | Evaluate | Personalise) and not roster_of(request)


def purpose_of_request(purpose: Purpose, request: Request, masked: bool, reply: Reply | None = None) -> Purpose:
    """What the federation file promises, reduced to what this request, and the reply to it, keep of it.

    An update without masks is not aggregated securely; with masks, the roster shows how many updates are summed, and
    after that the list of silos that answered. Losses and scores must be masked by themselves.
    """
    if _plain_metrics(request, reply):
        purpose = replace(purpose, secure_metrics=False)
    if isinstance(request, RevealShares):
        return replace(purpose, cohort=min(purpose.cohort, len(set(request.answered))))
    roster = roster_of(request)
    if isinstance(request, Train | Personalise) and not masked:
        purpose = replace(purpose, secure_aggregation=False)
    return replace(purpose, cohort=min(purpose.cohort, len(roster))) if roster else purpose


def _judge(
    policy: Policy, purpose: Purpose, items: list[ReleaseItem] | None, message: str
) -> tuple[str, list[Verdict]]:
    """The first refusal, empty if there is none, and the verdicts on all items; None as items: an unlisted message."""
    if items is None:
        return f"no rule can allow this {message}, because it has content that policies do not know", []
    verdicts = [policy.judge(item, purpose) for item in items]
    return next((f"{v.item.kind} may not leave: {v.reason}" for v in verdicts if not v.allowed), ""), verdicts
