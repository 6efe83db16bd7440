"""What each message releases: the table that policies judge by, field by field.

A message or a field that is not listed here is refused by the guard (guard.py), so that a new one cannot leave by
accident; a test fails until it is listed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from hashlib import sha256
from typing import Any

from hansa.core import wire
from hansa.core.codec import encoded_fields
from hansa.core.encoding import EncodedUpdate
from hansa.core.messages import (
    AdvertisedKeys,
    AdvertiseKeys,
    CollectVocabulary,
    DataCard,
    DescribeData,
    Evaluate,
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
from hansa.core.survey_messages import (
    OfferSurveyKey,
    SealedSurveyKey,
    SealSurveyKey,
    SurveyKeys,
    SurveyReport,
    TakeSurvey,
)
from hansa.core.tensors import Tensors
from hansa.privacy.policy.rules import Kind, ReleaseItem

# What each field of each reply releases; fields of an optional part are written ``part.field``.
RELEASE_KINDS: Mapping[type, Mapping[str, Kind]] = {
    VocabularyCounts: {"pieces": "words", "withheld": "words", "labels": "labels"},
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
        "below.arrivals.node": "metrics",
        "below.arrivals.round": "metrics",
        "below.arrivals.children": "metrics",
        "layers.residuals": "layers",
        "layers.attention": "layers",
        "layers.refused": "layers",
        "layers.keys": "layers",
        "shared_state": "tensors",
    },
    # Keys and shares serve the sum of the updates, or of scores, and release nothing beyond it.
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
    # The key agreement serves the sketches and releases nothing beyond them.
    SurveyKeys: {"keys": "sketches"},
    SealedSurveyKey: {"sealed": "sketches"},
    SurveyReport: {
        "figures.rows": "survey",
        "figures.splits": "survey",
        "figures.words": "survey",
        "figures.characters": "survey",
        "figures.languages": "survey",
        "figures.vocabulary": "survey",
        "figures.withheld": "survey",
        "labels": "labels",
        "sketches.vocabulary": "sketches",
        "sketches.documents": "sketches",
        "sketches.count": "sketches",
        "sketches.of": "sketches",
    },
}
SHARED_STATE = "shared_state"  # the part of tensors of a method's shared state that the model does not have

PartOf = Callable[[str], str]  # tensor → the part of the model that it belongs to; KeyError for other tensors


def requested_items(request: object) -> list[ReleaseItem] | None:
    """What the reply to a request would release, as far as the request shows; None for an unlisted request."""
    match request:
        case CollectVocabulary():
            counts = [ReleaseItem("words", min_count=request.min_count)] if request.min_count else []
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
        case OfferSurveyKey() | SealSurveyKey():
            return [ReleaseItem("sketches")]
        case TakeSurvey():
            figures = [ReleaseItem("survey", min_count=request.floor)]
            sketches = [ReleaseItem("sketches")] if request.sealed else []
            return figures + ([ReleaseItem("labels")] if request.labels else []) + sketches
        case _:
            return None


def released_items(reply: Reply, request: Request, part_of: PartOf) -> list[ReleaseItem] | None:
    """What a reply contains; None if it has a field that is not listed, or a tensor that is not of the model."""
    kinds, present = RELEASE_KINDS.get(type(reply)), dict(nonempty_fields(reply))
    if kinds is None or any(name not in kinds for name in present):
        return None
    floors: dict[Kind, int] = {}
    if isinstance(request, CollectVocabulary):
        floors["words"] = request.min_count
    if isinstance(request, TakeSurvey):
        floors["survey"] = request.floor
    scores = isinstance(request, AdvertiseKeys | ShareSecrets | RevealShares) and bool(request.scores)
    found: dict[Kind, ReleaseItem] = {}
    for name, value in present.items():
        kind: Kind = "metrics" if scores and kinds[name] == "tensors" else kinds[name]
        parts: frozenset[str] = frozenset()
        if kind == "tensors":
            try:
                of = state_part(part_of) if name == SHARED_STATE else part_of
                parts = frozenset(map(of, _tensor_names(value)))
            except KeyError:
                return None
        earlier = found.get(kind, ReleaseItem(kind))
        found[kind] = ReleaseItem(kind, earlier.parts | parts, floors.get(kind, 0))
    return list(found.values())


def state_part(part_of: PartOf) -> PartOf:
    """Return ``part_of`` for tensors of a method's shared state: those that the model lacks are `SHARED_STATE`."""

    def part(tensor: str) -> str:
        """The part of the model that a tensor belongs to, or `SHARED_STATE` if the model does not have it."""
        try:
            return part_of(tensor)
        except KeyError:
            return SHARED_STATE

    return part


def nonempty_fields(message: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a message that are not empty, with their values; those of an optional part as ``part.field``.

    So are those of several parts, in a dict by silo or in a tuple; of these the last value is returned.
    """
    for name, _ in encoded_fields(message.__class__):
        value = getattr(message, name)
        if is_dataclass(value) and not isinstance(value, Tensors | EncodedUpdate):
            yield from nonempty_fields(value, f"{prefix}{name}.")
        elif several := [one for one in _members(value) if is_dataclass(one)]:
            for one in several:
                yield from nonempty_fields(one, f"{prefix}{name}.")
        elif not _empty(value):
            yield prefix + name, value


def _members(value: Any) -> Iterable[Any]:
    """The values in a dict or a tuple; none of anything else."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()


def _tensor_names(value: Any) -> tuple[str, ...]:
    """The names of the tensors in the value of a field."""
    return value.layout.names if isinstance(value, Tensors) else value.names if isinstance(value, EncodedUpdate) else ()


def _empty(value: Any) -> bool:
    return not _tensor_names(value) if isinstance(value, Tensors | EncodedUpdate) else not value


def digest(message: Any) -> str:
    """SHA-256 of a message: of its header and its tensors, in hexadecimal."""
    header, vectors = wire.split(message)
    found = sha256(header.encode())
    for vector in vectors.values():
        values: Any = vector.contiguous().numpy()
        found.update(values)
    return found.hexdigest()
