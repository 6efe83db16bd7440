"""`hansa serve` with a region's kit: an agent towards the parent, a server towards the region's own children.

The region's rounds are those of an `InnerNode`, as in `hansa run`; this module adds the network link, the audit log and
the settings that the parent sends. Every run of the parent is a run of its own towards the region's children.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.asynchrony import region_rule
from hansa.config.nodes import walk
from hansa.config.shared import settings_digest
from hansa.core import device
from hansa.core.inner_node import gather, merge
from hansa.core.link import Link
from hansa.core.messages import CollectVocabulary, DataCard, DescribeData, Failure, Reply, Request
from hansa.core.participation import Child
from hansa.core.round import Server
from hansa.core.survey_messages import SurveyRequest
from hansa.data.source import Source
from hansa.deploy.agent import Agent, Log
from hansa.deploy.bundle import pack
from hansa.deploy.join import own_settings, received_settings, with_own_base
from hansa.deploy.kit import Kit
from hansa.deploy.network.address import Proxy
from hansa.deploy.network.attendance import absence
from hansa.deploy.network.blob_protocol import InvalidRequest
from hansa.deploy.network.deadline_link import DeadlineLink
from hansa.deploy.network.link import NatsLink
from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.deploy.public_certificate import PublicCertificate
from hansa.deploy.signatures import KitSigner, VerifiedLink
from hansa.deploy.standing import StandingServer, standing_server
from hansa.deploy.status import SERVER_FOLDER
from hansa.links.local import withheld_reason
from hansa.links.tree import TreeLink
from hansa.privacy.policy.audit_heads import Anchors
from hansa.privacy.policy.audit_log import AUDIT_LOG, AuditLog
from hansa.privacy.policy.audited_link import AuditedLink, AuditedNode
from hansa.privacy.policy.guard import RunContext
from hansa.runs.survey import relayed
from hansa.runs.topology import build_region, round_settings

MAX_OPEN_RUNS = 8  # links to the children that stay open


class RegionService:
    """Answers the parent's requests for all nodes of a region; implements `hansa.deploy.request_reader.NodeService`.

    ``server`` is the region's port; ``out`` is the region's run directory; ``sources`` is the region's own data, if it
    has any; ``enforcer`` its policy, if it has one; ``model`` its copy of a base that does not travel. ``deadline``
    returns when the parent stops waiting, on the monotonic clock. ``log`` receives problems.
    """

    def __init__(
        self,
        kit: Kit,
        server: StandingServer,
        out: Path,
        sources: tuple[Source, ...],
        plugins: tuple[str, ...],
        log: Log,
        enforcer: PolicyEnforcer | None = None,
        model: Path | None = None,
    ) -> None:
        self._kit, self._server, self._files, self._model = kit, server, out / SERVER_FOLDER, str(model or "")
        self._sources, self._plugins, self._enforcer = sources, plugins, enforcer
        self._log, self._say = AuditLog(out / AUDIT_LOG, kit.name), log
        self._links: dict[str, tuple[NatsLink, ExitStack]] = {}  # by the parent's run; the one used last is the last
        self.anchors = Anchors.beside(self._log)
        self.deadline: Callable[[], float | None] = lambda: None

    def log_refusal(self, message: str, round: int, reason: str) -> None:
        """Log a request that could not be used."""
        self._log.add("refusal", message=message, round=round, to=self._kit.parent.node, reason=reason)

    def open_run(self, folder: Path, settings: bytes) -> Callable[[Request], Reply]:
        """How the region answers in the run in ``folder``; raises `InvalidRequest` if the settings cannot be used."""
        federation = own_settings(settings, self._kit.name, self._sources, self._plugins)
        context = RunContext(folder.name, settings_digest(received_settings(settings)))
        if self._enforcer is not None:
            context = self._enforcer.admit(received_settings(settings), folder, self._plugins, self._model)
        federation = with_own_base(federation, folder, self._model)
        below = list(dict(walk(federation.silos))[self._kit.name].silos)
        if unknown := set(below) - set(self._kit.children):
            raise InvalidRequest(f"the settings have '{min(unknown)}', which is not a member below this region")
        files, network = self._files / folder.name, self._link(folder.name, below)
        runtime = Runtime(federation, folder, KitSigner(self._kit, folder, settings), device.choose())
        own = dict(walk(federation.silos))[self._kit.name].participation or federation.participation
        waits = region_rule(federation, dict(walk(federation.silos))[self._kit.name]).synchronous
        network.attendance.max_absence = absence(own, waits)
        network.share_settings(settings)
        if (folder / "start").exists():
            network.share_start(pack(folder / "start", files / "start.bundle"))
        verified = VerifiedLink(network, KitSigner(self._kit, folder, settings, network.run))
        bounded = DeadlineLink(verified, self._kit.info.rounds, lambda: self.deadline())
        region = RegionNode(SiloHost(runtime), self._kit, AuditedLink(bounded, self._log, context), bool(self._sources))
        if self._enforcer is not None:
            return self._enforcer.guard(region.answer, runtime, context)
        return AuditedNode(region.answer, self._log, self._kit.parent.node, context)

    def _link(self, run: str, children: Sequence[str]) -> NatsLink:
        """The link to the children in one run of the parent; the links of runs that asked long ago are closed."""
        link, stack = self._links.pop(run, (None, ExitStack()))
        if link is None:
            link = stack.enter_context(self._server.open_run(self._files / run, children, self._say))
            link.anchors = self.anchors
        self._links[run] = link, stack
        for old in list(self._links)[:-MAX_OPEN_RUNS]:
            self._links.pop(old)[1].close()
        link.serve(children)
        return link

    def close(self) -> None:
        """Close all links."""
        for _, stack in self._links.values():
            stack.close()
        self._links = {}


class RegionNode:
    """A region that becomes an `InnerNode` when the nodes below it have described their data.

    ``link`` reaches the children; ``holds_data``: the region has data of its own, which is asked under its own name.
    """

    def __init__(self, host: SiloHost, kit: Kit, link: Link, holds_data: bool) -> None:
        name, runtime = kit.name, host.runtime
        names = [*dict(walk(runtime.federation.silos))[name].silos, *([name] if holds_data else [])]
        self._host = host
        self._link = TreeLink(link, {name: host.silo(name).answer}, withheld_reason) if holds_data else link
        # Sizes of the children are not known yet, and requests before the first round do not need them.
        children = dict.fromkeys(names, Child(0, 0))
        self._below = Server(name, children, self._link, runtime.method_of(name), round_settings(runtime.federation))
        self._card: DataCard | None = None
        self._answer: Callable[[Request], Reply] | None = None

    def answer(self, request: Request) -> Reply:
        """The reply of the whole region; a `Failure` if a node below did not describe its data."""
        if isinstance(request, SurveyRequest):
            return relayed(self._below.name, self._link, list(self._below.children), request)
        if isinstance(request, CollectVocabulary):
            return gather(self._below.name, self._below, request)
        if self._answer is None or self._card is None:
            failure = self._build()
            if failure is not None:
                return failure
        assert self._answer is not None
        assert self._card is not None
        return self._card if isinstance(request, DescribeData) else self._answer(request)

    def _build(self) -> Failure | None:
        """Ask all nodes below to describe their data and build the inner node; return a failure if one cannot."""
        name = self._below.name
        answers = list(self._link.ask(dict.fromkeys(self._below.children, DescribeData()), None))
        cards = {answer.node: answer.reply for answer in answers if isinstance(answer.reply, DataCard)}
        for answer in answers:
            if isinstance(answer.reply, Failure):
                return Failure(f"region '{name}': {answer.node}: {answer.reply.reason}")
            if answer.node not in cards:
                return Failure(f"region '{name}': {answer.node} sent a {type(answer.reply).__name__}")
        self._answer, child = build_region(self._host, name, self._link, cards)
        merged = merge(list(cards.values()))
        assert isinstance(merged, DataCard)
        self._card = replace(merged, per_round=child.work, inner=True, steps=child.steps)
        return None


def serve_region(
    kit: Kit,
    out: Path,
    nats: str | None,
    sources: tuple[Source, ...],
    plugins: tuple[str, ...],
    log: Log,
    ready: Callable[[Agent], None],
    enforcer: PolicyEnforcer | None = None,
    proxy: Proxy | None = None,
    warn: Log | None = None,
    model: Path | None = None,
    trust: Path | None = None,
    listen: str | None = None,
    public: PublicCertificate | None = None,
) -> None:
    """Run a region until its agent is stopped; ``ready`` is called with the agent, by which it can be stopped.

    ``nats``, ``listen`` and ``public`` are those of `standing_server`.
    """
    with standing_server(kit, out / SERVER_FOLDER, nats, log, listen, public=public) as server:
        service = RegionService(kit, server, out, sources, plugins, log, enforcer, model)
        agent = Agent(kit, out / "home", service, log, proxy, warn, trust)
        service.deadline = lambda: agent.deadline
        ready(agent)
        agent.run()
        if not agent.busy:  # else the process ends, and the worker's links with it
            service.close()
