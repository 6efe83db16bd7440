"""`hansa survey` between organisations: the coordinator asks agents whose administrator or policy approved it.

A survey is a run of its own, with the settings of the federation file and ``kind: survey``: an approval of a training
run does not cover it, and an approval of a survey covers nothing else.
"""

import json
from collections.abc import Callable
from pathlib import Path

from hansa.config.federation import Federation
from hansa.config.plugins import load_plugins
from hansa.config.shared import for_members, settings_digest
from hansa.core.errors import UserError
from hansa.core.participation import enrolment_deadline
from hansa.deploy.deployable import check_deployable
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.server_session import server_session
from hansa.deploy.status import SERVER_FOLDER
from hansa.files import write_file
from hansa.privacy.policy.audit_heads import Anchors
from hansa.privacy.policy.audit_log import AUDIT_LOG, AuditLog
from hansa.privacy.policy.audited_link import AuditedLink
from hansa.privacy.policy.guard import RunContext
from hansa.runs.survey import Survey, below, take_survey

RESULT = "survey.json"


def survey_members(federation: Federation, kit: Kit, out: Path, nats: str | None, say: Callable[[str], None]) -> Survey:
    """Survey the members of a federation; the result and the coordinator's audit log are written to ``out``.

    ``nats``: the URL of an existing NATS server. Raises `UserError` or `ConfigError` if the kit and the file do not fit
    together, and `RunFailed` if no silo takes part.
    """
    if kit.info.kind != COORDINATOR:
        raise UserError(f"{kit.folder} is the kit of {kit.info.kind} '{kit.name}'; give the coordinator's kit")
    if (out / RESULT).exists():
        raise UserError(f"{out} has the result of a survey; give another folder with --out for another survey")
    load_plugins(federation.plugins)
    settings = federation.as_survey()
    check_deployable(settings, kit)
    with server_session(kit, out / SERVER_FOLDER, nats, say, list(settings.silos)) as network:
        network.attendance.max_absence = settings.participation.max_absence
        network.share_settings(for_members(settings))
        log = AuditLog(out / AUDIT_LOG, kit.name)
        network.anchors = Anchors.beside(log)
        link = AuditedLink(network, log, RunContext(network.run, settings_digest(settings)))
        found = take_survey(settings, link, below(settings), lambda: enrolment_deadline(settings.participation))
    write_file(out / RESULT, json.dumps(found.as_dict(), ensure_ascii=False, indent=1).encode())
    return found
