"""Enforcement of the policy that a node's own operator wrote, with the log of what was released under it."""

from dataclasses import dataclass, replace
from pathlib import Path

from hansa.client.runtime import Runtime
from hansa.core.errors import UserError
from hansa.deploy.kit import Kit
from hansa.privacy.policy.audit_log import AUDIT_LOG, AuditLog, verify
from hansa.privacy.policy.guard import Answering, Guard
from hansa.privacy.policy.proposal import POLICY_FILE
from hansa.privacy.policy.rules import Policy, Purpose


@dataclass(frozen=True)
class PolicyEnforcer:
    """The policy file and the audit log of a node."""

    kit: Kit
    policy: Path
    log: AuditLog

    @staticmethod
    def load(kit: Kit, policy: Path | None, home: Path) -> "PolicyEnforcer":
        """The enforcer of a policy file, by default the kit's; raises `UserError` if the audit log is damaged."""
        log = AuditLog(home / AUDIT_LOG, kit.name)
        found = verify(log.file)
        if not found.sound:
            raise UserError(f"{found.text}; keep it as evidence, and move it and its anchor away to start a new one")
        return PolicyEnforcer(kit, policy or kit.folder / POLICY_FILE, log)

    @property
    def problem(self) -> str:
        """Why the policy cannot be used, so that nothing may be released; empty if it can."""
        return Policy.read(self.policy).flaw

    def log_refusal(self, message: str, round: int, reason: str) -> None:
        """Log a request that could not be used."""
        self.log.add("refusal", message=message, round=round, to=self.kit.parent.node, reason=reason)

    def guard(self, answer: Answering, runtime: Runtime) -> Answering:
        """Return ``answer`` restricted by the policy.

        The federation's name in the kit counts, not the one in the coordinator's settings.
        """
        purpose = replace(Purpose.of(runtime.federation, self.kit.name), federation=self.kit.info.federation)
        return Guard(answer, self.policy, purpose, self.log, runtime.part_of, self.kit.parent.node)
