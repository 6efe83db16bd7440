"""Policies: rules, the guard that enforces them, the disclosure preview and the audit log."""

POLICY_FILE = "policy.yaml"  # of a silo, in its kit
