"""The policy that a kit brings: what a federation would ask for, in the words of a policy, for its silo to judge."""

from typing import Any

import yaml

from hansa.config import Federation

POLICY = "policy.yaml"
TRADING = ("fedkc", "fedmix")
PREFACE = """\
# What may leave this silo. It is yours: no federation can override it, and what no rule allows stays.
# As it stands it allows what {name} asks for, and nothing else. Read it, and change what you do not agree with;
# `hansa check --policy {file} FED.yaml` tells what would be refused. A change counts from the next request on.
"""


def propose(federation: Federation) -> dict[str, Any]:
    """The narrowest policy under which a silo could work for this federation."""
    from hansa.releases import federated_vocabulary  # heavy, and most commands on kits propose nothing

    release: dict[str, Any] = {"tensors": "any", "samples": True, "metrics": True}
    if federated_vocabulary(federation):
        release["pieces"] = federation.tokenizer.minimum
    method = federation.method.name
    also = {
        "labels": federation.task.name not in ("mlm", "causal-lm", "translate"),
        "offers": method in TRADING,
        "residuals": method == "worldlm",
        "personal": federation.personal is not None,
    }
    release |= {kind: True for kind, asked in also.items() if asked}
    rule = {"federations": [federation.name], "methods": [method], "release": release}
    return {"rules": {federation.name: rule}}


def template(federation: Federation) -> str:
    preface = PREFACE.format(name=federation.name, file=POLICY)
    return preface + yaml.safe_dump(propose(federation), sort_keys=False, allow_unicode=True)
