"""The guard of a node: enforces the node's policy on every request and reply, and writes both to its audit log.

The guard judges twice: before the work, by what the request asks for; after it, by what the reply contains, tensor by
tensor. A message or a field that this module does not list is refused, so that a new one cannot leave by accident.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from hansa.config.federation import Federation
from hansa.config.nodes import walk
from hansa.core import wire
from hansa.core.codec import encoded_fields
from hansa.core.encoding import EncodedUpdate
from hansa.core.errors import HansaError, RunFailed
from hansa.core.messages import (
    AdvertisedKeys,
    AdvertiseKeys,
    CollectVocabulary,
    DataCard,
    DescribeData,
    Evaluate,
    Failure,
    Knowledge,
    Personalise,
    PersonalScores,
    Reply,
    Request,
    RevealedShares,
    RevealShares,
    Scores,
    SecretShares,
    ShareKnowledge,
    ShareSecrets,
    Train,
    Update,
    VocabularyCounts,
)
from hansa.core.tensors import Tensors
from hansa.privacy.policy.audit_log import AUDIT_LOG, AuditLog
from hansa.privacy.policy.rules import Kind, Policy, Purpose, ReleaseItem, Verdict

log = logging.getLogger("hansa.policy")

# What each field of each reply releases; fields of an optional part are written ``part.field``.
RELEASE_KINDS: Mapping[type, Mapping[str, Kind]] = {
    VocabularyCounts: {"pieces": "word_pieces", "withheld": "word_pieces", "labels": "labels"},
    DataCard: dict.fromkeys(("groups", "per_round", "problems", "inner", "steps"), "samples"),
    Update: {
        "gradient": "tensors",
        "samples": "samples",
        "seen": "samples",
        "steps": "samples",
        "loss": "metrics",
        "seconds": "metrics",
        "encoded": "tensors",
        "movement": "metrics",
        "masked.clipped": "tensors",
        "masked.metrics": "metrics",
        "below.failures": "metrics",
        "below.sent": "metrics",
        "below.received": "metrics",
        "layers.residuals": "layers",
        "layers.attention": "layers",
        "layers.refused": "layers",
        "shared_state": "tensors",
    },
    # Keys and shares serve the sum of the updates and release nothing beyond it.
    AdvertisedKeys: {
        "seal": "tensors",
        "mask": "tensors",
        "samples": "samples",
        "model": "tensors",
        "signature": "tensors",
    },
    SecretShares: {"sealed": "tensors"},
    RevealedShares: {"shares": "tensors"},
    Knowledge: dict.fromkeys(("tensors", "members", "lengths", "withheld"), "knowledge"),
    Scores: {"sums": "metrics", "masked": "metrics"},
    PersonalScores: {
        "gradient": "tensors",
        "sums": "personal",
        "losses": "personal",
        "curves": "personal",
        "alpha": "personal",
    },
}
SHARED_STATE = "shared_state"  # the part of tensors of a method's shared state that the model does not have

Answering = Callable[[Request], Reply]
PartOf = Callable[[str], str]  # tensor → the part of the model that it belongs to; KeyError for other tensors


def requested_items(request: object) -> list[ReleaseItem] | None:
    """What the reply to a request would release, as far as the request shows; None for an unlisted request."""
    match request:
        case CollectVocabulary():
            counts = [ReleaseItem("word_pieces", min_count=request.min_count)] if request.min_count else []
            return counts + ([ReleaseItem("labels")] if request.labels else [])
        case DescribeData():
            return [ReleaseItem("samples")]
        case ShareKnowledge():
            return [ReleaseItem("knowledge")]
        case Train():
            held = request.knowledge is not None and request.knowledge.model_held
            trains = request.model.layout.names or held or request.shared_state is not None
            return [*([ReleaseItem("tensors")] if trains else []), ReleaseItem("samples"), ReleaseItem("metrics")]
        case AdvertiseKeys():
            return [ReleaseItem("metrics" if request.scores else "tensors"), ReleaseItem("samples")]
        case ShareSecrets() | RevealShares():
            return [ReleaseItem("metrics" if request.scores else "tensors")]
        case Evaluate():
            return [ReleaseItem("metrics")]
        case Personalise():
            return [ReleaseItem("personal")] + ([ReleaseItem("tensors")] if request.share else [])
        case _:
            return None


def released_items(reply: Reply, request: Request, part_of: PartOf) -> list[ReleaseItem] | None:
    """What a reply contains; None if it has a field that is not listed, or a tensor that is not of the model."""
    kinds, present = RELEASE_KINDS.get(type(reply)), dict(nonempty_fields(reply))
    if kinds is None or any(name not in kinds for name in present):
        return None
    min_count = request.min_count if isinstance(request, CollectVocabulary) else 0
    found: dict[Kind, ReleaseItem] = {}
    for name, value in present.items():
        kind = kinds[name]
        parts: frozenset[str] = frozenset()
        if kind == "tensors":
            try:
                of = state_part(part_of) if name == SHARED_STATE else part_of
                parts = frozenset(map(of, _tensor_names(value)))
            except KeyError:
                return None
        earlier = found.get(kind, ReleaseItem(kind))
        found[kind] = ReleaseItem(kind, earlier.parts | parts, min_count if kind == "word_pieces" else 0)
    return list(found.values())


def state_part(part_of: PartOf) -> PartOf:
    """Return ``part_of`` for tensors of a method's shared state: those that the model lacks are `SHARED_STATE`."""

    def part(tensor: str) -> str:
        try:
            return part_of(tensor)
        except KeyError:
            return SHARED_STATE

    return part


def nonempty_fields(message: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a message that are not empty, with their values; those of an optional part as ``part.field``."""
    for name, _ in encoded_fields(message.__class__):
        value = getattr(message, name)
        if is_dataclass(value) and not isinstance(value, Tensors | EncodedUpdate):
            yield from nonempty_fields(value, f"{prefix}{name}.")
        elif not _empty(value):
            yield prefix + name, value


def _tensor_names(value: Any) -> tuple[str, ...]:
    """The names of the tensors in the value of a field."""
    return value.layout.names if isinstance(value, Tensors) else value.names if isinstance(value, EncodedUpdate) else ()


def _empty(value: Any) -> bool:
    return not _tensor_names(value) if isinstance(value, Tensors | EncodedUpdate) else not value


@dataclass(frozen=True)
class Guard:
    """Answers requests with a node's ``answer``, within its policy.

    ``to``: the name of the node that asks, for the audit log. The policy file is read for every request, so that a
    change by its operator takes effect at once.
    """

    answer: Answering
    policy: Path
    purpose: Purpose
    log: AuditLog
    part_of: PartOf
    to: str

    def __call__(self, request: Request) -> Reply:
        """The node's reply, or a `Failure` with the reason where the policy refuses the request or the reply."""
        entry = {"message": type(request).__name__, "round": getattr(request, "round", 0), "to": self.to}
        policy, items = Policy.read(self.policy), requested_items(request)
        self.log.add("request", **entry, bytes=wire.size(request) if items is not None else 0)
        masked = bool(roster_of(request))
        refusal, _ = _judge(policy, purpose_of_request(self.purpose, request, masked), items, type(request).__name__)
        if refusal:
            return self._refuse(entry, refusal)
        reply = self._work(request, entry)
        if isinstance(reply, Failure):
            self.log.add("failed", **entry, reason=reply.reason)
            return reply
        entry["message"] = type(reply).__name__
        masked = masked and (not isinstance(reply, Update) or reply.masked is not None)
        purpose = purpose_of_request(self.purpose, request, masked)
        items = released_items(reply, request, self.part_of)
        refusal, verdicts = _judge(policy, purpose, items, type(reply).__name__)
        if refusal:
            return self._refuse(entry, refusal)
        rules = {verdict.item.kind: verdict.rule for verdict in verdicts}
        self.log.add("release", **entry, bytes=wire.size(reply), digest=digest(reply), rules=rules)
        return reply

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
        return Failure(f"its policy refuses: {reason}")


def roster_of(request: Request) -> Mapping[str, tuple[str, ...]]:
    """The silos whose updates would be summed under masks; empty where no masks are asked for."""
    if isinstance(request, ShareSecrets):
        return request.roster
    return request.masking.roster if isinstance(request, Train | Evaluate) and request.masking is not None else {}


def purpose_of_request(purpose: Purpose, request: Request, masked: bool) -> Purpose:
    """What the federation file promises, reduced to what this request keeps of it.

    An update without masks is not aggregated securely; with masks, the roster shows how many updates are summed.
    """
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


def digest(message: Any) -> str:
    """SHA-256 of a message: of its header and its tensors, in hexadecimal."""
    header, vectors = wire.split(message)
    found = sha256(header.encode())
    for vector in vectors.values():
        values: Any = vector.contiguous().numpy()
        found.update(values)
    return found.hexdigest()


def guarded(name: str, federation: Federation, folder: Path, answer: Answering, part_of: PartOf) -> Answering:
    """Return ``answer`` of a simulated node behind a `Guard`, if the federation file names a policy for the node."""
    node = dict(walk(federation.silos)).get(name)
    if node is None or node.policy is None:
        return answer
    audit_log = AuditLog(folder / "silos" / name / AUDIT_LOG, name)
    purpose = Purpose.of(federation, name)
    return Guard(answer, Path(node.policy), purpose, audit_log, part_of, f"federation {federation.name}")
