"""The page that a silo's administrator reads before approving a run.

It says who takes part, which model and task, what leaves the silo, how often and under which protection, what the
silo's own policy would refuse, and how the run differs from what was approved before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hansa.config.federation import Federation
from hansa.config.nodes import repeats
from hansa.config.shared import differences
from hansa.core.errors import ConfigError
from hansa.deploy.approval import Approval
from hansa.deploy.kit import Kit
from hansa.privacy.policy.disclosures import disclosures
from hansa.privacy.policy.preview import preview_policy
from hansa.privacy.policy.proposal import POLICY_FILE
from hansa.privacy.policy.request_limits import RequestLimits
from hansa.privacy.policy.rules import Policy, Purpose


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
    sections = [
        Section("Who", tuple(_who(kit))),
        Section("Model", tuple(_model(federation, approval))),
        Section("Task", tuple(_task(federation))),
        Section("How often", tuple(_how_often(federation, kit.name, approval.runs))),
        Section("What leaves this silo", tuple(disclosures(federation))),
        Section("Protection", tuple(_protection(federation, kit.name, own))),
        Section("The silo's policy", tuple(_policy(federation, kit.name, own, approval))),
    ]
    if before is not None:
        lines = list(differences(before.settings, approval.settings))
        lines += list(differences(before.plugins, approval.plugins, "plugins"))
        heading = f"Difference to what {before.by or 'somebody'} approved on {before.approved_at[:10]}"
        sections.append(Section(heading, tuple(lines or ["none"])))
    return sections


def _who(kit: Kit) -> Iterator[str]:
    members = {name: member for name, member in kit.members().items() if member.generations}
    silos = [name for name, member in members.items() if member.kind == "silo" and name != kit.name]
    yield f"federation '{kit.info.federation}'; this silo is '{kit.name}'; its requests come from '{kit.parent.node}'"
    yield f"other silos: {', '.join(sorted(silos)) or 'none'}"


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
    yield f"trained: {model.adapt}; method '{federation.method.name}'"
    for name, digest in approval.plugins.items():
        yield f"plug-in {name}, SHA-256 {digest[:16]}…"


def _task(federation: Federation) -> Iterator[str]:
    settings = federation.task.settings
    yield f"{federation.task.name}" + (f" with {settings}" if settings else "")
    data = federation.data
    yield f"texts are cut at {data.max_length} tokens; de-identification: {data.deidentify or 'none'}"


def _how_often(federation: Federation, name: str, runs: int) -> Iterator[str]:
    rounds = federation.rounds * repeats(federation.silos).get(name, 1)
    scored = RequestLimits(federation, name).evaluations()
    yield f"{runs} run{'s' * (runs > 1)} of {rounds} rounds; the model is scored after {scored} of them"
    samples = federation.train.samples
    rule = f"{samples.epochs} passes over the data" if samples.epochs else f"{samples.floor or 1} samples or more"
    yield f"a round: {rule}, batches of {federation.train.batch}"


def _protection(federation: Federation, name: str, policy: Policy) -> Iterator[str]:
    purpose = Purpose.of(federation, name)
    if purpose.secure_aggregation:
        yield f"secure aggregation: the coordinator learns the sum of at least {purpose.cohort} updates"
    else:
        yield "no secure aggregation: the coordinator sees this silo's update by itself"
    if purpose.epsilon is None:
        yield "no differential privacy"
    else:
        yield f"differential privacy: ε = {purpose.epsilon:.3g} for the whole run"
    if policy.budget is not None:
        yield f"the silo's budget over all runs: ε = {policy.budget.epsilon:g} at δ = {policy.budget.delta:g}"


def _policy(federation: Federation, name: str, policy: Policy, approval: Approval) -> Iterator[str]:
    if policy.flaw:
        yield f"it allows nothing, because it cannot be read: {policy.flaw}"
        return
    limits = policy.limits
    yield (
        f"at least {limits.min_update_samples} samples behind an update and {limits.min_samples} behind each sum of "
        f"scores; models at most {limits.max_model_step:g} from the last one and {limits.max_model_drift:g} from the "
        "start"
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
