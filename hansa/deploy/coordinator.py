"""`hansa serve`: the coordinator of a federation between organisations, and the regions of a tree.

The coordinator runs the same rounds as `hansa run`, over a network link; its members are the nodes directly below it.
A region is an agent towards its parent and a coordinator towards its own silos.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.checks import check_settings
from hansa.config.federation import Federation
from hansa.config.nodes import ROOT, Node, walk
from hansa.config.sections import Checkpointing
from hansa.core import device
from hansa.core.errors import ConfigError, UserError
from hansa.core.inner_node import merge
from hansa.core.link import Link
from hansa.core.messages import CollectVocabulary, DataCard, DescribeData, Failure, NodeId, Reply, Request
from hansa.core.participation import Child
from hansa.data.source import Source
from hansa.deploy.agent import Agent, Say
from hansa.deploy.bundle import pack
from hansa.deploy.join import BLANK, own_settings
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.address import Proxy
from hansa.deploy.network.deadline_link import DeadlineLink
from hansa.deploy.network.link import NatsLink
from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.deploy.server_session import server_session
from hansa.deploy.signatures import KitSigner, VerifiedLink
from hansa.links.tree import TreeLink
from hansa.privacy.policy.audit_log import AUDIT_LOG, AuditLog
from hansa.privacy.policy.audited_link import AuditedLink, AuditedNode
from hansa.runs.callbacks import RunCallbacks
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.run import Outcome, Run
from hansa.runs.start import begin, describe
from hansa.runs.topology import build_region


def serve(federation: Federation, kit: Kit, out: Path, nats: str | None, callbacks: RunCallbacks) -> Outcome:
    """Run a federation file to its end among the members of the kit; started again, it continues."""
    if kit.card.kind != COORDINATOR:
        raise UserError(f"{kit.folder} is the kit of {kit.card.kind} '{kit.name}'; the root needs the coordinator's")
    if federation.kind != "federated":
        raise ConfigError(f"kind is '{federation.kind}': baselines need all data in one place; use 'hansa run'")
    if federation.name != kit.card.federation or set(federation.silos) != set(kit.card.children):
        raise ConfigError(
            f"the kit is for federation '{kit.card.federation}' with {sorted(kit.card.children)}, the file has "
            f"'{federation.name}' with {sorted(federation.silos)}; create kits for this file"
        )
    mixed = [name for name, node in walk(federation.silos) if node.mixture]
    if mixed or (federation.root is not None and federation.root.mixture):
        raise ConfigError(f"'{(mixed or [ROOT])[0]}' holds the mixture of its silos' data, which stays with them")
    aligned = [name for name, node in walk(federation.silos) for source in node.sources if source.aligned is not None]
    if aligned:
        raise ConfigError(
            f"'{aligned[0]}' has translations in two aligned files, and 'hansa join --data' takes one for each source: "
            "put both sides into one file (JSON Lines, a table, TMX)"
        )
    brought = [name for name, node in walk(federation.silos) if node.model is not None]
    if brought:
        raise ConfigError(f"'{brought[0]}' names a model of its own, and no member opens a folder that another names")
    if federation.secure_aggregation is not None and federation.secure_aggregation.threshold <= 0.5:
        raise ConfigError(
            f"secure_aggregation.threshold is {federation.secure_aggregation.threshold:g}: between organisations more "
            "than half of the other silos must be needed to reconstruct a secret, or two lists of silos would "
            "reconstruct both secrets of one; set it above 0.5"
        )
    check_settings(federation)
    torch.set_num_threads(1)
    members = _direct(federation)
    directory = RunDirectory.create(members, out, resume=(out / "federation.yaml").is_file())
    ledger = Ledger(directory.path)
    host = SiloHost(Runtime(members, directory.path))
    try:
        with server_session(kit, directory.path / "seat", nats, callbacks.say) as link:
            told = public(federation).model_dump_json().encode()
            link.share_settings(told)
            own = {ROOT: lambda request: host.silo(ROOT).answer(request)} if federation.root is not None else {}
            vouched = VerifiedLink(link, KitSigner(kit, directory.path, told, link.run))
            seen: Link = AuditedLink(vouched, AuditLog(directory.path / AUDIT_LOG, kit.name))
            everybody: Link = TreeLink(seen, own) if own else seen
            begin(members, directory, everybody, ledger, callbacks)
            link.share_start(pack(directory.start, directory.path / "seat" / "start.bundle"))
            cards = describe(members, directory, everybody, ledger, callbacks)
            members = members.model_copy(update={"silos": {n: s for n, s in members.silos.items() if n in cards}})
            return Run(members, directory, everybody, cards, ledger, callbacks).go()
    finally:
        ledger.close()


def _direct(federation: Federation) -> Federation:
    """The federation as its root sees it: regions answer as silos do. Every round is a checkpoint: when it is on disk,
    what silos sent for it can go."""
    silos = {
        n: node.model_copy(update={"silos": {}, "rounds": 1, "sources": BLANK, "policy": None})
        for n, node in federation.silos.items()
    }
    every = Checkpointing(every=1, keep=federation.checkpoint.keep)
    return federation.model_copy(update={"silos": silos, "checkpoint": every})


def public(federation: Federation) -> Federation:
    """What every member is told: the whole tree, without anybody's paths and without code."""

    def blank(node: Node) -> Node:
        sources = tuple(s.model_copy(update={"train": "", "valid": None, "test": None}) for s in node.sources)
        below = {name: blank(child) for name, child in node.silos.items()}
        return node.model_copy(update={"sources": sources, "silos": below, "policy": None})

    silos = {name: blank(node) for name, node in federation.silos.items()}
    root = federation.root and federation.root.model_copy(update={"sources": BLANK})
    return federation.model_copy(update={"silos": silos, "root": root, "plugins": ()})


class Region:
    """What a region does when its parent asks: it asks its own silos, and answers for all of them."""

    def __init__(
        self,
        kit: Kit,
        link: NatsLink,
        server_session: Path,
        own: tuple[Source, ...],
        plugins: tuple[str, ...],
        law: PolicyEnforcer | None = None,
    ) -> None:
        self._kit, self._link, self._seat, self._own, self._plugins, self._law = (
            kit,
            link,
            server_session,
            own,
            plugins,
            law,
        )
        self.due: Callable[[], float | None] = lambda: None  # when the parent waits no longer

    def refuse(self, message: str, round: int, reason: str) -> None:
        assert self._kit.card.parent is not None
        told = {"message": message, "round": round, "to": self._kit.card.parent.node}
        AuditLog(self._seat.parent / AUDIT_LOG, self._kit.name).add("refusal", **told, reason=reason)

    def open(self, folder: Path, settings: bytes) -> Callable[[Request], Reply]:
        name = self._kit.name
        runtime = Runtime(own_settings(settings, name, self._own, self._plugins), folder, device=device.choose())
        host = SiloHost(runtime)
        self._link.share_settings(settings)
        if (folder / "start").exists():
            self._link.share_start(pack(folder / "start", self._seat / "start.bundle"))
        log = AuditLog(self._seat.parent / AUDIT_LOG, name)
        vouched = VerifiedLink(self._link, KitSigner(self._kit, folder, settings, self._link.run))
        seen: Link = AuditedLink(DeadlineLink(vouched, self._kit.card.rounds, lambda: self.due()), log)
        link: Link = TreeLink(seen, {name: host.silo(name).answer}) if self._own else seen
        names = [*self._kit.card.children, *([name] if self._own else [])]
        grown: list[tuple[Callable[[Request], Reply], Child]] = []

        def answer(request: Request) -> Reply:
            if isinstance(request, CollectVocabulary):
                return _together(name, link, names, request)
            if not grown:
                cards = {a.node: a.reply for a in link.ask(dict.fromkeys(names, DescribeData()), None)}
                for node, card in cards.items():
                    if not isinstance(card, DataCard):
                        return Failure(
                            f"region '{name}': {node} {card.reason if isinstance(card, Failure) else 'is silent'}"
                        )
                grown.append(build_region(host, name, link, cards))  # type: ignore[arg-type]
            if isinstance(request, DescribeData):
                card, member = _together(name, link, names, request), grown[0][1]
                if not isinstance(card, DataCard):
                    return card
                return replace(card, per_round=member.work, inner=True, steps=member.steps)
            return grown[0][0](request)

        assert self._kit.card.parent is not None
        return self._law.over(answer, runtime) if self._law else AuditedNode(answer, log, self._kit.card.parent.node)


def _together(region: NodeId, link: Link, names: list[NodeId], request: Request) -> Reply:
    """The replies of all below as one, of which none may be missing."""
    replies = [answer.reply for answer in link.ask(dict.fromkeys(names, request), None)]
    lost = [reply.reason for reply in replies if isinstance(reply, Failure)]
    return Failure(f"region '{region}': {lost[0]}") if lost else merge(replies)


def serve_region(
    kit: Kit,
    out: Path,
    nats: str | None,
    own: tuple[Source, ...],
    plugins: tuple[str, ...],
    say: Say,
    ready: Callable[[Agent], None],
    law: PolicyEnforcer | None = None,
    proxy: Proxy | None = None,
    warn: Say | None = None,
) -> None:
    """A region, until it is stopped: ``ready`` is handed the agent, to stop it by."""
    with server_session(kit, out / "seat", nats, say) as link:
        region = Region(kit, link, out / "seat", own, plugins, law)
        agent = Agent(kit, out / "home", region, say, proxy, warn)
        region.due = lambda: agent.due
        ready(agent)
        agent.run()
