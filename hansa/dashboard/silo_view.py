"""What a silo's own page shows: state, pending approvals, the audit log, the budget, the policy. Read from files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from hansa.config.federation import Federation
from hansa.config.plugins import load_plugins
from hansa.core.errors import HansaError, UserError
from hansa.deploy.agent_state import AgentState, agent_runs, pause, paused, resume
from hansa.deploy.approval import Approval, Approvals
from hansa.deploy.approval_page import Section, approval_page
from hansa.deploy.kit import Kit
from hansa.privacy.dp.budget import BUDGET_FILE, RunTotal, by_run, charges, total
from hansa.privacy.policy.audit_log import AUDIT_LOG, AuditLog, entries, verify
from hansa.privacy.policy.proposal import POLICY_FILE
from hansa.privacy.policy.rules import Policy
from hansa.privacy.policy.words import entry_words, policy_lines

PAGE = 50  # entries of the audit log on one page
MAX_RUNS = 1000  # that one approval may be for
DEFAULT_DELTA = 1e-5  # where the policy states no budget


@dataclass(frozen=True)
class Pending:
    """A run that waits for a decision, and the page about it."""

    wanted: Approval
    sections: Sequence[Section]
    problem: str = ""  # why the page cannot be made
    used: int = 0  # runs of the same settings that began before

    @property
    def difference(self) -> Section | None:
        """How it differs from what was approved before."""
        return next((one for one in self.sections if one.heading.startswith("Difference")), None)


@dataclass(frozen=True)
class LogPage:
    """Some entries of the audit log as sentences, the newest first."""

    rows: Sequence[tuple[int, str, str, str]]  # number, time, event, sentence
    pages: int
    sound: bool
    verified: str


@dataclass(frozen=True)
class BudgetView:
    """What was spent of the privacy budget."""

    spent: float
    limit: float | None
    delta: float
    runs: Sequence[RunTotal]
    problem: str = ""

    @property
    def share(self) -> float:
        """The spent share of the budget, at most 1."""
        return min(1.0, self.spent / self.limit) if self.limit else 0.0


def check_silo(kit: Kit) -> None:
    """Raise `UserError` if a kit is not a silo's, so that there is no such page."""
    if kit.info.kind != "silo":
        raise UserError(
            f"{kit.folder} is the kit of a {kit.info.kind}, and only silos have such a page; 'hansa status RUN' "
            f"shows a {kit.info.kind}, with the --out of its 'hansa serve'"
        )


class SiloView:
    """The files of one silo; ``plugins``: the silo's own, needed to read settings that use them."""

    def __init__(self, kit: Kit, home: Path, policy: Path | None, plugins: Sequence[Path], model: Path | None) -> None:
        check_silo(kit)
        self.kit, self.home, self._policy_file = kit, home, policy or kit.folder / POLICY_FILE
        self._model = model
        load_plugins(tuple(str(file.resolve()) for file in plugins))

    @property
    def approvals(self) -> Approvals:
        """The approvals of the silo."""
        return Approvals(self.kit.folder, self.home)

    # ── state ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> dict[str, Any]:
        """What the agent does, whether it runs, and whether it is paused."""
        return {
            "agent": AgentState.read(self.home),
            "runs": agent_runs(self.home),
            "paused": paused(self.home),
            "pending": len(self.approvals.pending()),
            "expires": self.kit.valid_until,
        }

    def pause(self, by: str) -> None:
        """Pause the agent; the audit log names who did it."""
        pause(self.home, by)
        self._note(by, "paused the agent")

    def resume(self, by: str) -> None:
        """Let the agent work again; the audit log names who did it."""
        self._note(by, "let the agent work again")
        resume(self.home)

    def _note(self, by: str, what: str, **fields: Any) -> None:
        AuditLog(self.home / AUDIT_LOG, self.kit.name).add("decision", by=by, reason=what, **fields)

    # ── approvals ─────────────────────────────────────────────────────────────────────────────────────────────────

    def pending(self) -> list[Pending]:
        """The runs that wait for a decision, the newest first."""
        return [self._page(one) for one in reversed(self.approvals.pending())]

    def _page(self, wanted: Approval) -> Pending:
        wanted = self._with_model(wanted)
        before = next((one for one in reversed(self.approvals.all()) if one.federation == wanted.federation), None)
        try:
            settings = Federation.model_validate(wanted.settings)
            sections = approval_page(settings, wanted, self.kit, self._policy_file, before)
            return Pending(wanted, sections, used=len(self.approvals.used(wanted.digest)))
        except (HansaError, ValueError) as error:
            return Pending(wanted, (), f"its settings cannot be shown ({str(error).splitlines()[0]}); give --plugins")

    def _with_model(self, wanted: Approval) -> Approval:
        model = Federation.model_validate(wanted.settings).model if self._model is not None else None
        named = model is not None and model.path is not None
        return replace(wanted, model=str(self._model.resolve())) if named and self._model is not None else wanted

    def _find(self, digest: str) -> Approval:
        found = next((one for one in self.approvals.pending() if one.digest == digest), None)
        if found is None:
            raise UserError("this run does not wait for a decision any more; reload the page")
        return found

    def approve(self, digest: str, runs: int, accept_start: bool, by: str) -> None:
        """Approve a pending run for so many runs in all; raises `UserError` if it cannot be approved."""
        wanted = self._page(self._find(digest))
        if wanted.problem:
            raise UserError(wanted.problem)
        if not 1 <= runs <= MAX_RUNS:
            raise UserError(f"the number of runs is {runs}, and 1 to {MAX_RUNS} are possible")
        if wanted.used >= runs:
            raise UserError(
                f"{wanted.used} runs of these settings began before, and the number counts all runs: give at least "
                f"{wanted.used + 1}"
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        start = wanted.wanted.start if accept_start else {}
        self._note(by, f"approved {runs} runs of settings {digest[:16]}", settings=digest)
        self.approvals.add(replace(wanted.wanted, runs=runs, start=start, approved_at=now, by=by))

    def refuse(self, digest: str, by: str) -> None:
        """Refuse a pending run for good."""
        wanted = self._find(digest)
        self._note(by, f"refused the settings {digest[:16]}", settings=digest)
        self.approvals.refuse(wanted, by)

    def withdraw(self, digest: str, by: str) -> None:
        """Withdraw an approval; it takes effect with the next request."""
        if digest not in {one.digest for one in self.approvals.all()}:
            raise UserError("there is no such approval; reload the page")
        self._note(by, f"withdrew the approval of settings {digest[:16]}", settings=digest)
        self.approvals.withdraw(digest)

    # ── log, budget, policy ───────────────────────────────────────────────────────────────────────────────────────

    def log(self, page: int, kind: str = "") -> LogPage:
        """One page of the audit log, the newest first; ``kind``: only entries with this event."""
        file = self.home / AUDIT_LOG
        found = [entry for entry in entries(file) if kind in ("", entry.get("event"))]
        found.reverse()
        checked = verify(file)
        rows = [
            (int(entry["number"]), str(entry["time"])[:19].replace("T", " "), str(entry["event"]), entry_words(entry))
            for entry in islice(found, page * PAGE, (page + 1) * PAGE)
        ]
        return LogPage(rows, max(1, -(-len(found) // PAGE)), checked.sound, checked.text)

    def budget(self) -> BudgetView:
        """What was spent, in all and by run."""
        limit = self.policy.budget
        delta = limit.delta if limit is not None else DEFAULT_DELTA
        epsilon = limit.epsilon if limit is not None else None
        try:
            held = charges(self.home / BUDGET_FILE)
        except HansaError as error:
            return BudgetView(0.0, epsilon, delta, (), str(error))
        spent = total((one.event for one in held), delta) if held else 0.0
        return BudgetView(spent, epsilon, delta, by_run(held, delta))

    @property
    def policy(self) -> Policy:
        """The silo's policy as it is now."""
        return Policy.read(self._policy_file)

    def policy_words(self) -> list[str]:
        """The policy in sentences."""
        return policy_lines(self.policy)

    @property
    def policy_file(self) -> Path:
        """Where the policy is."""
        return self._policy_file
