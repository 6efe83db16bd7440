"""`hansa join`: a silo's answers to requests of its parent, from data that stays with the silo."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.config.nodes import Node, walk
from hansa.config.shared import NO_SOURCES, from_coordinator
from hansa.core import device
from hansa.core.errors import ConfigError, DataError, UserError
from hansa.core.messages import Reply, Request
from hansa.data.deidentification.kinds import built_in
from hansa.data.source import Source
from hansa.deploy.kit import Kit
from hansa.deploy.network.blob_protocol import InvalidRequest
from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.deploy.signatures import KitSigner
from hansa.models.base import check_base
from hansa.privacy.dp.prices import seeded_noise
from hansa.privacy.policy.audit_heads import Anchors
from hansa.privacy.policy.audit_log import AUDIT_LOG, AuditLog
from hansa.privacy.policy.proposal import POLICY_FILE

NO_BASE = "the node has no copy of the base model, which does not travel"
OTHER_BASE = "the node's copy of the base model is not the one of this run"


def sources(kit: Kit, data: Sequence[Path]) -> tuple[Source, ...]:
    """The data at the given paths, in the format that the kit describes; raises `UserError` if they do not match."""
    described = kit.info.sources
    if len(data) != len(described):
        raise UserError(
            f"silo '{kit.name}' has {len(described)} sources, and --data was given {len(data)} times; give it once for "
            "each source"
        )
    for path in data:
        if not path.exists():
            raise DataError(f"{path} does not exist; give the file or folder with the data of '{kit.name}'")
    return tuple(
        source.model_copy(update={"train": str(path.resolve())}) for source, path in zip(described, data, strict=True)
    )


class SiloService:
    """Answers requests from a silo's own data; implements `hansa.deploy.request_reader.NodeService`.

    With one thread the results have the same bits as in a simulation; with more it is faster on several cores.
    ``model``: the silo's copy of a base that does not travel; default: the one that its administrator approved.
    """

    def __init__(
        self,
        kit: Kit,
        sources: tuple[Source, ...],
        plugins: tuple[str, ...],
        enforcer: PolicyEnforcer | None = None,
        threads: int = 1,
        model: Path | None = None,
    ) -> None:
        self._kit, self._sources, self._plugins, self._enforcer = kit, sources, plugins, enforcer
        self._threads, self._model = threads, model
        self.anchors = Anchors.beside(enforcer.log) if enforcer is not None else None

    def log_refusal(self, message: str, round: int, reason: str) -> None:
        """Log a request that could not be used."""
        if self._enforcer is not None:
            self._enforcer.log_refusal(message, round, reason)

    def open_run(self, folder: Path, settings: bytes) -> Callable[[Request], Reply]:
        """How the silo answers in the run in ``folder``; raises `InvalidRequest` if the settings cannot be used."""
        torch.set_num_threads(self._threads)
        federation = own_settings(settings, self._kit.name, self._sources, self._plugins)
        check_leaf(federation, self._kit.name)
        enforcer = self._enforcer
        received = received_settings(settings)
        context, copy = None, str(self._model or "")
        if enforcer is not None:
            context = enforcer.admit(received, folder, self._plugins, copy)
            copy = copy or enforcer.approved_model(received, folder, self._plugins)
        federation = with_own_base(federation, folder, copy)
        runtime = Runtime(federation, folder, KitSigner(self._kit, folder, settings), device.choose())
        if seeded := seeded_noise(federation):  # once the plug-ins are loaded: methods may come from them
            raise InvalidRequest(f"the noise of {seeded[0]} comes from the seed ('seeded: true'), for simulations only")
        host = SiloHost(runtime)
        answer = host.silo(self._kit.name).answer
        if enforcer is None or context is None:
            return host.receiving(self._kit.name, answer)
        checks = host.checks(self._kit.name, folder, enforcer.log.file.parent)
        guarded = enforcer.guard(answer, runtime, context, checks)
        approved = enforcer.while_approved(guarded, received, folder, self._plugins)
        return host.receiving(self._kit.name, approved)


@dataclass(frozen=True)
class SiloSetup:
    """What a silo's service is made of, as plain values: another process can make the same one.

    ``kit`` and ``home`` are folders; ``policy``: the policy file; the rest are arguments of `SiloService`.
    """

    kit: Path
    home: Path
    sources: tuple[Source, ...]
    plugins: tuple[str, ...]
    policy: Path | None = None
    threads: int = 1
    model: Path | None = None

    def service(self) -> SiloService:
        """The service, whose audit log is not verified: the agent did that when it started."""
        kit = Kit(self.kit, self.home)
        log = AuditLog(self.home / AUDIT_LOG, kit.name)
        return self.service_with(kit, PolicyEnforcer(kit, self.policy or kit.folder / POLICY_FILE, log))

    def service_with(self, kit: Kit, enforcer: PolicyEnforcer) -> SiloService:
        """The service with an enforcer that was made before."""
        return SiloService(kit, self.sources, self.plugins, enforcer, self.threads, self.model)


def with_own_base(federation: Federation, folder: Path, copy: str) -> Federation:
    """The settings with the node's own ``copy`` of a base that does not travel, if it is the one of the start.

    Raises `InvalidRequest` if there is no copy, or if it is another one; the reason stays in the node's log.
    """
    start = folder / "start"
    if not federation.model.keeps_base or not start.exists():
        return federation
    if not copy:
        raise InvalidRequest(NO_BASE, f"{NO_BASE}: give its copy of '{federation.model.path}' with --model FOLDER")
    model = federation.model.model_copy(update={"path": copy, "revision": None})
    try:
        check_base(start, model)
    except ConfigError as error:
        raise InvalidRequest(OTHER_BASE, str(error)) from None
    return federation.model_copy(update={"model": model})


def check_leaf(federation: Federation, own: str) -> None:
    """Raise `InvalidRequest` if the settings make a region of a silo: what a region trains on its own is not masked."""
    if dict(walk(federation.silos))[own].silos:
        raise InvalidRequest("the settings have nodes below this silo, whose kit is not that of a region")


def received_settings(settings: bytes) -> Federation:
    """The federation's settings as the coordinator sent them; raises `InvalidRequest` if they are invalid."""
    try:
        return from_coordinator(settings)
    except ConfigError as error:
        raise InvalidRequest(str(error)) from None


def own_settings(settings: bytes, own: str, sources: tuple[Source, ...], plugins: tuple[str, ...]) -> Federation:
    """The federation's settings as the coordinator sent them, with the node's own data and plugins.

    Raises `InvalidRequest` if the settings name files or programs, which only their owner may.
    """
    received = received_settings(settings)
    if not built_in(received.data.deidentify):
        raise InvalidRequest("the settings name a program for de-identification, and only the silo may name programs")
    nodes = dict(walk(received.silos))
    if own not in nodes:
        raise InvalidRequest(f"the settings have no node '{own}'")
    if any(node.mixture or node.model is not None for node in nodes.values()):
        raise InvalidRequest("the settings name data or models of a member, and only that member may name them")

    def with_own_data(node: Node, name: str) -> Node:
        """The node and all nodes below it: ``own`` has its sources, other nodes with data a placeholder."""
        below = {n: with_own_data(child, n) for n, child in node.silos.items()}
        held = sources if name == own else NO_SOURCES if node.sources else ()
        return node.model_copy(update={"silos": below, "sources": held, "policy": None})

    silos = {name: with_own_data(node, name) for name, node in received.silos.items()}
    return received.model_copy(update={"silos": silos, "plugins": plugins})
