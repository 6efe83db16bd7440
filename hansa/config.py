"""federation.yaml: one file describes a federation, and every mistake in it is found before anything is loaded."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from hansa.errors import ConfigError, did_you_mean

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Named(BaseModel):
    """A task or a method: its name, and settings that its own file declares and validates."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Source(Section):
    """One file or folder of samples (``train``) and how to read it."""

    train: str
    valid: str | None = None
    test: str | None = None
    language: str = ""
    text: str = "text"
    label: str = "label"
    where: dict[str, str | int] = {}  # keep only rows whose fields have these values
    limit: Count | None = None  # use the first so many training rows


class Node(Section):
    """A silo (it has sources) or a federation of further nodes (it has silos)."""

    sources: tuple[Source, ...] = ()
    silos: dict[str, "Node"] = {}
    rounds: Count = 1  # of a federation: rounds among its own silos for each round above

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        """`en: data/en.jsonl`, `en: {train: …}` and `en: {sources: […]}` all describe a silo."""
        if isinstance(value, str):
            return {"sources": [{"train": value}]}
        if isinstance(value, dict) and not {"silos", "sources"} & set(value):
            return {"sources": [value]}
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> "Node":
        if bool(self.sources) == bool(self.silos):
            raise ValueError("a node needs either data of its own ('train: FILE') or silos below it ('silos:')")
        return self


class Model(Section):
    preset: Literal["tiny", "small", "base"] | None = None
    path: str | None = None  # a Hugging Face folder, or a hub id (then, and only then, it is downloaded)
    dropout: Share = 0.0
    adapt: Literal["full", "frozen", "lora"] = "full"  # train everything, the head alone, or additions and the head
    rank: Count = 8  # lora: of the additions
    alpha: Count = 16  # lora: their scale is alpha/rank

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"preset": value} if value in ("tiny", "small", "base") else {"path": value}
        return value

    @model_validator(mode="after")
    def _one_origin(self) -> "Model":
        if (self.preset is None) == (self.path is None):
            raise ValueError("a model is either a 'preset' (tiny, small, base) or a 'path' to a Hugging Face folder")
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


class Samples(Section):
    """How much a silo trains on in one round: ``max(floor, fraction·N)`` samples, or whole passes (``epochs``).

    ``replace``: draw them with replacement (the Medical paper's rule); otherwise take the next ones of an endless
    series of passes, so that every sample comes once per pass.
    """

    floor: Count | None = None
    fraction: Share = 0.0
    epochs: Count | None = None
    replace: bool = True

    @model_validator(mode="after")
    def _one_rule(self) -> "Samples":
        if (self.epochs is not None) == (self.floor is not None or self.fraction > 0):
            raise ValueError("choose one rule: 'epochs', or 'floor' and 'fraction' for max(floor, fraction·N)")
        return self

    def amount(self, size: int) -> int:
        if self.epochs is not None:
            return self.epochs * size
        return max(self.floor or 1, int(self.fraction * size))


class Schedule(Section):
    """lr(r)/lr₀ over rounds: ``constant``; ``linear``: 1 − decay·r; ``cosine`` to ``final`` at the last round."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    decay: Share | None = None  # linear: per round; default reaches zero after the last round
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
    samples: Samples = Samples(epochs=1)
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
    train: Training | None = None  # default: the baseline's
    mix: Literal["sweep", "adaptive", "none"] = "sweep"
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


class Weights(Section):
    by: Literal["samples", "uniform", "loss"] = "samples"
    temperature: Positive = 1.0  # samples: N^temperature; loss: softmax(−temperature·loss)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"by": value} if isinstance(value, str) else value


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


class Participation(Section):
    """Who takes part in a round: everyone, a share or a number of silos; how many must answer, and by when."""

    share: Share = 1.0
    count: Count | None = None
    quorum: Share = 0.5  # a round counts only if this share of those asked answered
    deadline: Positive | None = None  # seconds


class Evaluation(Section):
    every: Count = 5
    share: Share = 0.1  # of the test data, while running; the final figures use all of it
    batch: Count = 64


class Checkpointing(Section):
    every: Count = 10
    keep: Count = 2


class Federation(Section):
    name: str = "run"
    seed: int = 0
    kind: Literal["federated", "central", "per-silo", "base"] = "federated"
    uses: tuple[str, ...] = ()  # Python files that add tasks or methods of your own
    task: Named = Named(name="mlm")
    model: Model = Model(preset="tiny")
    tokenizer: Tokenizer = Tokenizer()
    data: Data = Data()
    silos: dict[str, Node]
    method: Named = Named(name="fedavg")
    rounds: Annotated[int, Field(ge=0)] = 10
    participation: Participation = Participation()
    train: Training = Training()
    baseline: Training = Training(optimizer="adamw", lr=3e-5, eps=1e-6, weight_decay=0.01, keep_optimizer=True)
    server: Server | None = None  # default: what the method brings
    aggregate: Aggregation | None = None
    personal: Personal | None = None
    evaluate: Evaluation = Evaluation()
    checkpoint: Checkpointing = Checkpointing()

    @field_validator("task", "method", mode="before")
    @classmethod
    def _name_only(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _sensible(self) -> "Federation":
        if not self.silos:
            raise ValueError("'silos' is empty: a federation needs at least one silo")
        names = [name for name, _ in walk(self.silos)]
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
    """How often each silo trains in one round of the root: inner federations may have several rounds of their own."""
    found: dict[str, int] = {}
    for name, node in silos.items():
        found |= {name: times} if node.sources else repeats(node.silos, times * node.rounds)
    return found


def leaves(silos: dict[str, Node]) -> dict[str, Node]:
    return {name: node for name, node in walk(silos) if node.sources}


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _StrictLoader(yaml.SafeLoader):
    """PyYAML lets a repeated key overwrite the first one; here a silo named twice is a mistake. And ``1e-4`` is a
    number, as everybody but YAML 1.1 thinks."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if key in seen:
            raise ConfigError(f"line {key_node.start_mark.line + 1}: '{key}' is given twice; keep one of the two")
        seen.add(key)
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
# `no: data/no.jsonl` is Norwegian, not False.
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in _StrictLoader.yaml_implicit_resolvers.items()
}
_StrictLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false|True|False)$"), list("tfTF"))


def read(path: Path, overrides: list[str] | None = None) -> Federation:
    """Read, override (``a.b=c``) and validate a federation file; paths in it are relative to the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; 'hansa new classify DIR' writes one to start from") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    try:
        raw = yaml.load(text, Loader=_StrictLoader)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a federation file is a mapping of settings, beginning with 'silos:'")
    for override in overrides or []:
        _override(raw, override)
    return parse(raw, where=str(path), base=path.parent, text=text)


def parse(raw: dict[str, Any], where: str = "federation", base: Path | None = None, text: str = "") -> Federation:
    try:
        federation = Federation.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(_sentence(error, where, raw, text)) from None
    return _absolute(federation, base) if base is not None else federation


def dump(federation: Federation) -> str:
    return yaml.safe_dump(
        federation.model_dump(mode="json", exclude_defaults=True), sort_keys=False, allow_unicode=True
    )


def _override(raw: dict[str, Any], override: str) -> None:
    key, sign, value = override.partition("=")
    if not sign or not key:
        raise ConfigError(f"--set {override!r}: write it as a.b=value")
    *parents, last = key.split(".")
    target = raw
    for parent in parents:
        child = target.setdefault(parent, {})
        if isinstance(child, str):  # a short form, such as `method: fedprox`
            child = target[parent] = {_long_form(parent, child): child}
        if not isinstance(child, dict):
            raise ConfigError(f"--set {override!r}: '{parent}' has no settings below it")
        target = child
    try:
        target[last] = yaml.load(value, Loader=_StrictLoader)
    except yaml.YAMLError:
        raise ConfigError(f"--set {override!r}: '{value}' is not a valid YAML value") from None


def _long_form(section: str, value: str) -> str:
    """The setting that a section's short form stands for."""
    if section == "model":
        return "preset" if value in ("tiny", "small", "base") else "path"
    return {"schedule": "kind", "weights": "by", "aggregate": "rule"}.get(section, "name")


def _absolute(federation: Federation, base: Path) -> Federation:
    """Resolve data, model and plug-in paths against the federation file's folder."""

    def path(text: str) -> str:
        return str((base / text).resolve())

    def source(s: Source) -> Source:
        given = {k: path(v) for k in ("train", "valid", "test") if (v := getattr(s, k)) is not None}
        return s.model_copy(update=given)

    def node(n: Node) -> Node:
        below = {name: node(child) for name, child in n.silos.items()}
        return n.model_copy(update={"sources": tuple(map(source, n.sources)), "silos": below})

    def local(text: str | None) -> str | None:  # a folder if there is one, else a hub id
        return path(text) if text is not None and (base / text).exists() else text

    return federation.model_copy(
        update={
            "silos": {name: node(n) for name, n in federation.silos.items()},
            "model": federation.model.model_copy(update={"path": local(federation.model.path)}),
            "tokenizer": federation.tokenizer.model_copy(update={"path": local(federation.tokenizer.path)}),
            "uses": tuple(path(u) for u in federation.uses),
        }
    )


# ── errors in one sentence ────────────────────────────────────────────────────────────────────────────────────────


def _sentence(error: ValidationError, where: str, raw: dict[str, Any], text: str) -> str:
    # A misspelt key is often also a missing one: name the misspelling.
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    path = [p for p in first["loc"] if not (isinstance(p, str) and p.startswith("function-"))]
    place = where + (f", line {line}" if (line := _line(text, path)) else "")
    name = ".".join(map(str, path))
    match first["type"]:
        case "extra_forbidden":
            known = _known_keys(path[:-1])
            return f"{place}: '{name}' is not a setting; {did_you_mean(str(path[-1]), known)}"
        case "missing":
            return f"{place}: '{name}' is missing; it is needed"
        case "value_error":
            return f"{place}: {name + ': ' if name else ''}{first['msg'].removeprefix('Value error, ')}"
        case "literal_error":
            choices = re.findall(r"'([^']+)'", str(first.get("ctx", {}).get("expected", "")))
            return f"{place}: {name} is {first['input']!r}; {did_you_mean(str(first['input']), choices)}"
        case _:
            message = first["msg"][0].lower() + first["msg"][1:]
            return f"{place}: {name} is {_short(first['input'])}, but {message}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _known_keys(path: list[Any]) -> set[str]:
    """The settings that exist where ``path`` leads, found by walking the sections."""
    section: type[BaseModel] = Federation
    for part in path:
        found = section.model_fields.get(str(part))
        if found is None:
            section = Node if section in (Federation, Node) else section
            continue
        for candidate in _sections(found.annotation):
            section = candidate
    return set(section.model_fields) | (set(Source.model_fields) if section is Node else set())


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _sections(inner)


def _line(text: str, path: list[Any]) -> int | None:
    """The line on which the setting at ``path`` stands, as far as the path can be followed."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader) if text else None
    except yaml.YAMLError:
        return None
    line = None
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = [(k, v) for k, v in node.value if k.value == str(part)]
            if not found:
                continue
            line, node = found[0][0].start_mark.line + 1, found[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line
