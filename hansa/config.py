"""What a federation file may say: its sections, their defaults, and what contradicts what."""

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hansa.data.source import Files as Files
from hansa.data.source import Source as Source
from hansa.data.spread import into_clients
from hansa.errors import did_you_mean
from hansa.section import Count as Count
from hansa.section import Named as Named
from hansa.section import Positive as Positive
from hansa.section import Section as Section
from hansa.section import Share as Share
from hansa.simulation import Poison as Poison
from hansa.simulation import Simulation as Simulation

ROOT = "root"  # the name of the root of the tree, where it holds data of its own
NO_DATA = "a node needs data of its own ('train: FILE'), silos below it ('silos:'), or both"


class Secure(Section):
    """Secure aggregation: the server learns the silos' sum and nothing else; see veil.py."""

    threshold: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.6  # of the others: so many restore a silo's secrets
    bound: Positive = 1.0  # of each value of an update; what is beyond it is cut


class Privacy(Section):
    """Differential privacy of a silo's updates; see privacy/update.py."""

    sigma: Positive = 0.5
    clip: Positive | Literal["median"] = "median"  # the bound C on an update's norm, or the norms seen so far
    among: Count = 1  # the noise has the standard deviation σ·C/among: 1 to the letter, n where a mean of n carries it
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    shrink: bool = False  # send the blurred update as long as its signal can be, instead of as long as the noise is
    secret: bool = False  # noise from the system, which no seed repeats: for real use


class Model(Section):
    preset: Literal["mini", "tiny", "small", "base"] | None = None
    path: str | None = None  # a Hugging Face folder, or a hub id (then, and only then, it is downloaded)
    fresh: bool = False  # of the folder take the shape and the tokeniser, not the weights
    dropout: Share = 0.0
    added: tuple[Annotated[int, Field(ge=0)], ...] = ()  # places of layers to add to each stack; see models/grow.py
    adapt: Literal["full", "frozen-embeddings", "frozen", "lora"] = "full"  # what of it is trained: models/adapt.py
    rank: Count = 8  # lora: of the additions
    alpha: Count = 16  # lora: their scale is alpha/rank

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"preset": value} if value in ("mini", "tiny", "small", "base") else {"path": value}
        return value

    @model_validator(mode="after")
    def _one_origin(self) -> "Model":
        if (self.preset is None) == (self.path is None):
            raise ValueError(
                "a model is either a 'preset' (mini, tiny, small, base) or a 'path' to a Hugging Face folder"
            )
        if self.path is not None and self.dropout:
            raise ValueError(f"dropout is {self.dropout:g}: a folder brings its own, in its config.json; leave it out")
        if len(set(self.added)) < len(self.added):
            raise ValueError(f"added is {list(self.added)}: a place can have one layer")
        return self


class Tokenizer(Section):
    kind: Literal["model", "bytes", "federated"] | None = None  # default: the model's own, else federated
    path: str | None = None
    size: Annotated[int, Field(ge=300, le=1_000_000)] = 8000
    minimum: Count = 5  # a word piece leaves a silo only if seen at least this often


class Data(Section):
    max_length: Annotated[int, Field(ge=8, le=8192)] = 64
    valid: Share = 0.05
    test: Share = 0.1
    broken: Share = 0.01  # go on while at most this share of the lines cannot be read
    deidentify: str | None = None  # before anything else: 'rules', or a finder of your own as 'module:Class'


class Adaptation(Section):
    """The amount of samples follows the silo's validation loss; see stability.py."""

    every: Count = 5  # rounds between looks
    tolerance: Annotated[float, Field(ge=0.0)] = 0.005
    least: Share = 0.25
    most: Annotated[float, Field(ge=1.0)] = 4.0


class Samples(Section):
    """How much a silo trains on in one round: ``max(floor, fraction·N)`` samples, or whole passes (``epochs``).

    ``replace``: draw them with replacement (the Medical paper's rule); otherwise take the next ones of an endless
    series of passes, so that every sample comes once per pass. ``times``: of all that, so many times as much.
    """

    floor: Count | None = None
    fraction: Share = 0.0
    epochs: Count | None = None
    replace: bool = True
    times: Positive = 1.0
    adapt: Adaptation | None = None

    @field_validator("adapt", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return {} if value is True else None if value is False else value

    @model_validator(mode="after")
    def _one_rule(self) -> "Samples":
        if (self.epochs is not None) == (self.floor is not None or self.fraction > 0):
            raise ValueError("choose one rule: 'epochs', or 'floor' and 'fraction' for max(floor, fraction·N)")
        return self

    def amount(self, size: int) -> int:
        amount = self.epochs * size if self.epochs is not None else max(self.floor or 1, int(self.fraction * size))
        return amount if self.times == 1.0 else max(1, round(amount * self.times))

    def scaled(self, factor: float, **changes: Any) -> "Samples":
        """The same rule for ``factor`` times as many samples."""
        return self.model_copy(update={"times": self.times * factor} | changes)


class Schedule(Section):
    """lr(r)/lr₀ over rounds: ``constant``; ``linear``: 1 − decay·r; ``cosine`` to ``final`` at the last round;
    ``inverse-sqrt``: √((warmup + 1)/r). Of baselines (but chained ones) and personal models, over steps."""

    kind: Literal["constant", "linear", "cosine", "inverse-sqrt"] = "constant"
    decay: Share | None = None  # linear: per round (or step); default reaches zero after the last one
    final: Share = 0.0
    warmup: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value


class Training(Section):
    """The silo's work in one round. The optimiser is made anew each round unless ``keep_optimizer``."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Positive = 0.1
    momentum: Share = 0.0
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    clip: Positive | None = None  # bound on the norm of a batch's gradient
    batch: Count = 16
    at_once: Count | None = None  # of a batch, samples that go through the model together; default all: memory
    samples: Samples = Samples(epochs=1)
    steps: Count | None = None  # instead of ``samples``: local steps of a silo, spread evenly over the rounds
    max_batches: Count | None = None
    keep_optimizer: bool = False
    schedule: Schedule = Schedule()

    def per_round(self, size: int) -> int:
        """How many of ``size`` samples a silo trains on in a round."""
        amount = self.samples.amount(size)
        return amount if self.max_batches is None else min(amount, self.max_batches * self.batch)


class Personal(Section):
    """A model of its own for every silo, after the shared one; see personal.py."""

    start: Annotated[int, Field(ge=0)] | None = None  # the round whose shared model it starts from; default the last
    rounds: Count = 20  # of local work, each on as much data as a federated round
    train: Training | None = None  # its optimiser; default the baseline's. The amount of data is the federation's.
    mix: Literal["sweep", "adaptive", "none"] = "sweep"
    draws: Count = 1  # how often every sample is asked, each time with other masks, where models are compared
    alpha: Share = 0.5  # adaptive: where α starts
    alpha_lr: Positive = 0.1
    nearby: Annotated[int, Field(ge=0)] = 0  # start from a mixture with so many similar silos, and compare


class Server(Section):
    optimizer: Literal["sgd", "momentum", "adam", "adagrad", "yogi"] = "sgd"
    lr: Positive = 1.0
    momentum: Share = 0.9
    betas: tuple[Share, Share] = (0.9, 0.99)
    eps: Positive = 1e-8  # τ, the degree of adaptivity
    bias_correction: bool = True
    schedule: Schedule = Schedule()


STEEPEST = 50.0  # temperature of a softmax over losses


class Weights(Section):
    by: Literal["samples", "uniform", "loss"] = "samples"
    temperature: float = 1.0  # samples: N^temperature; loss: softmax(−temperature·loss), negative favours bad fits

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"by": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _sign(self) -> "Weights":
        if self.by == "samples" and self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}: below 0, large silos would count least")
        if self.by == "loss" and abs(self.temperature) > STEEPEST:
            raise ValueError(f"temperature is {self.temperature}: beyond {STEEPEST:g} a single silo would count")
        return self


class Aggregation(Section):
    rule: Literal["mean", "median", "trimmed-mean", "krum", "norm-bound"] = "mean"
    weights: Weights = Weights()
    trim: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.2  # trimmed-mean: share cut from each end
    bad: Annotated[int, Field(ge=0)] = 1  # krum: how many silos may lie
    bound: Positive = 1.0  # norm-bound: the largest norm an update keeps

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"rule": value} if isinstance(value, str) else value


class Upload(Section):
    """What of an update leaves a silo, in which code; see upload.py. `[top-k, int8]` and 'top-k+int8' say the same."""

    steps: tuple[Named, ...] = ()  # none: everything leaves, as it is
    feedback: bool = True  # what a code loses is added to the silo's next update

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        short = not isinstance(value, dict) or "name" in value
        return {"steps": value} if short and not isinstance(value, Upload) else value

    @field_validator("steps", mode="before")
    @classmethod
    def _names_only(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [name for name in value.split("+") if name != "whole"]
        if not isinstance(value, list | tuple):
            return [value] if isinstance(value, dict) else value
        return [{"name": step} if isinstance(step, str) else step for step in value]


class Participation(Section):
    """Who takes part in a round: everyone, a share or a number of silos; how many must answer, and by when."""

    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    count: Count | None = None
    quorum: Share = 0.5  # a round counts only if this share of those asked answered
    deadline: Positive | None = None  # seconds

    @model_validator(mode="after")
    def _one_size(self) -> "Participation":
        if self.count is not None and self.share < 1.0:
            raise ValueError(f"count is {self.count} and share {self.share:g}: both say how many take part; keep one")
        return self


class Evaluation(Section):
    every: Count = 5
    target: float | None = None  # the report says when the mean of the headline metric got there
    share: Share = 0.1  # of the test data, while running; the final figures use all of it
    batch: Count = 64
    decode: Annotated[int, Field(ge=0)] = 0  # translate at every n-th look (0: at the end alone); it takes long


class Checkpointing(Section):
    every: Count = 10
    keep: Count = 2


class Holder(Section):
    """What a node holds itself: files of its own or, of an inner node, the ``mixture`` of its descendants' data."""

    sources: tuple[Source, ...] = ()
    mixture: bool = False

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        """`en: data/en.jsonl`, `en: {train: …}` and `en: {sources: […]}` all describe a node with data."""
        if isinstance(value, str):
            return {"mixture": True} if value == "mixture" else {"sources": [{"train": value}]}
        if not isinstance(value, dict) or "sources" in value or ("silos" in value and "train" not in value):
            return value
        own = {key: v for key, v in value.items() if key not in cls.model_fields}
        if own and "train" not in own and own.keys() <= Source.model_fields.keys():
            raise ValueError(f"{NO_DATA}; it only says {', '.join(map(repr, own))}")
        rest = {key: v for key, v in value.items() if key in cls.model_fields}
        return rest | {"sources": [own]} if own else value

    @property
    def holds(self) -> bool:
        return bool(self.sources) or self.mixture


class Node(Holder):
    """A silo (it has data), a federation of further nodes (it has silos), or both: a region with data of its own.

    Settings that are not given are the federation's.
    """

    silos: dict[str, "Node"] = {}
    rounds: Count = 1  # of a federation: rounds among its own silos for each round above
    method: Named | None = None
    server: Server | None = None  # of a federation on a tree: how it moves its own model
    participation: Participation | None = None  # of a federation: who of its silos takes part
    privacy: Privacy | None = None  # of a silo
    policy: str | None = None  # what may leave it: a file of its own, see privacy/policy.py
    model: Model | None = None  # where its own model starts, on a tree; the architecture is the federation's

    @field_validator("method", mode="before")
    @classmethod
    def _name_only(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _some_kind(self) -> "Node":
        if not self.sources and not self.silos:
            raise ValueError(NO_DATA)
        if self.sources and self.mixture:
            raise ValueError("a node holds files of its own or the 'mixture' of its silos, not both: leave one out")
        if self.privacy is not None and self.silos:
            raise ValueError("'privacy' protects a silo's own data: put it on the silos below instead")
        count = self.participation.count if self.participation else None
        if count is not None and count > len(self.silos):
            raise ValueError(f"participation.count is {count}, but {len(self.silos)} silos stand below this node")
        return self


class Recording(Section):
    """What silos keep a copy of when it leaves them, for an audit; see record.py."""

    offers: bool = False
    updates: bool = False


class Federation(Section):
    name: str = "run"
    seed: int = 0
    kind: Literal["federated", "central", "dominant", "per-silo", "chained", "base"] = "federated"
    order: tuple[str, ...] = ()  # chained: whose data come first, second, …; default as below 'silos'
    uses: tuple[str, ...] = ()  # Python files that add tasks or methods of your own
    task: Named = Named(name="mlm")
    model: Model = Model(preset="tiny")
    tokenizer: Tokenizer = Tokenizer()
    data: Data = Data()
    silos: dict[str, Node]
    root: Holder | None = None  # on a tree: what the root itself trains on
    method: Named = Named(name="fedavg")
    rounds: Annotated[int, Field(ge=0)] = 10
    participation: Participation = Participation()
    simulate: Simulation = Simulation()
    train: Training = Training()
    baseline: Training = Training(optimizer="adamw", lr=3e-5, eps=1e-6, weight_decay=0.01, keep_optimizer=True)
    server: Server | None = None  # default: what the method brings
    aggregate: Aggregation | None = None
    secure: Secure | None = None
    upload: Upload = Upload()
    personal: Personal | None = None
    evaluate: Evaluation = Evaluation()
    checkpoint: Checkpointing = Checkpointing()
    record: Recording = Recording()

    @property
    def without_rounds(self) -> bool:
        """A baseline that trains on and on, and is looked at from time to time: its schedule goes by steps."""
        return self.kind in ("central", "dominant", "per-silo")

    @field_validator("secure", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return {} if value is True else None if value is False else value

    @field_validator("task", "method", mode="before")
    @classmethod
    def _name_only(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="wrap")
    @classmethod
    def _spread_steps(cls, value: Any, handler: Callable[[Any], "Federation"]) -> "Federation":
        """`train.steps` in samples per round, which is what everybody goes by."""
        built = handler(value)
        steps, rounds = built.train.steps, max(1, built.rounds)
        if steps is None:
            return built
        if "samples" in built.train.model_fields_set:
            raise ValueError("choose one rule: 'train.steps' or 'train.samples'")
        if steps % rounds:
            raise ValueError(f"train.steps is {steps}, which {rounds} rounds cannot share evenly: give a multiple")
        samples = Samples(floor=steps // rounds * built.train.batch, replace=False)
        return built.model_copy(update={"train": built.train.model_copy(update={"samples": samples, "steps": None})})

    @model_validator(mode="before")
    @classmethod
    def _clients(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("silos"), dict):
            return value | {"silos": into_clients(value["silos"], value.get("seed", 0))}
        return value

    @model_validator(mode="after")
    def _sensible(self) -> "Federation":
        if not self.silos:
            raise ValueError("'silos' is empty: a federation needs at least one silo")
        names = [ROOT] * (self.root is not None) + [name for name, _ in walk(self.silos)]
        for name in names:
            if not re.fullmatch(r"\w[\w .+-]{0,63}", name) or ".." in name:
                raise ValueError(
                    f"silo name {name!r} is not usable as a folder name: use letters, digits, '-', '_' and '.'"
                )
        twice = {n for n in names if names.count(n) > 1}
        if twice:
            raise ValueError(f"silo name '{min(twice)}' is used twice: every node of the tree needs its own name")
        if not re.fullmatch(r"\w[\w.+-]{0,63}", self.name) or ".." in self.name:
            raise ValueError(f"name {self.name!r} is not usable as a folder name")
        if self.data.valid + self.data.test >= 1.0:
            raise ValueError(
                f"data.valid {self.data.valid} + data.test {self.data.test} leave nothing to train on: "
                "together they must stay below 1"
            )
        if self.personal is not None and (self.personal.start or 0) > self.rounds:
            raise ValueError(f"personal.start is {self.personal.start}, but there are only {self.rounds} rounds")
        strangers = set(self.simulate.delay) - set(names)
        if strangers:
            raise ValueError(
                f"simulate.delay names '{min(strangers)}', which is not a node of the federation; "
                f"{did_you_mean(min(strangers), names)}"
            )
        strangers = set(self.simulate.poison) - set(leaves(self.silos))
        if strangers:
            raise ValueError(
                f"simulate.poison names '{min(strangers)}', which is not a silo; "
                f"{did_you_mean(min(strangers), leaves(self.silos))}"
            )
        unknown = set(self.order) - set(leaves(self.silos))
        if unknown:
            raise ValueError(f"order names '{min(unknown)}'; {did_you_mean(min(unknown), leaves(self.silos))}")
        count = self.participation.count
        if count is not None and count > len(self.silos):
            raise ValueError(
                f"participation.count is {count}, but there are {len(self.silos)} silos: "
                f"at most {len(self.silos)} can take part"
            )
        return self


def walk(silos: dict[str, Node]) -> Iterator[tuple[str, Node]]:
    """Every node of the tree, parents before children."""
    for name, node in silos.items():
        yield name, node
        yield from walk(node.silos)


def repeats(silos: dict[str, Node], times: int = 1) -> dict[str, int]:
    """How many rounds each node has in one round of the root: inner federations may have several of their own."""
    found: dict[str, int] = {}
    for name, node in silos.items():
        found[name] = times * node.rounds if node.silos else times
        found |= repeats(node.silos, found[name])
    return found


def leaves(silos: dict[str, Node]) -> dict[str, Node]:
    """Every node with files of its own, parents before children."""
    return {name: node for name, node in walk(silos) if node.sources}


def protected(federation: Federation) -> dict[str, Privacy]:
    """The silos whose updates are differentially private."""
    found = {name: node.privacy for name, node in walk(federation.silos) if node.privacy is not None}
    return found if federation.kind == "federated" and federation.rounds else {}


def holders(federation: Federation) -> dict[str, Holder]:
    """Every node that holds data, the root first; of a mixture, its descendants' sources, tagged with their names."""
    top = {ROOT: (federation.root, federation.silos)} if federation.root is not None else {}
    nodes: dict[str, tuple[Holder, dict[str, Node]]] = {**top, **{n: (v, v.silos) for n, v in walk(federation.silos)}}
    found: dict[str, Holder] = {}
    for name, (node, below) in nodes.items():
        if node.holds:
            found[name] = Holder(sources=pooled(below)) if node.mixture else node
    return found


def pooled(silos: dict[str, Node]) -> tuple[Source, ...]:
    """Every source below, tagged so that scores stay apart by language (or by silo)."""
    return tuple(
        source.model_copy(update={"domain": source.group(name)})
        for name, node in leaves(silos).items()
        for source in node.sources
    )
