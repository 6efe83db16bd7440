"""Approval of runs: a silo works only on settings, a starting model and plug-ins that its administrator approved.

`hansa approve FED.yaml --kit KIT` shows one page (approval_page.py) and records an approval in
``KIT/approvals``: the canonical settings (hansa.config.shared), the digests of the silo's own plug-ins, how the
starting model is verified, and for how many runs. A run whose settings differ is refused; the agent writes it to
``pending`` in the silo's home, where `hansa approve --kit KIT --pending` and the silo's page (hansa.dashboard) show the
difference to what was approved before. A policy may approve runs by itself, within bounds (``approve:``,
hansa.privacy.policy.limits).

Settings that only make sense in a rehearsal (``simulate``, ``release_log``, baselines, noise from the seed) are refused
whatever was approved.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from getpass import getuser
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hansa.config.federation import Federation
from hansa.config.sections import ReleaseLog
from hansa.config.shared import canonical, differences, digest
from hansa.core.errors import UserError
from hansa.core.simulation import Simulation
from hansa.files import write_file
from hansa.privacy.policy.rules import Policy

APPROVALS = "approvals"  # in the kit: what the administrator decided
PENDING = "pending"  # in the silo's home: runs that wait for an approval
REFUSED = "refused"  # in the silo's home: runs that its administrator refused, which are not shown as pending again
RUNS = "runs.jsonl"  # in the silo's home: which runs used which approval
MAX_PENDING = 20  # files, so that a coordinator cannot fill the disk with settings
BY_POLICY = "policy"  # who approved a run that needs no administrator
MAX_SHOWN = 12  # differences in one sentence


class NotApproved(Exception):
    """A run that the silo does not work on, with the reason for its operator.

    ``refused``: its administrator has looked at it and decided; otherwise it may be approved later.
    """

    def __init__(self, reason: str, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


@dataclass(frozen=True)
class Approval:
    """What an administrator approved.

    ``settings``: canonical; ``plugins``: file name → SHA-256; ``model``: the silo's own copy of the model folder, by
    which the start is verified; ``start``: digests of the files of a start that was looked at and approved as it is.
    """

    federation: str
    settings: dict[str, Any]
    plugins: dict[str, str] = field(default_factory=dict)
    model: str = ""
    start: dict[str, str] = field(default_factory=dict)
    runs: int = 1
    approved_at: str = ""
    by: str = ""

    @cached_property
    def digest(self) -> str:
        """The digest of what was approved; runs are counted apart."""
        return digest([self.settings, self.plugins])

    def covers(self, wanted: "Approval") -> bool:
        """Whether this approval is for the settings and plug-ins of another one.

        An approval that an older version of Hansa wrote lacks the settings that are new since then; they count as at
        their defaults.
        """
        if self.digest == wanted.digest:
            return True
        if self.plugins != wanted.plugins:
            return False
        try:
            return canonical(Federation.model_validate(self.settings)) == wanted.settings
        except ValidationError:
            return False


def approval_of(
    federation: Federation, plugins: Sequence[Path] = (), model: Path | None = None, runs: int = 1
) -> Approval:
    """An approval of a federation file by the user of this process."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    digests = {file.name: sha256(file.read_bytes()).hexdigest() for file in plugins}
    copy = str(model.resolve()) if model is not None else ""
    return Approval(federation.name, canonical(federation), digests, copy, {}, runs, now, user_name())


def needed_approval(federation: Federation, plugins: Mapping[str, str]) -> Approval:
    """What must have been approved for a run; ``plugins``: the digests of the silo's own plug-ins."""
    return Approval(federation.name, canonical(federation), dict(plugins))


def user_name() -> str:
    """The name of the user of this process."""
    try:
        return getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"


class Approvals:
    """The approvals of one node, in its kit; and the runs that wait for one, in its home."""

    def __init__(self, kit: Path, home: Path) -> None:
        self._kit = kit
        self._folder, self._pending, self._refused = kit / APPROVALS, home / PENDING, home / REFUSED
        self._runs = home / RUNS

    def add(self, approval: Approval) -> Path:
        """Record an approval; returns its file."""
        file = self._folder / f"{approval.digest}.json"
        write_file(file, json.dumps(asdict(approval), ensure_ascii=False, indent=1).encode())
        for folder in (self._pending, self._refused):
            (folder / file.name).unlink(missing_ok=True)
        return file

    def refuse(self, wanted: Approval, by: str) -> None:
        """Refuse a pending run for good: the agent refused it before, and does not show it as pending again."""
        values = asdict(replace(wanted, by=by, approved_at=datetime.now(UTC).isoformat(timespec="seconds")))
        write_file(self._refused / f"{wanted.digest}.json", json.dumps(values, ensure_ascii=False).encode())
        (self._pending / f"{wanted.digest}.json").unlink(missing_ok=True)

    def refused(self) -> list[Approval]:
        """Runs that an administrator refused, the newest last; ``by`` and ``approved_at`` say who and when."""
        return sorted(_read(self._refused), key=lambda approval: approval.approved_at)

    def all(self) -> list[Approval]:
        """All approvals, the newest last; raises `UserError` if one is damaged."""
        return sorted(_read(self._folder), key=lambda approval: approval.approved_at)

    def pending(self) -> list[Approval]:
        """Runs that were refused for want of an approval, as approvals that were not given, the newest last."""
        return sorted(_read(self._pending), key=lambda approval: approval.approved_at)

    def withdraw(self, prefix: str) -> int:
        """Delete the approvals whose digest begins with ``prefix``; returns how many there were."""
        files = [file for file in self._folder.glob("*.json") if file.name.startswith(prefix)]
        for file in files:
            file.unlink()
        return len(files)

    # ── at the agent ──────────────────────────────────────────────────────────────────────────────────────────────

    def check(self, federation: Federation, plugins: Mapping[str, str], run: str, policy: Policy) -> Approval:
        """The approval that covers a run; ``plugins``: the digests of the silo's own plug-ins.

        The run is noted as one of those that the approval is for. Raises `NotApproved`, and notes the run as pending.
        """
        return self.cover(federation, needed_approval(federation, plugins), run, policy)

    def cover(self, federation: Federation, wanted: Approval, run: str, policy: Policy) -> Approval:
        """The same as `check` for what `needed_approval` returned, which one caller may use for many requests."""
        if rehearsal := rehearsal_settings(federation):
            raise NotApproved(rehearsal)
        # The digest is compared first: an agent checks every request, and reading older settings takes long.
        approvals = sorted(self.all(), key=lambda one: one.digest != wanted.digest)
        found = next((one for one in approvals if one.covers(wanted)), None)
        if found is None:
            objection = policy.needs_approval(federation)
            if objection:
                self._note_pending(wanted)
                raise NotApproved(self._difference(wanted, objection), self._is_refused(wanted))
            assert policy.approve is not None
            found = replace(wanted, runs=policy.approve.runs, by=BY_POLICY)
        self._count(found, run)
        return found

    def _difference(self, wanted: Approval, objection: str) -> str:
        """Why a run is not approved: how it differs from the newest approval for the same federation."""
        before = [one for one in self.all() if one.federation == wanted.federation]
        how = "no run of this federation was approved"
        if before:
            lines = list(differences(before[-1].settings, wanted.settings))
            lines += list(differences(before[-1].plugins, wanted.plugins, "plugins"))
            more = f" and {len(lines) - MAX_SHOWN} more" if len(lines) > MAX_SHOWN else ""
            how = f"it differs from what was approved: {'; '.join(lines[:MAX_SHOWN])}{more}"
        command = f"hansa approve --kit {self._kit} --pending"
        return f"the run is not approved ({how}; {objection}); look at it, and approve it, with '{command}'"

    def _count(self, approval: Approval, run: str) -> None:
        """Note a run under its approval; raises `NotApproved` if the approval is for fewer runs."""
        # A policy approves so many runs in all: with another seed or name each would be another settings' first one.
        key = BY_POLICY if approval.by == BY_POLICY else approval.digest
        if run in self.used(key):
            return
        self._runs.parent.mkdir(parents=True, exist_ok=True)
        with self._runs.open("a", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)  # several runs may begin at once, each in a process of its own
            self._check_count(approval, key, run)
            stream.write(json.dumps({"approval": key, "run": run}) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def _check_count(self, approval: Approval, key: str, run: str) -> None:
        used = [one for one in self.used(key) if one != run]
        if len(used) >= approval.runs and key == BY_POLICY:
            self._note_pending(replace(approval, by=""))
            raise NotApproved(
                f"the policy approves {approval.runs} run{'s' * (approval.runs > 1)} in all (approve.runs), and this "
                f"would be another one ({run}); raise the number, or approve the run by hand"
            )
        if len(used) >= approval.runs:
            raise NotApproved(
                f"the approval is for {approval.runs} run{'s' * (approval.runs > 1)}, and this would be another one "
                f"({run}); approve it with 'hansa approve FED.yaml --kit {self._kit} --runs {len(used) + 1}'"
            )

    def used(self, approval: str) -> list[str]:
        """The runs that began under the approval with this digest."""
        try:
            lines = [json.loads(line) for line in self._runs.read_text(encoding="utf-8").splitlines() if line]
            return list(dict.fromkeys(line["run"] for line in lines if line["approval"] == approval))
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError):
            raise NotApproved(
                f"{self._runs} is damaged, so it is not known how many runs used the approval; restore it, or delete "
                "it and approve again"
            ) from None

    def note_start(self, approval: Approval, start: dict[str, str]) -> None:
        """Note a run whose start could not be verified, with the digests of the files that were received."""
        self._note_pending(replace(approval, start=start, by=""))

    def _is_refused(self, wanted: Approval) -> bool:
        return (self._refused / f"{wanted.digest}.json").is_file()

    def _note_pending(self, wanted: Approval) -> None:
        if self._is_refused(wanted):
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        files = sorted(self._pending.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for old in files[: len(files) - MAX_PENDING + 1]:
            old.unlink()
        values = {**asdict(wanted), "approved_at": now}
        write_file(self._pending / f"{wanted.digest}.json", json.dumps(values, ensure_ascii=False).encode())


_known: dict[Path, tuple[tuple[int, int, int], Approval]] = {}  # file → its state, and the approval in it


def _read(folder: Path) -> Iterator[Approval]:
    """The approvals in a folder. A file is parsed again when it has changed: an agent looks before every request."""
    for file in folder.glob("*.json"):
        try:
            about = file.stat()
            state = about.st_ino, about.st_mtime_ns, about.st_size
            if file not in _known or _known[file][0] != state:
                _known[file] = state, _parsed(file)
            yield _known[file][1]
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"{file} is damaged ({type(error).__name__}): delete it, and approve the run again"
            ) from None


def _parsed(file: Path) -> Approval:
    found = Approval(**json.loads(file.read_text(encoding="utf-8")))
    if not re.fullmatch("[0-9a-f]{64}", file.stem) or found.digest != file.stem:
        raise UserError(f"{file} was changed after the approval: delete it, and approve the run again")
    return found


def rehearsal_settings(federation: Federation) -> str:
    """Which section of the settings is for rehearsals only, and must not reach a deployed silo; empty if none."""
    if federation.kind not in ("federated", "survey"):
        return f"kind is '{federation.kind}', and baselines need all data in one place"
    if federation.simulate != Simulation():
        return "the settings have a section 'simulate', which is for rehearsals in one place"
    if federation.release_log != ReleaseLog():
        return "the settings have a section 'release_log', which is for rehearsals in one place"
    return ""
