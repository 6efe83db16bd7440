"""The policy that a kit brings: what a federation would ask for, in the words of a policy, for its silo to judge."""

from typing import Any

import yaml

from hansa.config.federation import Federation

POLICY = "policy.yaml"
PREFACE = """\
# What may leave this silo. It is yours: no federation can override it, and what no rule allows stays.
# As it stands it allows what {name} asks for, and nothing else. Read it, and change what you do not agree with;
# `hansa check --policy {file} FED.yaml` tells what would be refused. A change counts from the next request on.
"""


def propose(federation: Federation) -> dict[str, Any]:
    """The narrowest policy under which a silo could work for this federation."""
    from hansa.config.method import build_method  # heavy, and most commands on kits propose nothing
    from hansa.config.plugins import load_plugins
    from hansa.config.tree import federated_vocabulary
    from hansa.tasks.base import TASKS

    load_plugins(federation.plugins)
    task, method = TASKS.build(federation.task), build_method(federation)
    release: dict[str, Any] = {"tensors": "any", "samples": True, "metrics": True}
    if federated_vocabulary(federation):
        release["pieces"] = federation.tokenizer.min_count
    also = {
        "labels": task.needs_labels and not getattr(task, "labels", ()),
        "offers": method.exchange is not None,
        "residuals": method.hierarchy is not None and method.hierarchy.forwards_layers,
        "personal": federation.personal is not None,
    }
    release |= {kind: True for kind, asked in also.items() if asked}
    whom = {"federations": [federation.name], "methods": [federation.method.name]}
    if federation.secure_aggregation is None:
        return {"rules": {federation.name: {**whom, "release": release}}}
    # An update leaves under masks or not at all, whatever a coordinator writes into its settings later.
    own = {kind: release.pop(kind) for kind in ("personal",) if kind in release}
    rules = {federation.name: {**whom, "release": release, "require": {"secure_aggregation": True}}}
    return {"rules": rules | ({"own models": {**whom, "release": own}} if own else {})}


def template(federation: Federation) -> str:
    preface = PREFACE.format(name=federation.name, file=POLICY)
    return preface + yaml.safe_dump(propose(federation), sort_keys=False, allow_unicode=True)
