"""`hansa serve`: the coordinator of a federation between organisations, and the regions of a tree.

The coordinator runs the same rounds as `hansa run`, over a network link; its members are the nodes directly below it.
A region is an agent towards its parent and a coordinator towards its own silos.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from hansa import methods
from hansa.checks import check_settings
from hansa.config import Checkpointing, Federation, Node, Source
from hansa.deploy.agent import Agent, Say
from hansa.deploy.bundle import pack
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.seat import seat
from hansa.errors import ConfigError, UserError
from hansa.links.nats import NatsLink
from hansa.messages import Card, Describe, NodeId, Reply, Request
from hansa.node import Federation as Inner
from hansa.pace import Member
from hansa.run import Outcome, Run, begin, describe
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.site import Site
from hansa.watch import Watcher


def serve(federation: Federation, kit: Kit, out: Path, nats: str | None, watcher: Watcher) -> Outcome:
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
    check_settings(federation)
    if methods.build(federation).tree is not None:
        raise ConfigError(
            f"method '{federation.method.name}' gives every node of a tree a model of its own, which works in "
            "'hansa run' only, not yet between organisations; use another method here"
        )
    torch.set_num_threads(1)
    members = _direct(federation)
    directory = RunDirectory.create(members, out, resume=(out / "federation.yaml").is_file())
    ledger = Ledger(directory.path)
    try:
        with seat(kit, directory.path / "seat", nats, watcher.say) as link:
            link.share_settings(public(federation).model_dump_json().encode())
            begin(members, directory, link, ledger, watcher)
            link.share_start(pack(directory.start, directory.path / "seat" / "start.bundle"))
            cards = describe(members, directory, link, ledger, watcher)
            return Run(members, directory, link, cards, ledger, watcher).go()
    finally:
        ledger.close()


def _direct(federation: Federation) -> Federation:
    """The federation as its root sees it: regions answer as silos do. Every round is a checkpoint: when it is on disk,
    what silos sent for it can go."""
    silos = {n: node if node.sources else Node(sources=(Source(train=""),)) for n, node in federation.silos.items()}
    every = Checkpointing(every=1, keep=federation.checkpoint.keep)
    return federation.model_copy(update={"silos": silos, "checkpoint": every})


def public(federation: Federation) -> Federation:
    """What every member is told: the whole tree, without anybody's paths and without code."""

    def blank(node: Node) -> Node:
        sources = tuple(s.model_copy(update={"train": "", "valid": None, "test": None}) for s in node.sources)
        return node.model_copy(update={"sources": sources, "silos": {n: blank(c) for n, c in node.silos.items()}})

    silos = {name: blank(node) for name, node in federation.silos.items()}
    return federation.model_copy(update={"silos": silos, "uses": ()})


class Region:
    """What a region does when its parent asks: it asks its own silos. See `hansa.node.Federation`."""

    def __init__(self, kit: Kit, link: NatsLink, seat: Path, uses: tuple[str, ...]) -> None:
        self._kit, self._link, self._seat, self._uses = kit, link, seat, uses

    def open(self, folder: Path, settings: bytes) -> Callable[[Request], Reply]:
        federation = Federation.model_validate_json(settings).model_copy(update={"uses": self._uses})
        self._link.share_settings(settings)
        if (folder / "start").exists():
            self._link.share_start(pack(folder / "start", self._seat / "start.bundle"))
        method = Site(federation, folder).method
        members: dict[NodeId, Member] = {}

        def answer(request: Request) -> Reply:
            names = dict.fromkeys(self._kit.card.children, Member(0, 0))
            inner = Inner(self._kit.name, names, self._link, method, federation, self._kit.card.rounds)
            if isinstance(request, Describe):
                return self._described(inner.answer(request))
            if not members:
                members.update(self._members(self._link))
            return replace(inner, members=members).answer(request)

        return answer

    def _described(self, reply: Reply) -> Reply:
        """As many samples per round of the root as the region's own rounds make of them."""
        rounds = self._kit.card.rounds
        return replace(reply, per_round=rounds * reply.per_round) if isinstance(reply, Card) else reply

    def _members(self, link: NatsLink) -> dict[NodeId, Member]:
        answers = link.ask(dict.fromkeys(self._kit.card.children, Describe()), None)
        cards = {answer.node: answer.reply for answer in answers}
        return {n: Member(c.samples(), c.per_round) if isinstance(c, Card) else Member(0, 0) for n, c in cards.items()}


def serve_region(
    kit: Kit, out: Path, nats: str | None, uses: tuple[str, ...], say: Say, ready: Callable[[Agent], None]
) -> None:
    """A region, until it is stopped: ``ready`` is handed the agent, to stop it by."""
    with seat(kit, out / "seat", nats, say) as link:
        agent = Agent(kit, out / "home", Region(kit, link, out / "seat", uses), say)
        ready(agent)
        agent.run()
