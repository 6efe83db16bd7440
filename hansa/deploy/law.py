"""A silo's own law: the policy that its operator wrote, and the log of what left under it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from hansa.config import Federation
from hansa.deploy.kit import Kit
from hansa.errors import UserError
from hansa.privacy.audit import NAME, AuditLog, verify
from hansa.privacy.guard import Answer, Guard
from hansa.privacy.policy import Policy, Purpose, propose

if TYPE_CHECKING:
    from hansa.site import Site

POLICY = "policy.yaml"
PREFACE = """\
# What may leave this silo. It is yours: no federation can override it, and what no rule allows stays.
# As it stands it allows what {name} asks for, and nothing else. Read it, and change what you do not agree with;
# `hansa check --policy {file} FED.yaml` tells what would be refused. A change counts from the next request on.
"""


@dataclass(frozen=True)
class Law:
    kit: Kit
    policy: Path
    log: AuditLog

    @staticmethod
    def of(kit: Kit, policy: Path | None, home: Path) -> "Law":
        """The law of a silo; refuses to begin with an audit log that is not as it was left."""
        log = AuditLog(home / NAME, kit.name)
        found = verify(log.file)
        if not found.sound:
            raise UserError(f"{found.text}; keep it as evidence, and move it and its anchor away to begin a new one")
        return Law(kit, policy or kit.folder / POLICY, log)

    @property
    def flaw(self) -> str:
        """Why nothing at all may leave, if so."""
        return Policy.read(self.policy).flaw

    def over(self, answer: Answer, site: "Site") -> Answer:
        """The answer within this law. The federation's name is the one in the kit, whatever the settings say."""
        assert self.kit.card.parent is not None
        purpose = replace(Purpose.of(site.federation, self.kit.name), federation=self.kit.card.federation)
        return Guard(answer, self.policy, purpose, self.log, site.part_of, self.kit.card.parent.node)


def template(federation: Federation) -> str:
    """The policy that a kit brings."""
    preface = PREFACE.format(name=federation.name, file=POLICY)
    return preface + yaml.safe_dump(propose(federation), sort_keys=False, allow_unicode=True)
