"""`hansa serve` at the root: the coordinator of a federation between organisations.

The coordinator runs the same rounds as `hansa run`, over a network link. Its children are the nodes directly below it;
a region (region.py) answers like a silo.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import ROOT
from hansa.config.sections import Checkpointing
from hansa.config.shared import NO_SOURCES, for_members, settings_digest
from hansa.config.tree import masked_families
from hansa.core.errors import RunFailed, UserError
from hansa.core.link import Link
from hansa.deploy.bundle import pack
from hansa.deploy.deployable import check_submission
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.attendance import absence
from hansa.deploy.network.link import NatsLink
from hansa.deploy.public_certificate import PublicCertificate
from hansa.deploy.server_session import server_session
from hansa.deploy.signatures import KitSigner, VerifiedLink
from hansa.deploy.status import SERVER_FOLDER
from hansa.links.tree import TreeLink
from hansa.privacy.policy.audit_heads import Anchors
from hansa.privacy.policy.audit_log import AUDIT_LOG, AuditLog
from hansa.privacy.policy.audited_link import AuditedLink
from hansa.privacy.policy.guard import RunContext
from hansa.runs.callbacks import CurrentRun, RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.result import Result
from hansa.runs.run import Run
from hansa.runs.start import begin, describe

# Opens a run: its folder, the children that it asks, and who is told of problems.
OpenRun = Callable[[Path, Sequence[str], Callable[[str], None]], AbstractContextManager[NatsLink]]


def serve(
    federation: Federation,
    kit: Kit,
    out: Path,
    nats: str | None,
    callbacks: Iterable[object],
    listen: str | None = None,
    pages: Any | None = None,
    public: PublicCertificate | None = None,
) -> Result:
    """Run a federation file to its end among the members of the kit; resumes the run if ``out`` has one.

    ``nats``, ``listen``, ``pages`` and ``public`` are those of `server_session`. Raises `UserError` or `ConfigError` if
    the kit and the file do not fit together, or the file cannot be run between organisations.
    """

    def open_run(folder: Path, children: Sequence[str], log: Callable[[str], None]) -> AbstractContextManager[NatsLink]:
        """A session with its own port, broker connection and link, for this run alone."""
        return server_session(kit, folder, nats, log, children, listen, pages, public)

    return serve_run(federation, kit, out, open_run, callbacks)


def serve_run(federation: Federation, kit: Kit, out: Path, open_run: OpenRun, callbacks: Iterable[object]) -> Result:
    """Run a federation file as `serve` does, over a link that ``open_run`` opens, such as `StandingServer.open_run`."""
    check_coordinator(kit)
    check_submission(federation, kit)
    torch.set_num_threads(1)
    children = _direct_children(federation)
    directory = RunDirectory.create(children, out, resume=(out / "federation.yaml").is_file())
    ledger, events = Ledger(directory.path), RunEvents(callbacks, CurrentRun(children, directory.path))
    host = SiloHost(Runtime(children, directory.path))
    files = directory.path / SERVER_FOLDER
    try:
        with open_run(files, list(children.silos), events.say) as network:
            network.attendance.max_absence = max_absence(federation)
            settings = for_members(federation)
            network.share_settings(settings)
            verified = VerifiedLink(network, KitSigner(kit, directory.path, settings, network.run))
            context = RunContext(network.run, settings_digest(federation))
            log = AuditLog(directory.path / AUDIT_LOG, kit.name)
            network.anchors = Anchors.beside(log)
            link: Link = AuditedLink(verified, log, context)
            if federation.root is not None:
                link = TreeLink(link, {ROOT: lambda request: host.silo(ROOT).answer(request)})
            network.on_wait = lambda: _tell_waiting(events)
            begin(children, directory, link, ledger, events)
            network.share_start(pack(directory.start, files / "start.bundle"))
            events.say("silos prepare their data")
            cards = describe(children, directory, link, ledger, events)
            network.on_wait = lambda: None
            children = children.model_copy(update={"silos": {n: s for n, s in children.silos.items() if n in cards}})
            return Run(children, directory, link, cards, ledger, events).go()
    except BaseException as error:
        events.tell("on_failure", error)
        raise
    finally:
        ledger.close()


def _tell_waiting(events: RunEvents) -> None:
    """Tell the callbacks that silos are awaited before the first round; `RunFailed` if one of them stops the run."""
    events.tell("on_wait")
    if events.run is not None and events.run.stop_reason:
        raise RunFailed(f"{events.run.stop_reason} before the first round, while silos were awaited")


def check_coordinator(kit: Kit) -> None:
    """Raise `UserError` if a kit is not a coordinator's."""
    if kit.info.kind != COORDINATOR:
        raise UserError(f"{kit.folder} is the kit of {kit.info.kind} '{kit.name}'; give the coordinator's kit")


def max_absence(federation: Federation) -> float | None:
    """Seconds without a heartbeat after which a silo is not awaited in a round; None: until the deadline."""
    return absence(federation.participation, build_method(federation).participation.synchronous)


def _direct_children(federation: Federation) -> Federation:
    """The federation with only the root's direct children, where regions answer as silos do.

    Every round is a checkpoint, so that the uploads of a round can be deleted after the next one.
    """
    silos = {
        n: node.model_copy(update={"silos": {}, "rounds": 1, "sources": NO_SOURCES, "policy": None})
        for n, node in federation.silos.items()
    }
    every = Checkpointing(every=1, keep=federation.checkpoint.keep)
    masking = federation.secure_aggregation if "" in masked_families(federation) else None  # or in the regions alone
    return federation.model_copy(update={"silos": silos, "checkpoint": every, "secure_aggregation": masking})
