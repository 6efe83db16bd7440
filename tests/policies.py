"""Policies and approvals for federations that are too small for the limits of a real policy."""

from pathlib import Path
from typing import Any

import yaml

from hansa.config.federation import Federation
from hansa.config.nodes import walk
from hansa.deploy.approval import Approvals, approval_of
from hansa.privacy.policy.proposal import POLICY_FILE

# A dozen made-up texts, and models that learn from nothing in three rounds.
NO_LIMITS: dict[str, Any] = {
    "min_samples": 1,
    "min_update_samples": 1,
    "max_model_step": 100.0,
    "max_model_drift": 100.0,
}


def relax(policy: Path) -> None:
    """Take the limits out of a policy file."""
    raw = yaml.safe_load(policy.read_text(encoding="utf-8"))
    policy.write_text(yaml.safe_dump(raw | {"limits": NO_LIMITS}), encoding="utf-8")


def admit_everywhere(federation: Federation, kits: Path, runs: int = 10) -> None:
    """Let every member work on a federation file: take the limits out of its policy, and approve the file."""
    plugins = [Path(file) for file in federation.plugins]
    model = Path(federation.model.path) if federation.model.path is not None else None
    for name, _ in walk(federation.silos):
        if (kits / name / POLICY_FILE).is_file():
            relax(kits / name / POLICY_FILE)
        Approvals(kits / name, kits / name / "home").add(approval_of(federation, plugins, model, runs))
