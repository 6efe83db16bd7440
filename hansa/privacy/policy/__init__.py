"""Policies: rules, the guard that enforces them, the disclosure preview and the audit log."""
