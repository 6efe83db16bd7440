"""The status of a silo, at the silo: what its agent does, what waits for its administrator, what left last."""

from pathlib import Path
from typing import Any

from hansa.deploy.agent_state import AgentState, agent_runs, paused
from hansa.deploy.approval import Approvals
from hansa.deploy.kit import Kit
from hansa.deploy.status import format_time
from hansa.privacy.policy.audit_log import AUDIT_LOG, entries
from hansa.privacy.policy.words import entry_words


def silo_status(kit: Kit, home: Path) -> dict[str, Any]:
    """The status as plain values, for `hansa status KIT --format json`."""
    state, runs, pause = AgentState.read(home), agent_runs(home), paused(home)
    last: dict[str, Any] = {}
    for entry in entries(home / AUDIT_LOG):
        last = entry if entry.get("event") == "release" else last
    return {
        "node": kit.name,
        "federation": kit.info.federation,
        "running": runs,
        "connected": bool(runs and state and state.connected),
        "phase": state.phase if state and runs else "",
        "asked": state.asked if state and runs else "",
        "run": state.run if state and runs else "",
        "waiting": [f"{one.asked} in run {one.run}" for one in state.others] if state and runs else [],
        "deadline": state.deadline if state and runs else None,
        "alarm": state.alarm if state else "",
        "rejected": dict(state.rejected) if state else {},
        "paused": {"by": pause[0], "at": pause[1]} if pause else None,
        "pending": [one.digest for one in Approvals(kit.folder, home).pending()],
        "certificate_until": kit.valid_until.isoformat(),
        "last_release": {"time": last["time"], "text": entry_words(last)} if last else None,
    }


def status_lines(found: dict[str, Any]) -> list[str]:
    """The status in sentences."""
    lines = [f"{found['node']} in federation {found['federation']}: " + _agent(found)]
    if found["asked"]:
        until = f", until {format_time(found['deadline'])}" if found["deadline"] else ", without a deadline"
        lines.append(f"asked for: {found['asked']} in run {found['run']}{until}")
        lines += [f"also asked for: {one}" for one in found["waiting"]]
    elif found["running"]:
        lines.append("asked for: nothing now")
    if found["alarm"]:
        lines.append(f"ALARM: {found['alarm']}")
    if found["paused"]:
        lines.append(f"paused by {found['paused']['by']}: nothing is taken up or sent")
    if found["pending"]:
        many = len(found["pending"])
        lines.append(f"{many} run{'s' * (many > 1)} without approval: 'hansa approve --kit KIT --pending'")
    lines += [f"rejected {times} times: {reason}" for reason, times in found["rejected"].items()]
    left = found["last_release"]
    lines.append(f"last release, {left['time'][:19]}: {left['text']}" if left else "nothing has left this silo")
    lines.append(f"the certificate is valid until {found['certificate_until'][:10]}")
    return lines


def _agent(found: dict[str, Any]) -> str:
    if not found["running"]:
        return "the agent does not run"
    return f"the agent runs, {'connected' if found['connected'] else 'without connection'}, {found['phase']}"
