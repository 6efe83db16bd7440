"""A silo's policy: rules that say what may leave the silo. No federation file can override it.

rules:
  training:
    federations: [clinics]          # or any
    methods: [fedavg, fedprox]      # or any
    release:
      tensors: [block, head]        # model updates, by part of the model (core/model_parts.py), or any
      samples: true                 # sample counts by language; rows that could not be used, and why
      metrics: true                 # sums of losses and scores; the mean training loss
      words: 5                # words that at least this many of the silo's rows have, with counts
      labels: true                  # the names of the labels
      knowledge: false              # what silos share before training, such as FedKC's centroids
      layers: false                 # WorldLM: layers for other nodes, and attention weights
      personal: false               # scores of the silo's personal models
      survey: 20                    # statistics of the data; every figure stands for at least so many rows
      sketches: false               # keyed MinHash sketches of texts and words, for near-duplicates and overlap
    require: {cohort: 3, epsilon: 8, secure_aggregation: false, secure_metrics: false}
within: jurisdiction.yaml           # another policy, which must allow the release too
limits: …   budget: …   approve: …  # see limits.py

What no rule allows does not leave. A policy that is missing or invalid allows nothing and states why. Without secure
aggregation the server sees every update by itself: ``cohort`` is then what the federation file promises, not something
that the silo can verify.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from hansa.config.asynchrony import rules_above
from hansa.config.federation import Federation
from hansa.config.file import parse_yaml, read_text, sentence
from hansa.config.nodes import Node
from hansa.core.errors import ConfigError
from hansa.core.participation import Participation, cohort_size
from hansa.core.settings import Count, Positive, Section
from hansa.privacy.dp.prices import exchange_price, update_prices
from hansa.privacy.policy.limits import AutomaticApproval, Budget, Limits

Kind = Literal[
    "tensors", "samples", "metrics", "words", "labels", "knowledge", "layers", "personal", "survey", "sketches"
]
# old name of a kind → its name
RENAMED = {"pieces": "words", "word_pieces": "words", "offers": "knowledge", "residuals": "layers"}
MAX_DEPTH = 8  # of policies within policies


class Release(Section):
    """What a rule releases, by kind. The default of every kind is to release nothing."""

    tensors: Literal["any"] | tuple[str, ...] = ()
    samples: bool = False
    metrics: bool = False
    words: Annotated[int, Field(ge=1, strict=True)] | Literal[False] = False
    labels: bool = False
    knowledge: bool = False
    layers: bool = False
    personal: bool = False
    survey: Annotated[int, Field(ge=1, strict=True)] | Literal[False] = False
    sketches: bool = False

    @model_validator(mode="before")
    @classmethod
    def _old_names(cls, value: Any) -> Any:
        old = next((name for name in RENAMED if isinstance(value, dict) and name in value), None)
        if old is not None:
            raise ValueError(f"'{old}' is now called '{RENAMED[old]}'; rename it in the policy")
        return value


class Requirements(Section):
    """What a federation must promise before a rule applies to it."""

    cohort: Count = 1
    epsilon: Positive | None = None
    secure_aggregation: bool = False
    secure_metrics: bool = False


class Rule(Section):
    """One rule: for which federations and methods it holds, what it releases, and what it requires in return."""

    federations: Literal["any"] | tuple[str, ...]
    methods: Literal["any"] | tuple[str, ...]
    release: Release
    require: Requirements = Requirements()


class _File(Section):
    rules: dict[str, Rule]
    within: str | None = None
    limits: Limits = Limits()
    budget: Budget | None = None
    approve: AutomaticApproval | None = None


@dataclass(frozen=True)
class Purpose:
    """What a release is for: the federation, its method, and the protection that the federation file promises."""

    federation: str
    method: str
    cohort: int  # the smallest number of updates that one server step may be made of
    epsilon: float | None  # the largest ε of the silo's releases (updates and exchange); None: not promised
    secure_aggregation: bool = False
    secure_metrics: bool = False  # losses and scores travel under masks too

    @staticmethod
    def of(federation: Federation, node: str) -> "Purpose":
        """What the federation file promises to ``node``."""
        smallest = 1  # with asynchronous participation, one update may make a step
        if rules_above(federation, node)[-1].synchronous:
            siblings, participation = _siblings(federation.silos, node, federation.participation)
            smallest = max(1, ceil(participation.quorum * min(siblings, cohort_size(participation, siblings))))
        name = federation.method.name if federation.kind in ("federated", "survey") else federation.kind
        update = update_prices(federation, federation.rounds).get(node)
        exchange = exchange_price(federation, federation.rounds)
        epsilon = None if update is None else max(update.epsilon, exchange.epsilon if exchange else 0.0)
        secure_aggregation = federation.secure_aggregation is not None and federation.kind == "federated"
        settings = federation.secure_aggregation
        secure_metrics = secure_aggregation and settings is not None and settings.metrics
        return Purpose(federation.name, name, smallest, epsilon, secure_aggregation, secure_metrics)


def _siblings(silos: Mapping[str, Node], node: str, participation: Participation) -> tuple[int, Participation]:
    """How many children the parent of ``node`` has, and by which rules they take part; 0 if there is no such node."""
    if node in silos:
        return len(silos), participation
    for region in silos.values():
        found = _siblings(region.silos, node, region.participation or participation)
        if found[0]:
            return found
    return 0, participation


@dataclass(frozen=True)
class ReleaseItem:
    """One kind of data that would leave a silo, with the properties that rules judge it by."""

    kind: Kind
    parts: frozenset[str] = frozenset()  # of tensors: the parts of the model that they belong to
    min_count: int = 0  # of words: the smallest count that leaves


@dataclass(frozen=True)
class Verdict:
    """A policy's decision on one item."""

    item: ReleaseItem
    rule: str  # the rule that allows it; empty if none does
    reason: str = ""  # why it does not leave

    @property
    def allowed(self) -> bool:
        """Whether a rule allows the release."""
        return bool(self.rule)


@dataclass(frozen=True)
class Policy:
    """A policy as it was read from a file."""

    name: str
    rules: Mapping[str, Rule]
    within: "Policy | None" = None
    flaw: str = ""  # why the file could not be read; then there are no rules
    limits: Limits = field(default_factory=Limits)  # the stricter of its own and the outer policy's
    budget: Budget | None = None  # none: the silo keeps no budget
    approve: AutomaticApproval | None = None  # none: an administrator approves every run

    @staticmethod
    def read(path: Path, depth: int = MAX_DEPTH) -> "Policy":
        """Return the policy in a file; a file that cannot be read or is invalid gives a policy that allows nothing."""
        try:
            if not depth:
                raise ConfigError(f"{path}: the policies refer to one another in a circle; remove one 'within'")
            file = _parse(path)
        except ConfigError as error:
            return Policy(path.name, {}, None, str(error))
        within = Policy.read(path.parent / file.within, depth - 1) if file.within is not None else None
        if within is None:
            return Policy(path.name, file.rules, None, "", file.limits, file.budget, file.approve)
        return Policy(
            path.name,
            file.rules,
            within,
            "",
            file.limits.within(within.limits),
            _smaller(file.budget, within.budget),
            file.approve,
        )

    def needs_approval(self, federation: Federation) -> str:
        """Why an administrator must approve a run of this federation file; empty if the policy approves it."""
        if self.flaw or self.approve is None:
            return "the policy approves no run by itself"
        objection = self.approve.objection(federation)
        outer = self.within.approve if self.within is not None else None
        return objection or (outer.objection(federation) if outer is not None else "")

    def judge(self, item: ReleaseItem, purpose: Purpose) -> Verdict:
        """Decide whether an item may leave; the verdict names the first rule that allows it, or every objection."""
        if self.flaw:
            return Verdict(item, "", f"the policy allows nothing, because it cannot be read: {self.flaw}")
        objections = {name: _objection(rule, item, purpose) for name, rule in self.rules.items()}
        allowing = next((name for name, objection in objections.items() if not objection), "")
        if not allowing:
            listed = "; ".join(f"rule '{name}' {objection}" for name, objection in objections.items())
            return Verdict(item, "", f"{self.name}: {listed or 'it has no rules'}")
        if self.within is None:
            return Verdict(item, allowing)
        outer = self.within.judge(item, purpose)
        return Verdict(item, f"{allowing} within {outer.rule}" if outer.allowed else "", outer.reason)


def _smaller(own: Budget | None, outer: Budget | None) -> Budget | None:
    given = [budget for budget in (own, outer) if budget is not None]
    return min(given, key=lambda budget: budget.epsilon, default=None)


def _parse(path: Path) -> _File:
    return _parsed(path, read_text(path, "'hansa kit' writes one to start from"))


@lru_cache(maxsize=64)
def _parsed(path: Path, text: str) -> _File:
    """The policy in the text of a file; an agent reads its policy before every request, and it rarely changes."""
    raw = parse_yaml(text, path, "a policy", "beginning with 'rules:'")
    try:
        return _File.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(sentence(error, str(path), text, _File)) from None


def _objection(rule: Rule, item: ReleaseItem, purpose: Purpose) -> str:
    """Why a rule does not allow an item; empty if it does."""
    if rule.federations != "any" and purpose.federation not in rule.federations:
        return f"is not for federation '{purpose.federation}'"
    if rule.methods != "any" and purpose.method not in rule.methods:
        return f"is not for method '{purpose.method}'"
    return _unmet(rule.require, purpose) or _withheld(rule.release, item)


def _unmet(require: Requirements, purpose: Purpose) -> str:
    """Which requirement the federation does not meet; empty if it meets all."""
    if require.secure_aggregation and not purpose.secure_aggregation:
        return (
            "requires secure aggregation, and the federation file has no 'secure_aggregation' section or the request "
            "asks for an update without masks"
        )
    if require.secure_metrics and not purpose.secure_metrics:
        return (
            "requires losses and scores under secure aggregation, and the federation file has no "
            "'secure_aggregation.metrics' or they would leave without masks"
        )
    if purpose.cohort < require.cohort:
        return f"requires a cohort of {require.cohort}, and a round may consist of {purpose.cohort}"
    if require.epsilon is not None and purpose.epsilon is None:
        return f"requires ε ≤ {require.epsilon:g}, and the federation file promises no differential privacy"
    if require.epsilon is not None and purpose.epsilon is not None and purpose.epsilon > require.epsilon:
        return f"requires ε ≤ {require.epsilon:g}, and the federation file promises {purpose.epsilon:g}"
    return ""


def _withheld(release: Release, item: ReleaseItem) -> str:
    """Why the kinds that a rule releases do not cover an item; empty if they do."""
    if item.kind == "tensors" and release.tensors:
        missing = sorted(part for part in item.parts if not covers(release.tensors, part))
        return f"does not release tensors of {', '.join(missing)}" if missing else ""
    if item.kind == "words" and release.words and item.min_count < release.words:
        return f"releases words that at least {release.words} rows have, and {item.min_count} was asked for"
    if item.kind == "survey" and release.survey and item.min_count < release.survey:
        return f"releases figures that stand for at least {release.survey} rows, and {item.min_count} was asked for"
    return "" if getattr(release, item.kind) else f"does not release {item.kind}"


def covers(parts: Literal["any"] | Iterable[str], part: str) -> bool:
    """Whether a part of the model is one of ``parts`` or lies inside one of them (`block.3` lies inside `block`)."""
    return parts == "any" or any(part == named or part.startswith(f"{named}.") for named in parts)
