"""`hansa serve` at the root: the coordinator of a federation between organisations.

The coordinator runs the same rounds as `hansa run`, over a network link. Its children are the nodes directly below it;
a region (region.py) answers like a silo.
"""

from pathlib import Path

import torch

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.checks import check_settings
from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import ROOT, Node, walk
from hansa.config.sections import Checkpointing
from hansa.core.errors import ConfigError, UserError
from hansa.core.link import Link
from hansa.deploy.bundle import pack
from hansa.deploy.join import NO_SOURCES
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.server_session import server_session
from hansa.deploy.signatures import KitSigner, VerifiedLink
from hansa.deploy.status import SERVER_FOLDER
from hansa.links.tree import TreeLink
from hansa.privacy.policy.audit_log import AUDIT_LOG, AuditLog
from hansa.privacy.policy.audited_link import AuditedLink
from hansa.runs.callbacks import RunCallbacks
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.run import Outcome, Run
from hansa.runs.start import begin, describe

ASYNCHRONOUS_ABSENCE = 60.0  # seconds: an asynchronous method is chosen so that nobody waits for a silo that stopped


def serve(federation: Federation, kit: Kit, out: Path, nats: str | None, callbacks: RunCallbacks) -> Outcome:
    """Run a federation file to its end among the members of the kit; resumes the run if ``out`` has one.

    ``nats``: the URL of an existing NATS server. Raises `UserError` or `ConfigError` if the kit and the file do not fit
    together, or the file cannot be run between organisations.
    """
    if kit.info.kind != COORDINATOR:
        raise UserError(f"{kit.folder} is the kit of {kit.info.kind} '{kit.name}'; give the coordinator's kit")
    check_deployable(federation, kit)
    check_settings(federation)
    torch.set_num_threads(1)
    children = _direct_children(federation)
    directory = RunDirectory.create(children, out, resume=(out / "federation.yaml").is_file())
    ledger = Ledger(directory.path)
    host = SiloHost(Runtime(children, directory.path))
    files = directory.path / SERVER_FOLDER
    try:
        with server_session(kit, files, nats, callbacks.say) as network:
            network.presence.max_absence = max_absence(federation)
            settings = shared_settings(federation).model_dump_json().encode()
            network.share_settings(settings)
            verified = VerifiedLink(network, KitSigner(kit, directory.path, settings, network.run))
            link: Link = AuditedLink(verified, AuditLog(directory.path / AUDIT_LOG, kit.name))
            if federation.root is not None:
                link = TreeLink(link, {ROOT: lambda request: host.silo(ROOT).answer(request)})
            begin(children, directory, link, ledger, callbacks)
            network.share_start(pack(directory.start, files / "start.bundle"))
            cards = describe(children, directory, link, ledger, callbacks)
            children = children.model_copy(update={"silos": {n: s for n, s in children.silos.items() if n in cards}})
            return Run(children, directory, link, cards, ledger, callbacks).go()
    finally:
        ledger.close()


def max_absence(federation: Federation) -> float | None:
    """Seconds without a sign of life after which a silo is not awaited in a round; None: until the deadline."""
    stated = federation.participation.max_absence
    return stated if stated is not None or build_method(federation).participation.synchronous else ASYNCHRONOUS_ABSENCE


def check_deployable(federation: Federation, kit: Kit) -> None:
    """Raise `ConfigError` if a federation file does not belong to the kit, or cannot be run between organisations."""
    if federation.kind != "federated":
        raise ConfigError(f"kind is '{federation.kind}': baselines need all data in one place; use 'hansa run'")
    missing = set(kit.info.children) - set(federation.silos)
    unknown = set(federation.silos) - set(kit.info.children)
    if federation.name != kit.info.federation or unknown or any(kit.trusts(name) for name in missing):
        raise ConfigError(
            f"the kit is for federation '{kit.info.federation}' with {sorted(kit.info.children)}, the file has "
            f"'{federation.name}' with {sorted(federation.silos)}; create kits for this file"
        )
    mixed = [name for name, node in walk(federation.silos) if node.mixture]
    if mixed or (federation.root is not None and federation.root.mixture):
        raise ConfigError(
            f"'{(mixed or [ROOT])[0]}' holds the mixture of its silos' data, which does not leave the silos; "
            "leave 'mixture' out"
        )
    aligned = [name for name, node in walk(federation.silos) for source in node.sources if source.aligned is not None]
    if aligned:
        raise ConfigError(
            f"'{aligned[0]}' has translations in two aligned files, and 'hansa join --data' takes one file for each "
            "source: put both sides into one file (JSON Lines, a table, TMX)"
        )
    models = [name for name, node in walk(federation.silos) if node.model is not None]
    if models:
        raise ConfigError(
            f"'{models[0]}' names a model folder, and no member opens a folder that another member names; leave "
            "'model' out there"
        )
    if federation.secure_aggregation is not None and federation.secure_aggregation.threshold <= 0.5:
        raise ConfigError(
            f"secure_aggregation.threshold is {federation.secure_aggregation.threshold:g}: between organisations more "
            "than half of the other silos must be needed to reconstruct a secret, or two lists of silos would "
            "reconstruct both secrets of one; set it above 0.5"
        )


def _direct_children(federation: Federation) -> Federation:
    """The federation with only the root's direct children, where regions answer as silos do.

    Every round is a checkpoint, so that the uploads of a round can be deleted after the next one.
    """
    silos = {
        n: node.model_copy(update={"silos": {}, "rounds": 1, "sources": NO_SOURCES, "policy": None})
        for n, node in federation.silos.items()
    }
    every = Checkpointing(every=1, keep=federation.checkpoint.keep)
    return federation.model_copy(update={"silos": silos, "checkpoint": every})


def shared_settings(federation: Federation) -> Federation:
    """The settings that every member receives: the whole tree, without paths and without plugins."""

    def without_paths(node: Node) -> Node:
        sources = tuple(s.model_copy(update={"train": "", "valid": None, "test": None}) for s in node.sources)
        below = {name: without_paths(child) for name, child in node.silos.items()}
        return node.model_copy(update={"sources": sources, "silos": below, "policy": None})

    silos = {name: without_paths(node) for name, node in federation.silos.items()}
    root = federation.root and federation.root.model_copy(update={"sources": NO_SOURCES})
    return federation.model_copy(update={"silos": silos, "root": root, "plugins": ()})
