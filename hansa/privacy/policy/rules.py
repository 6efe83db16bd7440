"""What may leave a silo: its own policy, which no federation can override. What no rule allows stays.

rules:
  training:
    federations: [clinics]          # or any
    methods: [fedavg, fedprox]      # or any
    release:
      tensors: [block, head]        # of a model update, by part (see models/parts.py), or any
      samples: true                 # how many there are, by language, and where lines could not be read
      metrics: true                 # sums of losses and hits; the mean training loss
      pieces: 5                     # word pieces seen at least so often
      labels: true                  # the names of the labels
      offers: false                 # what methods trade before they train, such as FedKC's centroids
      residuals: false              # WorldLM: layers for other nodes, and who attends to whom
      personal: false               # scores of the silo's own models
    require: {cohort: 3, epsilon: 8, secure_aggregation: false}
within: jurisdiction.yaml           # another policy, which must allow it too

A policy that is missing or broken allows nothing, and says so. Without secure aggregation a coordinator sees every
update by itself: ``cohort`` is then what the federation file promises, not what the silo can prove.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from hansa.config.federation import Federation
from hansa.config.file import load_yaml, sentence
from hansa.config.method import build_method
from hansa.config.nodes import Node
from hansa.core.errors import ConfigError
from hansa.core.participation import Participation, cohort_size
from hansa.core.settings import Count, Positive, Section
from hansa.privacy.dp.prices import exchange_price, update_prices

Kind = Literal["tensors", "samples", "metrics", "pieces", "labels", "offers", "residuals", "personal"]
DEPTH = 8  # of policies within policies


class Release(Section):
    """What a rule lets go; nothing unless it is named."""

    tensors: Literal["any"] | tuple[str, ...] = ()
    samples: bool = False
    metrics: bool = False
    pieces: Annotated[int, Field(ge=1, strict=True)] | Literal[False] = False
    labels: bool = False
    offers: bool = False
    residuals: bool = False
    personal: bool = False


class Require(Section):
    cohort: Count = 1
    epsilon: Positive | None = None
    secure_aggregation: bool = False


class Rule(Section):
    federations: Literal["any"] | tuple[str, ...]
    methods: Literal["any"] | tuple[str, ...]
    release: Release
    require: Require = Require()


class _File(Section):
    rules: dict[str, Rule]
    within: str | None = None


@dataclass(frozen=True)
class Purpose:
    """For whom a release would be, and what they promise in return."""

    federation: str
    method: str
    cohort: int  # the fewest updates that one step of the model may be made of
    epsilon: float | None  # that every release keeps to (updates, and what is exchanged); None: no such promise
    secure_aggregation: bool = False

    @staticmethod
    def of(federation: Federation, node: str) -> "Purpose":
        """What the file says about the federation that ``node`` stands in."""
        least = 1  # a method that waits for nobody may step with one silo's work
        if build_method(federation).participation.synchronous:
            beside, participation = _beside(federation.silos, node, federation.participation)
            least = max(1, ceil(participation.quorum * min(beside, cohort_size(participation, beside))))
        name = federation.method.name if federation.kind == "federated" else federation.kind
        cost = update_prices(federation, federation.rounds).get(node)
        told = exchange_price(federation, federation.rounds)
        kept = None if cost is None else max(cost.epsilon, told.epsilon if told else 0.0)
        secure_aggregation = federation.secure_aggregation is not None and federation.kind == "federated"
        return Purpose(federation.name, name, least, kept, secure_aggregation)


def _beside(silos: Mapping[str, Node], node: str, rules: Participation) -> tuple[int, Participation]:
    """How many stand beside ``node``, itself among them, and by which rules they take part."""
    if node in silos:
        return len(silos), rules
    for below in silos.values():
        found = _beside(below.silos, node, below.participation or rules)
        if found[0]:
            return found
    return 0, rules


@dataclass(frozen=True)
class Wanted:
    """One kind of thing that would leave, with what its rule may ask about it."""

    kind: Kind
    parts: frozenset[str] = frozenset()  # of tensors
    seen: int = 0  # of word pieces: the least count that leaves


@dataclass(frozen=True)
class Verdict:
    wanted: Wanted
    rule: str  # the rule that allows it; empty if none does
    reason: str = ""  # why it stays

    @property
    def allowed(self) -> bool:
        return bool(self.rule)


@dataclass(frozen=True)
class Policy:
    name: str
    rules: Mapping[str, Rule]
    within: "Policy | None" = None
    flaw: str = ""  # why it could not be read; then it has no rules

    @staticmethod
    def read(path: Path, depth: int = DEPTH) -> "Policy":
        """The policy in a file. A file that cannot be read or understood is a policy that allows nothing."""
        try:
            if not depth:
                raise ConfigError(f"{path}: policies refer to one another in a circle")
            file = _parse(path)
        except ConfigError as error:
            return Policy(path.name, {}, None, str(error))
        above = Policy.read(path.parent / file.within, depth - 1) if file.within is not None else None
        return Policy(path.name, file.rules, above)

    def judge(self, wanted: Wanted, purpose: Purpose) -> Verdict:
        """May it leave? The first rule that says so is named; if none does, why not."""
        if self.flaw:
            return Verdict(wanted, "", f"the policy allows nothing, because it cannot be read: {self.flaw}")
        objections = {name: _objection(rule, wanted, purpose) for name, rule in self.rules.items()}
        allowing = next((name for name, objection in objections.items() if not objection), "")
        if not allowing:
            said = "; ".join(f"rule '{name}' {objection}" for name, objection in objections.items())
            return Verdict(wanted, "", f"{self.name}: {said or 'it has no rules'}")
        if self.within is None:
            return Verdict(wanted, allowing)
        above = self.within.judge(wanted, purpose)
        return Verdict(wanted, f"{allowing} within {above.rule}" if above.allowed else "", above.reason)


def _parse(path: Path) -> _File:
    raw, text = load_yaml(path, "'hansa kit' writes one to start from", "a policy", "beginning with 'rules:'")
    try:
        return _File.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(sentence(error, str(path), text, _File)) from None


def _objection(rule: Rule, wanted: Wanted, purpose: Purpose) -> str:
    """Why a rule does not allow it, or nothing."""
    if rule.federations != "any" and purpose.federation not in rule.federations:
        return f"is not for federation '{purpose.federation}'"
    if rule.methods != "any" and purpose.method not in rule.methods:
        return f"is not for method '{purpose.method}'"
    return _unprotected(rule.require, purpose) or _withheld(rule.release, wanted)


def _unprotected(require: Require, purpose: Purpose) -> str:
    if require.secure_aggregation and not purpose.secure_aggregation:
        return (
            "requires secure aggregation, and the federation file has no 'secure_aggregation' section, or the request "
            "no masks"
        )
    if purpose.cohort < require.cohort:
        return f"requires a cohort of {require.cohort}, and a round may count with {purpose.cohort}"
    if require.epsilon is not None and purpose.epsilon is None:
        return f"requires ε ≤ {require.epsilon:g}, and the federation file promises no differential privacy"
    if require.epsilon is not None and purpose.epsilon is not None and purpose.epsilon > require.epsilon:
        return f"requires ε ≤ {require.epsilon:g}, and the federation file promises {purpose.epsilon:g}"
    return ""


def _withheld(release: Release, wanted: Wanted) -> str:
    if wanted.kind == "tensors" and release.tensors:
        kept = sorted(part for part in wanted.parts if not covers(release.tensors, part))
        return f"does not release tensors of {', '.join(kept)}" if kept else ""
    if wanted.kind == "pieces" and release.pieces and wanted.seen < release.pieces:
        return f"releases word pieces seen {release.pieces} times or more, and {wanted.seen} were asked for"
    return "" if getattr(release, wanted.kind) else f"does not release {wanted.kind}"


def covers(parts: Literal["any"] | Iterable[str], part: str) -> bool:
    """Whether a part is, or lies inside, one of those named."""
    return parts == "any" or any(part == named or part.startswith(f"{named}.") for named in parts)
