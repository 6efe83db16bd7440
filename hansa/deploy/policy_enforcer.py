"""A node's own law: the policy that its operator wrote, and the log of what left under it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hansa.core.errors import UserError
from hansa.deploy.kit import Kit
from hansa.privacy.policy.audit_log import NAME, AuditLog, verify
from hansa.privacy.policy.guard import Answer, Guard
from hansa.privacy.policy.proposal import POLICY
from hansa.privacy.policy.rules import Policy, Purpose

if TYPE_CHECKING:
    from hansa.client.runtime import Runtime


@dataclass(frozen=True)
class PolicyEnforcer:
    kit: Kit
    policy: Path
    log: AuditLog

    @staticmethod
    def of(kit: Kit, policy: Path | None, home: Path) -> "PolicyEnforcer":
        """The law of a silo; refuses to begin with an audit log that is not as it was left."""
        log = AuditLog(home / NAME, kit.name)
        found = verify(log.file)
        if not found.sound:
            raise UserError(f"{found.text}; keep it as evidence, and move it and its anchor away to begin a new one")
        return PolicyEnforcer(kit, policy or kit.folder / POLICY, log)

    @property
    def flaw(self) -> str:
        """Why nothing at all may leave, if so."""
        return Policy.read(self.policy).flaw

    def refuse(self, message: str, round: int, reason: str) -> None:
        """Note a request that could not be used at all."""
        assert self.kit.card.parent is not None
        self.log.add("refusal", message=message, round=round, to=self.kit.card.parent.node, reason=reason)

    def over(self, answer: Answer, runtime: "Runtime") -> Answer:
        """The answer within this law. The federation's name is the one in the kit, whatever the settings say."""
        assert self.kit.card.parent is not None
        purpose = replace(Purpose.of(runtime.federation, self.kit.name), federation=self.kit.card.federation)
        return Guard(answer, self.policy, purpose, self.log, runtime.part_of, self.kit.card.parent.node)
