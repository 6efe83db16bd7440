"""What nodes say to one another: frozen values, nothing else crosses a link.

A request is one of `CollectVocabulary`, `DescribeData`, `ShareKnowledge`, `Train`, `Fit`, `Evaluate`, `Personalise`; a reply is one of
`VocabularyCounts`, `DataCard`, `Knowledge`, `Update`, `Scores`, `PersonalScores`, or `Failure` where a node gave none. Secure aggregation adds
`AdvertiseKeys`, `ShareSecrets`, `RevealShares` and their replies. Everything in a reply has left the silo: it is a release.
"""

from dataclasses import dataclass, field

from hansa.core.encoding import EncodedUpdate
from hansa.core.tensors import Layout, Tensors

NodeId = str


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class CollectVocabulary:
    """Before there is a model: which word pieces do you see at least ``pieces`` times (0: do not tell), and, where
    the task has classes, which ``labels``?"""

    pieces: int = 0
    labels: bool = False


@dataclass(frozen=True)
class DescribeData:
    """How much data do you hold?"""


@dataclass(frozen=True)
class Knowledge:
    """What a silo tells the others before they train: knowledge in pairs (or triples, …), one per row of each tensor.

    A silo's reply to a `ShareKnowledge`; the others receive it with their `Train`.
    """

    knowledge: Tensors
    members: tuple[int, ...] = ()  # how many samples each row stands for
    lengths: tuple[int, ...] = ()  # where a row is a text: how many of its positions are real
    withheld: int = 0  # rows that stand for too few samples to be told


@dataclass(frozen=True)
class ShareKnowledge:
    """What does ``model`` make of your data? Keep the model: the round's `Train` starts from it."""

    round: int
    model: Tensors


@dataclass(frozen=True)
class Train:
    """Start from ``model``, work locally, send back what moved."""

    round: int
    model: Tensors
    durable: int = 0  # the newest checkpointed round: what a silo remembers from before it may be forgotten
    begin: int = 0  # on a tree: the sequential step of the whole tree at which this work begins,
    total: int = 0  # and how many there will be; 0: the learning rate goes by rounds
    offers: tuple[Knowledge, ...] = ()  # the others'
    held: bool = False  # this round's `ShareKnowledge` brought the model: over a wire it does not travel again
    roster: dict[NodeId, tuple[str, ...]] = field(default_factory=dict)  # whose masks cancel: see veil.py; empty: none
    room: int = 0  # how many values the update may have, where that is more than the model here
    probe: bool = False  # only to compare others with: on other batches, and nothing is remembered


@dataclass(frozen=True)
class Fit:
    """On a tree: take your parent's ``model`` into yours, work with your children, send back how far you are from it.

    Residuals are layers of others; a leaf takes them in, an inner node hands them on. See fit.py.
    """

    round: int
    parent: NodeId
    model: Tensors
    residuals: Tensors  # tensor names are `NUMBER|LAYER|ORIGIN`, one flat layer each
    durable: int = 0
    begin: int = 0
    total: int = 0
    within: float = 0.0  # seconds until the parent goes on without you; 0: it waits


@dataclass(frozen=True)
class AdvertiseKeys:
    """Secure aggregation: make keys for this round, which starts from the model with this digest, and tell the public
    ones. See veil.py."""

    round: int
    model: str = ""


@dataclass(frozen=True)
class ShareSecrets:
    """Deal out shares of this round's secrets to those on the ``roster``, each sealed for its receiver; any
    ``threshold`` of them shall restore a secret."""

    round: int
    roster: dict[NodeId, tuple[str, ...]]
    threshold: int


@dataclass(frozen=True)
class RevealShares:
    """Open what was entrusted to you: the seed of whoever ``answered``, the key of whoever did not."""

    round: int
    sealed: dict[NodeId, str]
    answered: tuple[NodeId, ...]


@dataclass(frozen=True)
class Evaluate:
    """Score ``model`` on a split of your data; ``share`` of it, always the same part."""

    round: int
    model: Tensors
    split: str = "test"
    share: float = 1.0
    parts: int = 1  # cut every group's samples in so many, and score each: `fr` becomes `fr|0`, `fr|1`, …
    decode: bool = False  # also write texts and compare them, where the task can
    own: bool = False  # score the silo's own model: this one, with the silo's values where it keeps its own
    by_node: bool = False  # on a tree: every node scores its own model (this one, unless it is empty), under its name


@dataclass(frozen=True)
class Personalise:
    """Train a model of your own from ``start`` and weigh it against the shared ``model``; see personal.py."""

    round: int
    model: Tensors
    start: Tensors
    label: str
    leg: int = 0  # which stretch of the personal rounds this is: other batches each time
    share: bool = False  # send the update back, and nothing else


# ── replies ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class VocabularyCounts:
    pieces: dict[str, int]
    labels: tuple[str, ...] = ()
    withheld: int = 0  # pieces seen too rarely to be told


@dataclass(frozen=True)
class DataCard:
    """Sample counts: ``groups[split][language or domain]``; training samples used per round; what could not be read."""

    groups: dict[str, dict[str, int]]
    per_round: int
    problems: tuple[str, ...] = ()
    inner: bool = False  # of a region in another organisation: it stands for all below it,
    steps: int = 0  # and, on a tree, takes so many sequential steps to answer

    def samples(self, split: str = "train") -> int:
        return sum(self.groups.get(split, {}).values())


def nothing() -> Tensors:
    return Tensors.zeros(Layout((), ()))


@dataclass(frozen=True)
class Update:
    """The pseudo-gradient θ − θᵢ of the tensors that left the silo, and how it came about."""

    gradient: Tensors
    samples: int
    seen: int
    steps: int
    loss: float
    seconds: float  # in training steps alone
    lost: dict[str, str] = field(default_factory=dict)  # below a federation: who gave no update, and why
    stale: int = 0  # versions of the model since the silo began; noted by whoever waited (fedbuff)
    coded: EncodedUpdate | None = None  # the gradient in fewer bytes; then ``gradient`` is empty until it is opened
    moved: tuple[float, ...] = ()  # how far each tensor moved since the silo's last round, where that decides (pulling)
    residuals: Tensors = field(default_factory=nothing)  # on a tree: layers for others, named as in `Fit`
    attention: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)  # `down|up NODE` → layer → whom
    refused: dict[str, str] = field(default_factory=dict)  # by node: which layer it would not take, and why
    masked: bool = False  # the gradient is fixed-point numbers under masks, in the bits of its tensors: see veil.py
    cut: int = 0  # under a mask: how many values were beyond the bound
    sent: dict[str, int] = field(default_factory=dict)  # below a federation: bytes down to each node, and up from it
    received: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    """Sums that add up over batches, silos and federations: ``sums[group][quantity]``."""

    sums: dict[str, dict[str, float]]

    def __add__(self, other: "Scores") -> "Scores":
        merged = {group: dict(values) for group, values in self.sums.items()}
        for group, values in other.sums.items():
            mine = merged.setdefault(group, {})
            for key, value in values.items():
                mine[key] = mine.get(key, 0.0) + value
        return Scores(merged)


@dataclass(frozen=True)
class PersonalScores:
    """How a silo's own models do: sums on its test data, losses on its validation data; metrics over α."""

    gradient: Tensors  # empty unless it was asked for
    sums: dict[str, dict[str, dict[str, float]]]  # model → group → quantity
    losses: dict[str, float]
    curves: dict[str, tuple[float, ...]]  # metric → its validation value at every α, where α was swept
    alpha: float


@dataclass(frozen=True)
class AdvertisedKeys:
    """A silo's public keys of a round: to seal shares with, and to agree on masks with; how many samples it has, of
    which model it was told, and, between organisations, its signature."""

    seal: str
    mask: str
    samples: int
    model: str = ""
    signature: str = ""


@dataclass(frozen=True)
class SecretShares:
    """Shares of a silo's secrets, sealed for each of the others."""

    sealed: dict[NodeId, str]


@dataclass(frozen=True)
class RevealedShares:
    """Of every other silo, this one's share of what undoes its masks: a point, in hexadecimal."""

    shares: dict[NodeId, tuple[str, ...]]


NO_ANSWER = "it did not answer before the deadline"


@dataclass(frozen=True)
class Failure:
    """No reply, and why. A drop-out is a value, not an exception."""

    reason: str


Request = (
    CollectVocabulary
    | DescribeData
    | ShareKnowledge
    | Train
    | Fit
    | Evaluate
    | Personalise
    | AdvertiseKeys
    | ShareSecrets
    | RevealShares
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
    | Failure
)
