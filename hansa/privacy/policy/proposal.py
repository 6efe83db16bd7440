"""The policy that a kit contains: the narrowest one under which its silo can take part in the federation."""

from math import ceil
from typing import Any

import yaml

from hansa.config.federation import Federation
from hansa.privacy.policy import POLICY_FILE as POLICY_FILE

PREFACE = """\
# What may leave this silo. This file belongs to the silo: no federation can override it, and what no rule allows does
# not leave. It allows what the federation {name} asks for, and nothing else. Review it and change what you do not
# agree with; `hansa check --policy {file} FED.yaml` prints what would be refused. A change takes effect with the next
# request.
"""


def propose_policy(federation: Federation) -> dict[str, Any]:
    """Return the narrowest policy under which a silo can take part in this federation, as plain values.

    Executes no plug-in; raises `ConfigError` if the policy depends on one that was not executed before.
    """
    from hansa.config.checks import refuse_unknown_names  # slow to import, and most commands on kits propose nothing
    from hansa.config.method import build_method
    from hansa.config.tree import federated_vocabulary
    from hansa.privacy.dp.prices import run_price, update_mechanisms
    from hansa.privacy.dp.units import UnitMechanism
    from hansa.privacy.policy.preview import collects_labels
    from hansa.tasks.base import TASKS

    refuse_unknown_names(federation, "run 'hansa kit create --run-plugins'")
    task, method = TASKS.build(federation.task), build_method(federation)
    release: dict[str, Any] = {"tensors": "any", "samples": True, "metrics": True}
    if federated_vocabulary(federation):
        release["words"] = federation.tokenizer.min_count
    needed = {
        "labels": collects_labels(task),
        "knowledge": method.exchange is not None,
        "layers": method.hierarchy is not None and method.hierarchy.forwards_layers,
        "personal": federation.personal is not None,
    }
    release |= {kind: True for kind, asked in needed.items() if asked}
    surveys: dict[str, Any] = {}
    if federation.survey is not None:  # a rule of its own: no round and no mask protects what a survey releases
        asked = {"labels": federation.survey.labels and task.needs_labels, "sketches": federation.survey.sketches}
        surveys = {"survey": federation.survey.floor} | {kind: True for kind, wanted in asked.items() if wanted}
    scope = {"federations": [federation.name], "methods": [federation.method.name]}
    # Random weights move far while they learn the most; pre-trained ones do not.
    fresh = federation.model.preset is not None or federation.model.fresh
    limits: dict[str, Any] = {"limits": {"max_model_step": 1.0, "max_model_drift": 10.0}} if fresh else {}
    if any(not isinstance(noise, UnitMechanism) for noise in update_mechanisms(federation).values()):
        # Noise on whole updates moves the model by many times its norm; it also hides what a crafted model would show.
        limits = {"limits": {"max_model_step": 1e4, "max_model_drift": 1e6}}
    if (cost := run_price(federation)) is not None:  # what one run costs, and nothing beyond it
        limits["budget"] = {"epsilon": ceil(cost[0] * 1000) / 1000, "delta": cost[1]}
    if federation.secure_aggregation is None:
        rules = {federation.name: {**scope, "release": release}}
        return {"rules": rules | ({"survey": {**scope, "release": surveys}} if surveys else {})} | limits
    # Updates leave masked or not at all, also if the coordinator removes 'secure_aggregation' from its settings later.
    personal = {kind: release.pop(kind) for kind in ("personal",) if kind in release}
    rules = {federation.name: {**scope, "release": release, "require": {"secure_aggregation": True}}}
    others = {name: {**scope, "release": kinds} for name, kinds in (("personal models", personal), ("survey", surveys))}
    return {"rules": rules | {name: rule for name, rule in others.items() if rule["release"]}} | limits


def policy_template(federation: Federation) -> str:
    """Return the proposed policy as the text of a policy file, with comments for the operator of the silo."""
    preface = PREFACE.format(name=federation.name, file=POLICY_FILE)
    return preface + yaml.safe_dump(propose_policy(federation), sort_keys=False, allow_unicode=True)
