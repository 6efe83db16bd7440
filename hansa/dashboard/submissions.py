"""Federation files that were submitted in the dashboard, and what an approver decided.

``RUNS/.submissions/ID.json`` is one submission. An approved one goes into the queue of runs (``RUNS/.queue``), on which
``hansa serve --queue RUNS`` works: the dashboard itself starts no process, and every silo still decides for itself.
"""

import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

import yaml
from pydantic import ValidationError

from hansa.config.chat import with_template
from hansa.config.checks import named_code
from hansa.config.federation import Federation
from hansa.config.file import parse, parse_yaml
from hansa.config.shared import canonical, differences
from hansa.core.errors import ConfigError, UserError
from hansa.deploy.deployable import check_submission
from hansa.deploy.kit import Kit
from hansa.deploy.run_queue import RunQueue
from hansa.files import write_file

FOLDER = ".submissions"
WAITING, APPROVED, REFUSED, WITHDRAWN = "waiting", "approved", "refused", "withdrawn"
ID = re.compile("[0-9a-f]{16}")
MAX_TEXT = 200_000  # characters of a federation file
MAX_HELD = 1000
WHERE = "the submitted file"


@dataclass(frozen=True)
class Submission:
    """One submitted federation file."""

    id: str
    name: str  # of the federation
    by: str
    at: str
    text: str
    state: str = WAITING
    decided_by: str = ""
    decided_at: str = ""
    run: str = ""  # the number in the queue of an approved one


class Submissions:
    """The submissions below a folder of runs; ``kit``: the coordinator's, against whose members files are checked."""

    def __init__(self, runs: Path, kit: Kit | None = None) -> None:
        self._folder, self._queue, self._kit = runs / FOLDER, RunQueue(runs), kit

    def all(self) -> list[Submission]:
        """All submissions, the newest first; files that cannot be read are left out."""
        found = (self.find(file.stem) for file in self._folder.glob("*.json"))
        return sorted((one for one in found if one is not None), key=lambda one: one.at, reverse=True)

    def find(self, id: str) -> Submission | None:
        """The submission with an id; None if there is none."""
        if not ID.fullmatch(id):
            return None
        try:
            return Submission(**json.loads((self._folder / f"{id}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def add(self, text: str, by: str) -> Submission:
        """Keep a federation file; raises `UserError` in one sentence if it is none, or cannot be run.

        Nothing that it names is executed.
        """
        if len(text) > MAX_TEXT:
            raise UserError(f"the file has {len(text)} characters, and {MAX_TEXT} are allowed")
        if len(self.all()) >= MAX_HELD:
            raise UserError(f"there are {MAX_HELD} submissions already; delete old ones in {self._folder}")
        settings = self._checked(text)
        one = Submission(token_hex(8), settings.name, by, _now(), text)
        self._write(one)
        return one

    def decide(self, id: str, state: str, by: str) -> Submission:
        """Approve, refuse or withdraw a submission that waits.

        Raises `UserError` if it does not wait, or if one that is approved cannot be run any more.
        """
        found = self.find(id)
        if found is None or found.state != WAITING:
            raise UserError("this submission was decided before; reload the page")
        decided = replace(found, state=state, decided_by=by, decided_at=_now())
        if state == APPROVED:
            queued = self._queue.add(self._checked(decided.text), decided.by)
            decided = replace(decided, run=queued.id)
        self._write(decided)
        return decided

    def difference(self, one: Submission) -> list[str]:
        """How a submission differs from the newest approved one of the same federation; empty if there is none."""
        before = next(
            (other for other in self.all() if other.name == one.name and other.state == APPROVED and other != one), None
        )
        if before is None:
            return []
        try:
            old, new = (canonical(parse(read_yaml(text), WHERE)) for text in (before.text, one.text))
        except (ConfigError, ValidationError):
            return ["the settings cannot be compared"]
        return list(differences(old, new)) or ["none"]

    def _checked(self, text: str) -> Federation:
        """The settings in a text, checked as `hansa submit` checks a file; its paths are relative to the runs."""
        settings = parse(read_yaml(text), WHERE, self._queue.runs.absolute(), text)
        if named_code(settings):
            what = "plug-ins" if settings.plugins else "a finder in data.deidentify other than 'rules' and 'lists'"
            raise UserError(
                f"{WHERE} names {what}, which the coordinator would load and execute; its operator submits such a file "
                "with 'hansa submit'"
            )
        settings = with_template(settings)
        check_submission(settings, self._kit)
        return settings

    def _write(self, one: Submission) -> None:
        write_file(self._folder / f"{one.id}.json", json.dumps(asdict(one), ensure_ascii=False).encode(), mode=0o600)


def read_yaml(text: str) -> dict[str, Any]:
    """The mapping in a YAML text; raises `UserError` if it is none, or has aliases, which can grow without end."""
    try:
        with suppress(yaml.YAMLError):  # `parse_yaml` says what is wrong
            if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
                raise UserError(f"{WHERE} uses YAML aliases (*name); write the values out")
        return parse_yaml(text, Path(WHERE), "a federation file", "beginning with 'silos:'")
    except RecursionError:
        raise UserError(f"{WHERE} has too many levels; write it with fewer") from None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
