"""A node's answer, within its policy and noted in its audit log: nothing leaves that a rule does not allow.

What would leave is judged twice: before the work, by what is asked; after it, by what the reply really holds, tensor by
tensor. A message or a field that is not listed here is refused: whoever adds one says here what it releases.
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
from hansa.privacy.policy.audit_log import NAME, AuditLog
from hansa.privacy.policy.rules import Kind, Policy, Purpose, Verdict, Wanted

log = logging.getLogger("hansa.policy")

# Every field of every reply, by what it releases.
CONTENTS: Mapping[type, Mapping[str, Kind]] = {
    VocabularyCounts: {"pieces": "pieces", "withheld": "pieces", "labels": "labels"},
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
        "below.failures": "metrics",
        "below.sent": "metrics",
        "below.received": "metrics",
        "layers.residuals": "residuals",
        "layers.attention": "residuals",
        "layers.refused": "residuals",
        "shared_state": "tensors",
    },
    # Keys and shares are there for the sum of the updates, and release nothing else.
    AdvertisedKeys: {
        "seal": "tensors",
        "mask": "tensors",
        "samples": "samples",
        "model": "tensors",
        "vouch": "tensors",
    },
    SecretShares: {"sealed": "tensors"},
    RevealedShares: {"shares": "tensors"},
    Knowledge: {"knowledge": "offers", "members": "offers", "lengths": "offers", "withheld": "offers"},
    Scores: {"sums": "metrics"},
    PersonalScores: {
        "gradient": "tensors",
        "sums": "personal",
        "losses": "personal",
        "curves": "personal",
        "alpha": "personal",
    },
}

Answer = Callable[[Request], Reply]
PartOf = Callable[[str], str]  # the part of the model that a tensor belongs to


def asked_for(request: object) -> list[Wanted] | None:
    """What a reply would release, as far as the request tells; None if nothing here knows the request."""
    match request:
        case CollectVocabulary():
            pieces = [Wanted("pieces", seen=request.min_count)] if request.min_count else []
            return pieces + ([Wanted("labels")] if request.labels else [])
        case DescribeData():
            return [Wanted("samples")]
        case ShareKnowledge():
            return [Wanted("offers")]
        case Train():
            held = request.knowledge is not None and request.knowledge.model_held
            tensors = [Wanted("tensors")] if request.model.layout.names or held else []
            return [*tensors, Wanted("samples"), Wanted("metrics")]
        case AdvertiseKeys():
            return [Wanted("tensors"), Wanted("samples")]
        case ShareSecrets() | RevealShares():
            return [Wanted("tensors")]
        case Evaluate():
            return [Wanted("metrics")]
        case Personalise():
            return [Wanted("personal")] + ([Wanted("tensors")] if request.share else [])
        case _:
            return None


def held_by(reply: Reply, request: Request, part_of: PartOf) -> list[Wanted] | None:
    """What a reply really holds; None if it has something in it that is not listed here."""
    known, present = CONTENTS.get(type(reply)), dict(held_fields(reply))
    if known is None or any(name not in known for name in present):
        return None
    found: dict[Kind, Wanted] = {}
    for name, value in present.items():
        kind = known[name]
        parts = frozenset(map(part_of, _tensors(value))) if kind == "tensors" else frozenset()
        seen = request.min_count if isinstance(request, CollectVocabulary) else 0
        earlier = found.get(kind, Wanted(kind))
        found[kind] = Wanted(kind, earlier.parts | parts, seen if kind == "pieces" else 0)
    return list(found.values())


def held_fields(message: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a message that are not empty; those of an optional part as ``part.field``."""
    for name, _ in encoded_fields(message.__class__):
        value = getattr(message, name)
        if is_dataclass(value) and not isinstance(value, Tensors | EncodedUpdate):
            yield from held_fields(value, f"{prefix}{name}.")
        elif not _empty(value):
            yield prefix + name, value


def _tensors(value: Any) -> tuple[str, ...]:
    """The names of the tensors that a field holds."""
    return value.layout.names if isinstance(value, Tensors) else value.names if isinstance(value, EncodedUpdate) else ()


def _empty(value: Any) -> bool:
    return not _tensors(value) if isinstance(value, Tensors | EncodedUpdate) else not value


@dataclass(frozen=True)
class Guard:
    """Stands before a node's own ``answer``; ``to``: who asks. The policy is read anew for every request, so that what
    its operator writes counts at once."""

    answer: Answer
    policy: Path
    purpose: Purpose
    log: AuditLog
    part_of: PartOf
    to: str

    def __call__(self, request: Request) -> Reply:
        about = {"message": type(request).__name__, "round": getattr(request, "round", 0), "to": self.to}
        policy, wanted = Policy.read(self.policy), asked_for(request)
        self.log.add("request", **about, bytes=wire.size(request) if wanted is not None else 0)
        masked = bool(roster_of(request))
        purpose = met(self.purpose, request, masked)
        refusal, _ = _judge(policy, purpose, wanted, type(request).__name__)
        if refusal:
            return self._refuse(about, refusal)
        reply = self._work(request, about)
        if isinstance(reply, Failure):
            self.log.add("failed", **about, reason=reply.reason)
            return reply
        about["message"] = type(reply).__name__
        purpose = met(self.purpose, request, masked and (not isinstance(reply, Update) or reply.masked is not None))
        held = held_by(reply, request, self.part_of)
        refusal, verdicts = _judge(policy, purpose, held, type(reply).__name__)
        if refusal:
            return self._refuse(about, refusal)
        rules = {verdict.wanted.kind: verdict.rule for verdict in verdicts}
        self.log.add("release", **about, bytes=wire.size(reply), digest=digest(reply), rules=rules)
        return reply

    def _work(self, request: Request, about: dict[str, Any]) -> Reply:
        """What an error says may quote the text that it stumbled over: of its words none leaves."""
        try:
            return self.answer(request)
        except HansaError as error:
            self.log.add("failed", **about, reason=type(error).__name__)
            raise
        except Exception as error:
            self.log.add("failed", **about, reason=type(error).__name__)
            raise RunFailed(f"{type(error).__name__} (what it says stays at the silo)") from None

    def _refuse(self, about: dict[str, Any], reason: str) -> Failure:
        """Tell the node's own operator, in the log it reads and the one it cannot change, and whoever asked."""
        log.warning("%s refused a %s of %s: %s", self.log.node, about["message"], self.to, reason)
        self.log.add("refusal", **about, reason=reason)
        return Failure(f"its policy refuses: {reason}")


def roster_of(request: Request) -> Mapping[str, tuple[str, ...]]:
    """The silos that an update would be masked with; empty where no masks are asked for."""
    if isinstance(request, ShareSecrets):
        return request.roster
    return request.masking.roster if isinstance(request, Train) and request.masking is not None else {}


def met(purpose: Purpose, request: Request, masked: bool) -> Purpose:
    """What the file promises, as far as this request keeps it: an update in the clear is not aggregated securely, and
    under masks the silo sees how many it will be summed with."""
    roster = roster_of(request)
    if isinstance(request, Train | Personalise) and not masked:
        purpose = replace(purpose, secure_aggregation=False)
    return replace(purpose, cohort=min(purpose.cohort, len(roster))) if roster else purpose


def _judge(policy: Policy, purpose: Purpose, wanted: list[Wanted] | None, message: str) -> tuple[str, list[Verdict]]:
    if wanted is None:
        return f"no rule can allow a {message}, because policies know nothing of what it would release", []
    verdicts = [policy.judge(one, purpose) for one in wanted]
    return next((f"{v.wanted.kind} may not leave: {v.reason}" for v in verdicts if not v.allowed), ""), verdicts


def digest(message: Any) -> str:
    """What a message says, as one number: SHA-256 of its header and its tensors."""
    header, vectors = wire.split(message)
    found = sha256(header.encode())
    for vector in vectors.values():
        values: Any = vector.contiguous().numpy()
        found.update(values)
    return found.hexdigest()


def guarded(name: str, federation: Federation, folder: Path, answer: Answer, part_of: PartOf) -> Answer:
    """A simulated node's answer: guarded where the federation file names a policy for it."""
    node = dict(walk(federation.silos)).get(name)
    if node is None or node.policy is None:
        return answer
    audit = AuditLog(folder / "silos" / name / NAME, name)
    purpose = Purpose.of(federation, name)
    return Guard(answer, Path(node.policy), purpose, audit, part_of, f"federation {federation.name}")
