"""The messages between nodes: frozen values, and the only things that cross a link.

Requests: `CollectVocabulary`, `DescribeData`, `ShareKnowledge`, `Train`, `Evaluate`, `Personalise`. Replies:
`VocabularyCounts`, `DataCard`, `Knowledge`, `Update`, `Scores`, `PersonalScores`, and `Failure` where a node gives
none. Secure aggregation adds `AdvertiseKeys`, `ShareSecrets`, `RevealShares` and their replies; a survey adds those of
survey_messages.py.

What most runs do not use stands in optional parts of `Train` and `Update`, one dataclass for each feature. Everything
in a reply has left the silo: it is a release, and `hansa.privacy.policy.guard` lists what each field releases.
"""

from dataclasses import dataclass, field

from hansa.core.codec import LOCAL
from hansa.core.encoding import EncodedUpdate
from hansa.core.survey_messages import (
    OfferSurveyKey,
    SealedSurveyKey,
    SealSurveyKey,
    SurveyKeys,
    SurveyReport,
    TakeSurvey,
)
from hansa.core.tensors import Layout, Tensors

NodeId = str
NO_ANSWER = "it did not answer before the deadline"
NOT_APPROVED = "the silo has not approved this run; its operator finds the reason in its log"
PARTS = 4  # of the test set, for the spread that the report shows
LEFT = "it has left the federation for good"


def no_tensors() -> Tensors:
    """An empty `Tensors`."""
    return Tensors.zeros(Layout((), ()))


# ── before the first round ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class CollectVocabulary:
    """Before there is a model: count words, and list the labels that the training rows use.

    ``min_count``: count only pieces that at least so many rows have; 0 counts none. ``labels``: list only labels that
    at least so many rows have; 0 lists none.
    """

    min_count: int = 0
    labels: int = 0


@dataclass(frozen=True)
class VocabularyCounts:
    """The reply to `CollectVocabulary`. ``withheld``: how many pieces were seen too rarely to be sent."""

    pieces: dict[str, int]
    labels: tuple[str, ...] = ()
    withheld: int = 0


@dataclass(frozen=True)
class DescribeData:
    """Report how many samples the node holds."""


@dataclass(frozen=True)
class DataCard:
    """The reply to `DescribeData`: sample counts as ``groups[split][language or domain]``."""

    groups: dict[str, dict[str, int]]
    per_round: int  # training samples used in one round
    problems: tuple[str, ...] = ()  # rows that could not be used; between organisations only kinds and counts
    inner: bool = False  # the card of a region in another organisation: it covers all nodes below it
    steps: int = 0  # of such a region, where nodes work one after another: sequential steps for one reply

    def samples(self, split: str = "train") -> int:
        """The number of samples of a split, over all groups."""
        return sum(self.groups.get(split, {}).values())


# ── a round ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class ShareKnowledge:
    """Before training: run ``model`` over the training data and return what the method's exchange shares of it.

    The silo keeps the model; the round's `Train` starts from it.
    """

    round: int
    model: Tensors


@dataclass(frozen=True)
class Knowledge:
    """The reply to `ShareKnowledge`: rows of tensors, each standing for several samples (a cluster, a batch)."""

    tensors: Tensors
    members: tuple[int, ...] = ()  # how many samples each row stands for
    lengths: tuple[int, ...] = ()  # where a row is a text: how many of its positions are real
    withheld: int = 0  # rows that stand for too few samples to be shared


@dataclass(frozen=True)
class KnowledgePart:
    """Of `Train`: what the other silos of the cohort shared before training."""

    items: tuple[Knowledge, ...]
    model_held: bool = False  # this round's `ShareKnowledge` brought the model: on a wire it does not travel again


@dataclass(frozen=True)
class MaskingPart:
    """Of `Train` and `Evaluate`, under secure aggregation: the silos whose masks cancel, with what each announced."""

    roster: dict[NodeId, tuple[str, ...]]


@dataclass(frozen=True)
class SubtreePart:
    """Of `Train`, on a tree of models: take the parent's model into the node's own before training.

    ``residuals``: layers of other nodes, named ``NUMBER|LAYER|ORIGIN``; a leaf takes them in, an inner node routes
    them. ``time_limit``: seconds until the parent goes on without the node; 0: it waits.
    """

    parent: NodeId
    residuals: Tensors
    time_limit: float = 0.0


@dataclass(frozen=True)
class StepWindow:
    """Of `Train`, where nodes work one after another: the learning rate follows the steps of the whole tree.

    ``begin``: the sequential step at which this work begins; ``total``: how many there will be.
    """

    begin: int
    total: int


@dataclass(frozen=True)
class Train:
    """Start from ``model``, train locally, return the pseudo-gradient."""

    round: int
    model: Tensors
    durable: int = 0  # the newest checkpointed round: the silo may forget its state from before it
    schedule: StepWindow | None = None  # none: the learning rate follows the rounds
    knowledge: KnowledgePart | None = None
    masking: MaskingPart | None = None
    subtree: SubtreePart | None = None
    shared_state: Tensors | None = None  # the server's part of the method's state, such as SCAFFOLD's control variate
    capacity: int = 0  # values that the update may have, where a partial downlink makes it larger than ``model``
    moved: EncodedUpdate | None = None  # in place of ``model``: how far it lies from the one that was sent last
    held: int = 0  # the round in which that one was sent
    reference: bool = False  # only to compare other updates with: on other batches, and no state is kept


@dataclass(frozen=True)
class MaskedPart:
    """Of `Update`: the gradient is fixed-point numbers under masks.

    ``clipped``: how many values exceeded the fixed-point bound and were clipped; ``metrics``: the loss, the counts and
    the seconds of the update under masks, which are then zero in the update itself.
    """

    clipped: int = 0
    metrics: Tensors | None = None


@dataclass(frozen=True)
class ArrivalOrder:
    """The children whose updates arrived at an asynchronous inner node in one of its own rounds, in that order."""

    node: NodeId
    round: int
    children: tuple[NodeId, ...]


@dataclass(frozen=True)
class BelowPart:
    """Of `Update`, from an inner node: what happened below it, node by node."""

    failures: dict[NodeId, str] = field(default_factory=dict)
    sent: dict[NodeId, int] = field(default_factory=dict)  # bytes down to each node
    received: dict[NodeId, int] = field(default_factory=dict)  # bytes up from it
    arrivals: tuple[ArrivalOrder, ...] = ()


@dataclass(frozen=True)
class LayersPart:
    """Of `Update`, on a tree of models: layers for other nodes, and attention weights for the report."""

    residuals: Tensors = field(default_factory=no_tensors)  # named as in `SubtreePart`
    attention: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)  # `down|up NODE` → layer → member
    refused: dict[NodeId, str] = field(default_factory=dict)  # by node: a residual that it did not accept, and why
    keys: Tensors = field(default_factory=no_tensors)  # where the backbone is masked: how far the key layers moved


@dataclass(frozen=True)
class Update:
    """The reply to `Train`: the pseudo-gradient θ − θᵢ of the tensors that leave, and how it came about."""

    gradient: Tensors
    samples: int  # training samples that the silo holds
    seen: int  # samples trained on in this round
    steps: int
    loss: float  # mean training loss
    seconds: float  # spent in training steps
    encoded: EncodedUpdate | None = None  # the gradient in fewer bytes; then ``gradient`` is empty until it is decoded
    movement: tuple[float, ...] = ()  # how far each tensor moved since the silo's last round (dynamic pulling)
    masked: MaskedPart | None = None
    below: BelowPart | None = None
    layers: LayersPart | None = None
    shared_state: Tensors | None = None  # the silo's contribution to the method's state at the server
    staleness: int = field(default=0, metadata=LOCAL)  # versions since the silo began; set by the server

    @property
    def plain(self) -> bool:
        """Whether it has no tensors beside its gradient."""
        return all(one is None for one in (self.encoded, self.masked, self.layers, self.shared_state))


# ── secure aggregation ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class AdvertiseKeys:
    """Make keys for this round, which starts from the model with digest ``model``, and return the public ones."""

    round: int
    model: str = ""
    scores: str = ""  # of which evaluation the sum is (`Evaluate.masked_as`); empty: of the round's updates


@dataclass(frozen=True)
class AdvertisedKeys:
    """The reply to `AdvertiseKeys`.

    ``seal`` encrypts shares, ``mask`` agrees on masks; ``model`` is the digest that the silo was told; between
    organisations the silo signs all of it.
    """

    seal: str
    mask: str
    samples: int
    model: str = ""
    signature: str = ""


@dataclass(frozen=True)
class ShareSecrets:
    """Split this round's secrets among the silos on the ``roster``; any ``threshold`` shares reconstruct a secret."""

    round: int
    roster: dict[NodeId, tuple[str, ...]]
    threshold: int
    scores: str = ""  # as in `AdvertiseKeys`


@dataclass(frozen=True)
class SecretShares:
    """The reply to `ShareSecrets`: one share for each other silo, encrypted for it."""

    sealed: dict[NodeId, str]


@dataclass(frozen=True)
class RevealShares:
    """Decrypt the shares you hold: of the self-mask seed of each silo that ``answered``, of the key of the others."""

    round: int
    sealed: dict[NodeId, str]
    answered: tuple[NodeId, ...]
    scores: str = ""  # as in `AdvertiseKeys`


@dataclass(frozen=True)
class RevealedShares:
    """The reply to `RevealShares`: for every other silo one point of its polynomial, in hexadecimal."""

    shares: dict[NodeId, tuple[str, ...]]


# ── evaluation and personalisation ────────────────────────────────────────────────────────────────────────────────


PART = "|"  # between the name of a group and the number of its part


@dataclass(frozen=True)
class Evaluate:
    """Score ``model`` on a split of the node's data; ``share`` of it, always the same part."""

    round: int
    model: Tensors
    split: str = "test"
    share: float = 1.0
    parts: int = 1  # cut every group's samples in so many, and score each: `fr` becomes `fr|0`, `fr|1`, …
    decode: bool = False  # also generate texts and compare them, where the task can
    own: bool = False  # score the silo's own model: this one, with the silo's values where it keeps its own
    by_node: bool = False  # on a tree: every node scores its own model (this one, unless it is empty), under its name
    masking: MaskingPart | None = None  # return the sums under masks: the server learns their total over silos alone

    @property
    def masked_as(self) -> str:
        """The name of this evaluation's masked sum: a round has one of each name."""
        return f"{self.split}-in-parts" if self.parts > 1 else self.split


@dataclass(frozen=True)
class Scores:
    """The reply to `Evaluate`: sums that add up over batches, silos and regions, as ``sums[group][quantity]``."""

    sums: dict[str, dict[str, float]]
    masked: Tensors | None = None  # the sums over all groups, under masks; then ``sums`` is empty

    def __add__(self, other: "Scores") -> "Scores":
        merged = {group: dict(values) for group, values in self.sums.items()}
        for group, values in other.sums.items():
            mine = merged.setdefault(group, {})
            for key, value in values.items():
                mine[key] = mine.get(key, 0.0) + value
        return Scores(merged)


@dataclass(frozen=True)
class Personalise:
    """Train a personal model from ``start`` and compare it with the shared ``model``."""

    round: int
    model: Tensors
    start: Tensors
    label: str  # the name under which the result is reported
    leg: int = 0  # which stretch of the personal rounds this is: other batches each time
    share: bool = False  # return the update, and nothing else


@dataclass(frozen=True)
class PersonalScores:
    """The reply to `Personalise`: sums on the test data, losses on the validation data, metrics over α."""

    gradient: Tensors  # empty unless it was asked for
    sums: dict[str, dict[str, dict[str, float]]]  # model → group → quantity
    losses: dict[str, float]
    curves: dict[str, tuple[float, ...]]  # metric → its validation value at every α, where α was swept
    alpha: float


@dataclass(frozen=True)
class Failure:
    """No reply, and why. A silo that drops out or refuses is a value, not an exception."""

    reason: str


Request = (
    CollectVocabulary
    | DescribeData
    | ShareKnowledge
    | Train
    | Evaluate
    | Personalise
    | AdvertiseKeys
    | ShareSecrets
    | RevealShares
    | OfferSurveyKey
    | SealSurveyKey
    | TakeSurvey
)
Reply = (
    VocabularyCounts
    | DataCard
    | Knowledge
    | Update
    | Scores
    | PersonalScores
    | AdvertisedKeys
    | SecretShares
    | RevealedShares
    | SurveyKeys
    | SealedSurveyKey
    | SurveyReport
    | Failure
)
