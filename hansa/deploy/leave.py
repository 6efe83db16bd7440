"""`hansa leave`: a silo leaves its federation for good.

A file in the silo's home stops its agent and keeps another one from starting. Then the silo sends its parent a signed
envelope, which the broker stores until the parent reads it; from then on the parent asks it nothing more. The parent's
next runs count it as left, too, while the broker keeps the envelope; `hansa kit revoke` excludes it for ever.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep, time

from hansa.core.errors import RunFailed, UserError
from hansa.deploy.kit import Kit
from hansa.deploy.lock_file import lock_folder
from hansa.deploy.network.address import Proxy
from hansa.deploy.network.connection import Connection
from hansa.deploy.network.envelope import LEAVE, NO_RUN, Envelope, sign_envelope
from hansa.deploy.network.retry import GaveUp
from hansa.deploy.network.session import Session

LEFT_FILE = "left.json"
NOTHING = ("0" * 32, 0)  # the envelope has no content


def has_left(home: Path) -> str:
    """When the silo with these files left; empty if it has not."""
    try:
        at = float(json.loads((home / LEFT_FILE).read_text(encoding="utf-8"))["at"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return "an unknown date"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def check_not_left(home: Path) -> None:
    """Raise `UserError` if the silo with these files has left."""
    if since := has_left(home):
        raise UserError(
            f"this silo left the federation on {since}; to take part again, ask for a new kit and delete "
            f"{home / LEFT_FILE}"
        )


def leave(
    kit: Kit,
    home: Path,
    proxy: Proxy | None,
    log: Callable[[str], None],
    seconds: float,
    trust: Path | None = None,
) -> None:
    """Stop the silo's agent and tell its parent; raises `RunFailed` if that takes longer than ``seconds`` each."""
    if kit.info.kind != "silo":
        raise UserError(f"{kit.folder} is the kit of a {kit.info.kind}, and only silos leave; use 'hansa kit revoke'")
    home.mkdir(parents=True, exist_ok=True)
    (home / LEFT_FILE).write_text(json.dumps({"at": time()}), encoding="utf-8")
    until = monotonic() + seconds
    while True:
        try:
            with lock_folder(home, "hansa join"):
                break
        except UserError:
            if monotonic() > until:
                raise RunFailed(
                    f"the agent that works in {home} has not ended within {seconds:.0f} s; stop it, then repeat "
                    "'hansa leave'"
                ) from None
            sleep(0.2)
    _tell(kit, proxy, log, seconds, trust)


def _tell(kit: Kit, proxy: Proxy | None, log: Callable[[str], None], seconds: float, trust: Path | None) -> None:
    subjects, parent, until = kit.parent_subjects, kit.parent, monotonic() + seconds
    envelope = Envelope(
        sender=kit.name,
        receiver=parent.node,
        run=NO_RUN,
        run_started=0.0,
        request="0" * 32,
        sequence=0,
        kind=LEAVE,
        round=0,
        text=NOTHING,
    )
    data, subject = sign_envelope(envelope, kit.key), subjects.reply(kit.name)
    session = Session(
        kit.route(proxy, trust),
        lambda: kit.key,
        subjects.inbox(kit.name),
        [],
        log,
        lambda: monotonic() > until,
    )

    def send(connection: Connection) -> None:
        """Publish the signed envelope, and wait until the broker has stored it."""
        connection.checked(connection.request(subject, data))

    try:
        session.do(send, until)
    except GaveUp:
        raise RunFailed(
            f"the parent at {', '.join(parent.addresses)} could not be reached within {seconds:.0f} s; the silo's "
            "agent stays stopped: repeat 'hansa leave' later, or ask the authority for 'hansa kit revoke'"
        ) from None
    finally:
        session.close()
