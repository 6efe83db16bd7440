"""The page that a silo's administrator reads before approving a run.

It says who takes part, which model and task, what leaves the silo, how often and under which protection, what the
silo's own policy would refuse, and how the run differs from what was approved before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hansa.config.federation import Federation
from hansa.config.nodes import leaves, repeats
from hansa.config.shared import differences
from hansa.core.errors import ConfigError
from hansa.deploy.approval import Approval
from hansa.deploy.kit import Kit
from hansa.privacy.dp.accounting import composed
from hansa.privacy.dp.prices import update_mechanisms, update_prices
from hansa.privacy.dp.units import UnitMechanism
from hansa.privacy.policy.disclosures import disclosures
from hansa.privacy.policy.preview import preview_policy
from hansa.privacy.policy.proposal import POLICY_FILE
from hansa.privacy.policy.request_limits import RequestLimits
from hansa.privacy.policy.rules import Policy, Purpose

TASKS_IN_WORDS = {
    "mlm": "fill in masked words of the texts",
    "causal-lm": "predict the next word of the texts",
    "classify": "classify texts",
    "pairs": "classify pairs of texts",
    "ner": "find entities in the texts",
    "assertion": "say whether an entity is present, absent or uncertain",
    "relation": "find relations between entities",
    "translate": "translate texts",
    "instruct": "answer as the conversations do",
}
TRAINED = {
    "full": "all weights",
    "lora": "LoRA adapters; the other weights stay as they are",
    "frozen": "the head; the other weights stay as they are",
    "frozen-embeddings": "all weights but the embeddings",
}


@dataclass(frozen=True)
class Section:
    """A heading of the page and the lines below it."""

    heading: str
    lines: tuple[str, ...]


def approval_page(
    federation: Federation, approval: Approval, kit: Kit, policy: Path | None = None, before: Approval | None = None
) -> list[Section]:
    """The page for one run; ``before``: the newest approval for the same federation."""
    own = Policy.read(policy or kit.folder / POLICY_FILE)
    survey = federation.kind == "survey"
    sections = [
        Section("Who", tuple(_who(federation, kit))),
        *([] if survey else [Section("Model", tuple(_model(federation, approval)))]),
        Section("Task", tuple(_task(federation))),
        Section("How often", tuple(_how_often(federation, kit.name, approval.runs))),
        Section("What leaves this silo", tuple(disclosures(federation, silo=kit.name))),
        *([] if survey else [Section("Protection", tuple(_protection(federation, kit.name, own, approval.runs)))]),
        Section("The silo's policy", tuple(_policy(federation, kit.name, own, approval))),
    ]
    if before is not None:
        lines = list(differences(before.settings, approval.settings))
        lines += list(differences(before.plugins, approval.plugins, "plugins"))
        heading = f"Difference to what {before.by or 'an unknown user'} approved on {before.approved_at[:10]}"
        sections.append(Section(heading, tuple(lines or ["none"])))
    return sections


def _who(federation: Federation, kit: Kit) -> Iterator[str]:
    members = {name: member for name, member in kit.members().items() if member.generations}
    yield f"federation '{kit.info.federation}'; this silo is '{kit.name}'"
    yield f"requests come from '{kit.parent.node}' at {', '.join(kit.parent.addresses)}, which also gets what leaves"
    others = sorted(name for name in leaves(federation.silos) if name != kit.name)
    yield f"other silos of the run: {', '.join(others) or 'none'}"
    if absent := [name for name in others if name not in members]:
        yield f"NOT MEMBERS in this kit's list: {', '.join(absent)}"


def _model(federation: Federation, approval: Approval) -> Iterator[str]:
    model = federation.model
    if model.preset is not None:
        yield f"preset '{model.preset}' with random weights, which this silo builds again and compares"
    elif approval.start:
        yield f"'{model.path}'; exactly these received files: {len(approval.start)} files, not compared with a copy"
    elif approval.model:
        yield f"'{model.path}', compared with this silo's copy in {approval.model}"
    else:
        yield f"'{model.path}'; this silo has no copy to compare with (--model), so the run will be refused"
    yield f"what is trained: {TRAINED.get(model.adapt, model.adapt)}; method '{federation.method.name}'"
    for name, digest in approval.plugins.items():
        yield f"plug-in {name}, SHA-256 {digest[:16]}…"


def _task(federation: Federation) -> Iterator[str]:
    settings = federation.task.settings
    words = TASKS_IN_WORDS.get(federation.task.name)
    yield federation.task.name + (f": {words}" if words else "")
    yield from (f"{name}: {_words(value)}" for name, value in settings.items())
    data = federation.data
    yield f"texts are cut at {data.max_length} tokens; de-identification: {data.deidentify or 'none'}"


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _how_often(federation: Federation, name: str, runs: int) -> Iterator[str]:
    if federation.kind == "survey":
        yield f"{runs} survey{'s' * (runs > 1)}, of the rows that the silo has then; nothing is trained"
        return
    rounds = federation.rounds * repeats(federation.silos).get(name, 1)
    yield f"{runs} run{'s' * (runs > 1)} of {rounds} round{'s' * (rounds != 1)}"
    scored = RequestLimits(federation, name).evaluations()
    yield f"in a run the model is scored on held-out data {scored} times, once of them before training"
    yield f"a round: {_amount(federation, name)}"


def _amount(federation: Federation, name: str) -> str:
    """How much of the silo's data a round uses."""
    mechanism = update_mechanisms(federation).get(name)
    if isinstance(mechanism, UnitMechanism):
        own = mechanism.settings
        drawn = f"with probability {own.sampling:g}, drawn in secret"
        return f"{own.steps} steps; each {own.unit} takes part in a step {drawn}"
    samples, batch = federation.train.samples, f"in batches of {federation.train.batch}"
    if samples.epochs:
        return f"{samples.epochs:g} pass{'es' * (samples.epochs != 1)} over the training data, {batch}"
    least = f"{samples.floor or 1} samples"
    if samples.fraction:
        return f"{samples.fraction:.3g} of the training data, but at least {least}, {batch}"
    return f"{least}, {batch}"


def _protection(federation: Federation, name: str, policy: Policy, runs: int) -> Iterator[str]:
    purpose, masking = Purpose.of(federation, name), federation.secure_aggregation
    price = update_prices(federation, federation.rounds).get(name)
    if purpose.secure_aggregation and masking is not None:
        least = max(purpose.cohort, masking.min_cohort)
        yield f"secure aggregation: the coordinator learns only the sum of at least {least} silos' updates"
        if not masking.metrics:
            yield "losses and scores are not masked: the coordinator sees those of this silo"
    else:
        yield "NO secure aggregation: the coordinator sees this silo's update by itself"
    if price is not None:
        yield f"differential privacy, for one run: {price.line}"
    else:
        yield "NO differential privacy: nothing bounds what the final model reveals about single texts"
    if price is None and not purpose.secure_aggregation:
        yield "an update without either shows which words the texts contain, at times whole sentences (docs/privacy.md)"
    if policy.budget is not None:
        yield f"the silo's budget over all runs: ε = {policy.budget.epsilon:g} at δ = {policy.budget.delta:g}"
        mechanism = update_mechanisms(federation).get(name)
        rounds = federation.rounds * repeats(federation.silos).get(name, 1) * runs
        if mechanism is not None and composed([mechanism.event(rounds)], policy.budget.delta) > policy.budget.epsilon:
            yield f"the budget is LESS than {runs} such run{'s' * (runs > 1)}: the silo refuses once it is spent"


def _policy(federation: Federation, name: str, policy: Policy, approval: Approval) -> Iterator[str]:
    if policy.flaw:
        yield f"it allows nothing, because it cannot be read: {policy.flaw}"
        return
    limits = policy.limits
    patients = f" of {limits.min_update_patients} patients" if limits.min_update_patients else ""
    yield (
        f"an update is made from at least {limits.min_update_samples} samples{patients}, a sum of scores from "
        f"{limits.min_samples}"
    )
    yield (
        f"a received model may differ from the last one by {limits.max_model_step:g} times its norm, and from the "
        f"start by {limits.max_model_drift:g} times, in each part"
    )
    local = federation
    if approval.model:
        model = federation.model.model_copy(update={"path": approval.model})
        local = federation.model_copy(update={"model": model})
    try:
        refused = [d for d in preview_policy(policy, local, name) if not d.verdict.allowed]
    except ConfigError as error:
        yield f"what it would refuse cannot be said without the model ({error})"
        return
    for decision in refused:
        yield f"REFUSES {decision.what}: {decision.verdict.reason}"
    if not refused:
        yield "it refuses nothing that this run asks for"
