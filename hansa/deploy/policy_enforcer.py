"""Enforcement of what a node's own operator decided: approvals and policy, with the log of what was released."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.config.plugins import load_plugins
from hansa.config.shared import digest, settings_digest
from hansa.core.errors import UserError
from hansa.core.messages import NOT_APPROVED, Failure, Reply, Request
from hansa.deploy.approval import Approval, Approvals, NotApproved, needed_approval
from hansa.deploy.kit import Kit
from hansa.deploy.network.blob_protocol import InvalidRequest
from hansa.deploy.start_check import start_files, verify_start
from hansa.files import write_file
from hansa.privacy.policy.audit_log import AUDIT_LOG, AuditLog, verify
from hansa.privacy.policy.guard import Answering, Guard, RunContext, SiloChecks
from hansa.privacy.policy.proposal import POLICY_FILE
from hansa.privacy.policy.rules import Policy, Purpose

REFUSED = "the silo's administrator has refused this run"
VERIFIED = "start.verified"  # in the folder of a run: the digests of the start that was verified, and of its settings


@dataclass(frozen=True)
class PolicyEnforcer:
    """The policy file, the approvals and the audit log of a node."""

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

    @property
    def approvals(self) -> Approvals:
        """The approvals of the node."""
        return Approvals(self.kit.folder, self.log.file.parent)

    def log_refusal(self, message: str, round: int, reason: str) -> None:
        """Log a request that could not be used."""
        self.log.add("refusal", message=message, round=round, to=self.kit.parent.node, reason=reason)

    def approved_model(self, federation: Federation, folder: Path, plugins: Sequence[str]) -> str:
        """The folder of the node's own copy of the model that was approved with a run; empty if there is none."""
        return self._approval(federation, folder, plugins).model

    def admit(self, federation: Federation, folder: Path, plugins: Sequence[str], model: str = "") -> RunContext:
        """Check that a run with these settings, and the start in its ``folder``, is approved; return how logs name it.

        ``federation``: as the coordinator sent it; ``plugins``: the silo's own plug-in files; ``model``: its copy of
        the model, if it is another than the approved one. Raises `InvalidRequest`, which tells the coordinator only
        that the run is not approved, or that it was refused.
        """
        try:
            approval = self._approval(federation, folder, plugins)
            approval = replace(approval, model=model or approval.model)
            load_plugins(plugins)  # approved now; the start may need their tasks, and this process may be a new one
            how = self._verify_start(folder, federation, approval)
        except NotApproved as error:
            raise InvalidRequest(REFUSED if error.refused else NOT_APPROVED, str(error)) from None
        start = self._start_digest(folder) if how else ""
        context = RunContext(folder.name, settings_digest(federation), start)
        named = {name: value for name, value in vars(context).items() if value}
        self.log.add("approved", **named, to=self.kit.parent.node, by=approval.by or "unknown", reason=how)
        return context

    def _approval(self, federation: Federation, folder: Path, plugins: Sequence[str]) -> Approval:
        return self.approvals.check(federation, _digests(plugins), folder.name, Policy.read(self.policy))

    def while_approved(
        self, answer: Answering, federation: Federation, folder: Path, plugins: Sequence[str]
    ) -> Answering:
        """Return ``answer`` for as long as the run is approved: a withdrawal takes effect with the next request."""
        wanted = needed_approval(federation, _digests(plugins))

        def checked(request: Request) -> Reply:
            """The answer to a request, or a logged `Failure` if the run is not approved at this moment."""
            now = _digests(plugins)  # a changed plug-in needs another approval
            asked = wanted if now == wanted.plugins else needed_approval(federation, now)
            try:
                self.approvals.cover(federation, asked, folder.name, Policy.read(self.policy))
            except NotApproved as error:
                self.log_refusal(type(request).__name__, getattr(request, "round", 0), str(error))
                return Failure(NOT_APPROVED)
            return answer(request)

        return checked

    def _verify_start(self, folder: Path, federation: Federation, approval: Approval) -> str:
        """How the start was verified, once per run; empty before there is one."""
        if not (folder / "start").exists():
            return ""
        # Other settings imply another start, also in the same folder.
        marker, found = folder / VERIFIED, f"{self._start_digest(folder)} {settings_digest(federation)}"
        if marker.is_file() and marker.read_text() == found:
            return "the start was verified before"
        try:
            how = verify_start(folder / "start", federation, approval)
        except NotApproved:
            self.approvals.note_start(approval, start_files(folder / "start"))
            raise
        write_file(marker, found.encode())
        return how

    def _start_digest(self, folder: Path) -> str:
        return digest(start_files(folder / "start"))

    def guard(
        self, answer: Answering, runtime: Runtime, context: RunContext, checks: SiloChecks | None = None
    ) -> Answering:
        """Return ``answer`` restricted by the policy; ``checks``: of a silo, what its settings imply.

        The federation's name in the kit counts, not the one in the coordinator's settings.
        """
        purpose = replace(Purpose.of(runtime.federation, self.kit.name), federation=self.kit.info.federation)
        parent = self.kit.parent.node
        return Guard(answer, self.policy, purpose, self.log, runtime.part_of, parent, context, checks, explain=False)


def _digests(plugins: Sequence[str]) -> dict[str, str]:
    """Name → SHA-256 of plug-in files."""
    return {Path(file).name: sha256(Path(file).read_bytes()).hexdigest() for file in plugins}
