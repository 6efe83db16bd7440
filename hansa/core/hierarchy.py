"""One round on a tree where every node has a model of its own: WorldLM's Algorithm 1, line by line.

A leaf answers `Fit` from its data (`fit_leaf`). A `Region`, an inner node, answers it by training on data of its own,
if it has any, and asking its children to do the same; the root does so round after round. How models meet is the
method's ``tree`` slot: methods/worldlm.py has the paper's equations, its rivals fill the slot differently.

    1 WorldLMFit   fit_leaf, Region.fit           8 recurse              Fit requests over the link
    2 AggParent    agg_parent                  9–11 move the backbone    aggregate and server slots
    4 ClientOpt    train.py, by the silo      12–14 key layers meet      tree.meet
    6 RouteResiduals  tree.route                 15 PartResiduals        tree.part

What a node keeps from one `Fit` to the next (its model, its momentum, its children's key layers) lies in its memory
folder, as a silo's state does, so that a run continues after a crash.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hansa.client.state import StateStore
from hansa.config.federation import Federation
from hansa.config.nodes import ROOT
from hansa.config.tree import protected
from hansa.core.link import Answer, Link
from hansa.core.messages import Evaluate, Failure, Fit, NodeId, Reply, Request, Scores, Train, Update, nothing
from hansa.core.method import Hierarchy, Layers, Method, Residual, Weights
from hansa.core.participation import BufferedRegions, Child, Participation, ServerState, choose, together, until
from hansa.core.round import Record, admit, astray, opened, summed, too_few
from hansa.core.schedules import schedule_factor
from hansa.core.tensors import Layout, Tensors, is_finite
from hansa.methods.fedbuff import VERSION, keep_versions

if TYPE_CHECKING:
    from hansa.client.silo import Silo

IN_TIME = 0.9  # of the time a parent gives: the rest is for what is left to do when the children have answered
AT_ONCE = 1e-3  # seconds: no time is left, and 0 would say that there is no deadline
MODEL, PARENT, SERVER, KEY, RESIDUAL = "tree.model", "tree.parent", "server.", "key.", "residual."


@dataclass(frozen=True)
class KeyLayers:
    """Which tensors of a model form its key layers; the others are the backbone."""

    layout: Layout
    layers: Mapping[str, tuple[str, ...]]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for names in self.layers.values() for name in names)

    @cached_property
    def backbone(self) -> Layout:
        inside = set(self.names)
        return self.layout.only([name for name in self.layout.names if name not in inside])

    @cached_property
    def flat(self) -> Layout:
        """Key layers as one vector each."""
        spans = self.layout.spans
        sizes = [sum(spans[n].stop - spans[n].start for n in names) for names in self.layers.values()]
        return Layout(tuple(self.layers), tuple((size,) for size in sizes))

    def read(self, model: Tensors) -> dict[str, Tensor]:
        spans = model.layout.spans
        return {layer: torch.cat([model.flat[spans[n]] for n in names]) for layer, names in self.layers.items()}

    def write(self, model: Tensors, layers: Layers) -> None:
        for layer, names in self.layers.items():
            spans = [model.layout.spans[n] for n in names]
            parts = torch.split_with_sizes(layers[layer], [span.stop - span.start for span in spans])
            for span, part in zip(spans, parts, strict=True):
                model.flat[span].copy_(part)


# ── residuals on their way ────────────────────────────────────────────────────────────────────────────────────────


def pack(residuals: Sequence[Residual]) -> Tensors:
    return Tensors.of({f"{i}|{r.layer}|{r.origin}": r.values for i, r in enumerate(residuals)})


def unpack(packed: Tensors, keys: KeyLayers) -> tuple[list[Residual], str]:
    """The residuals that fit the receiver's model, and why others do not."""
    found, reason = [], ""
    for name, values in packed.named().items():
        _, layer, origin = (*name.split("|"), "", "")[:3]
        if layer not in keys.layers:
            reason = f"a residual of {origin or 'somebody'} is for layer '{layer}', which is not a key layer here"
        elif tuple(values.shape) != keys.flat.shape(layer) or not is_finite(values):
            reason = f"a residual of {origin} for {layer} does not fit the layer, or is not finite"
        else:
            found.append(Residual(layer, origin, values.clone()))
    return found, reason


# ── line 2 ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Loaded:
    """A node's model after AggParent, whom it listened to, and what it would not listen to."""

    model: Tensors
    weights: Weights
    residuals: list[Residual]
    refused: str


def agg_parent(
    name: NodeId,
    tree: Hierarchy,
    keys: KeyLayers,
    memory: Mapping[str, Tensor],
    start: Callable[[], Tensors],
    request: Fit,
    leaf: bool,
) -> Loaded:
    """The parent's backbone, and one's own key layers after attention to the parent's and, at a leaf, to residuals.
    ``start``: what it begins from, which may have to be read from a folder of its own."""
    residuals, refused = unpack(request.residuals, keys)
    before = Tensors(keys.layout, memory[MODEL]) if MODEL in memory else start()
    model, own = before.copy(), keys.read(before)
    model.write(request.model)
    if not tree.keys_travel:
        return Loaded(model, {}, [], refused)
    heard = keys.read(request.model)
    base = own  # of those who compare layers as they are, nobody looks at it
    if tree.compares_moves:
        base = Tensors(keys.flat, memory[PARENT]).named() if PARENT in memory else keys.read(start())
    others: dict[str, Layers] = {request.parent: heard}
    for number, residual in enumerate(residuals if leaf else ()):
        others[f"{residual.origin} (residual {number + 1})"] = {residual.layer: residual.values}
    new, weights = tree.adopt(own, others, base)
    keys.write(model, new)
    named = {layer: {who or name: share for who, share in shares.items()} for layer, shares in weights.items()}
    return Loaded(model, named, residuals, refused)


def kept(keys: KeyLayers, tree: Hierarchy, model: Tensors, request: Fit) -> dict[str, Tensor]:
    parent = {PARENT: Tensors.of(keys.read(request.model)).flat} if tree.compares_moves else {}
    return {MODEL: model.flat} | parent


# ── a leaf ────────────────────────────────────────────────────────────────────────────────────────────────────────


def fit_leaf(silo: "Silo", request: Fit) -> Reply:
    """Lines 2, 4 and 16: a leaf has nobody to ask."""
    tree, keys = silo.method.tree, silo.runtime.keys
    if tree is None:
        return Failure("its method does not work on trees")
    loaded = agg_parent(
        silo.name,
        tree,
        keys,
        silo.memory.recall(request.round),
        lambda: silo.runtime.start_of(silo.name),
        request,
        True,
    )
    training = Train(request.round, loaded.model, request.durable, request.begin, request.total)
    reply = silo.train(training, request.model, lambda state: kept(keys, tree, state, request))
    if not isinstance(reply, Update):
        return reply
    refused = {silo.name: loaded.refused} if loaded.refused else {}
    # Whom it listens to follows from its own layers, which no noise covers: a private leaf tells nobody.
    private = silo.name in protected(silo.runtime.federation)
    told = {} if private or not loaded.weights else {f"down {silo.name}": loaded.weights}
    return replace(reply, attention=told, refused=refused)


# ── an inner node ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Turn:
    """One round t of one node: its number there, at which of all sequential steps it begins, and when the parent goes
    on without it."""

    number: int
    durable: int
    begin: int
    total: int
    end: float | None = None

    def until(self, participation: Participation) -> float | None:
        """The node's own deadline or its parent's, whichever comes first."""
        given = [at for at in (until(participation), self.end) if at is not None]
        return min(given, default=None)


@dataclass(frozen=True)
class Region:
    """An inner node of a tree, or its root: it has a model of its own, children, and perhaps data of its own."""

    name: NodeId
    members: Mapping[NodeId, Child]
    link: Link  # to the children, and, under the region's own name, to whoever trains on its own data
    method: Method
    settings: Federation
    rounds: int  # T_q
    keys: KeyLayers
    start: Tensors
    memory: StateStore
    own: Child | None = None
    mixture: bool = False

    @property
    def tree(self) -> Hierarchy:
        assert self.method.tree is not None
        return self.method.tree

    @property
    def steps(self) -> int:
        """Sequential steps of one round: children work at the same time."""
        own, below = self.own.steps if self.own else 0, max(member.steps for member in self.members.values())
        return own + below if self.tree.order == "sequential" else max(own, below)

    def answer(self, request: Request) -> Reply:
        match request:
            case Fit():
                return self.fit(request)
            case Evaluate():
                return self.evaluate(request)
            case _:
                return Failure(f"region '{self.name}' does not answer a {type(request).__name__} request")

    def fit(self, request: Fit) -> Reply:
        memory = self.memory.recall(request.round)
        loaded = agg_parent(self.name, self.tree, self.keys, memory, lambda: self.start, request, False)  # 2
        moving = self._revive(memory, loaded.model)
        residuals, upwards, records = loaded.residuals, list[Residual](), list[Record]()
        end = monotonic() + IN_TIME * request.within if request.within else None
        for t in range(self.rounds):  # 3
            if records and end is not None and monotonic() > end:
                break  # what was done so far is worth more than nothing
            number = (request.round - 1) * self.rounds + t + 1
            turn = Turn(number, request.durable * self.rounds, request.begin + t * self.steps, request.total, end)
            record, up = self.round(moving, residuals, turn)
            if record.failed:
                return Failure(f"region '{self.name}': {record.failed}")
            residuals, upwards = [], upwards + up  # each is routed once
            records.append(record)
        state = {name: tensors.flat for name, tensors in moving.state.items()}
        self.memory.keep(request.round, kept(self.keys, self.tree, moving.model, request) | state, request.durable)
        return self._reply(request, moving.model, records, upwards, loaded)  # 16

    def round(self, moving: ServerState, residuals: Sequence[Residual], turn: Turn) -> tuple[Record, list[Residual]]:
        """Lines 4 to 15: one round. If too few children answer, nothing has moved and the record says so."""
        began, number, keys, settings = perf_counter(), turn.number, self.keys, self.settings
        model, base = moving.model.copy(), keys.read(moving.model)
        before = moving.clock, moving.flights, dict(moving.state)
        trained = self._client_opt(model, turn)  # 4
        sent = self._cohort(moving, model, number)
        record = Record(number, list(sent))
        routed = self._route(moving, list(sent), residuals, base)  # 6
        deadline = turn.until(settings.participation)
        answers = self.link.ask(self._asks(sent, model, routed, turn, deadline), deadline)  # 7, 8
        if self.tree.filter is not None:
            answers = (replace(answer, reply=opened(answer.reply, keys.layout)) for answer in answers)
            answers = self.tree.filter.sift(answers, self.name, self.tree.order == "parallel", keys.names)
        heard = Heard(self, {**sent, self.name: Sent(model)}, record)
        gradient = self.method.aggregate.combine(keys.backbone, heard.updates(answers))  # 9, 10
        record.seconds["work"] = perf_counter() - began
        record.failed = too_few(record, settings.participation) or astray(record, gradient)
        if record.failed:
            moving.clock, moving.flights, moving.state = before
            return record, []
        began = perf_counter()
        self._note_own(record, trained)
        self._server_opt(moving, model, gradient, number)  # 11
        members = {self.name: keys.read(model)} | heard.keys  # 12, 13; beside its children, its own was trained too
        new, weights = self.tree.meet(self.name, members, base)  # 14
        keys.write(model, new)
        if weights:
            record.attention[f"up {self.name}"] = weights
        children = {name: layers for name, layers in heard.keys.items() if name != self.name}
        upwards = self.tree.part(new, children, base) + heard.residuals  # 15
        for name, layers in children.items():
            moving.state[f"{KEY}{name}"] = Tensors.of(layers)
        moving.model, moving.round = model, number
        record.clock = moving.clock
        record.seconds["move"] = perf_counter() - began
        return record, upwards

    def root_round(self, moving: ServerState, durable: int) -> Record:
        """The root's round: what its children did not want goes down again in the next one."""
        waiting, _ = unpack(self._waiting(moving), self.keys)
        turn = Turn(moving.round + 1, durable, moving.round * self.steps, self.settings.rounds * self.steps)
        record, upwards = self.round(moving, waiting, turn)
        if not record.failed:
            for name in [n for n in moving.state if n.startswith(RESIDUAL)]:
                del moving.state[name]
            for name, values in pack(upwards).named().items():
                moving.state[f"{RESIDUAL}{name}"] = Tensors(Layout((name,), (tuple(values.shape),)), values.clone())
        return record

    def begin(self) -> ServerState:
        """Where the root stands before its first round."""
        return self._revive({}, self.start.copy())

    def evaluate(self, request: Evaluate) -> Reply:
        """Children's scores, and those on data of its own; a mixture holds nothing that its children do not."""
        below = replace(request, round=request.round * self.rounds)
        asks: dict[NodeId, Request] = dict.fromkeys(self.members, below)
        if self.own and request.by_node:
            asks[self.name] = replace(below, model=self.model(request.round))
        elif self.own and not self.mixture:
            asks[self.name] = below
        replies = [answer.reply for answer in self.link.ask(asks, until(self.settings.participation))]
        given = [reply for reply in replies if isinstance(reply, Scores)]
        if not given:
            reasons = [reply.reason for reply in replies if isinstance(reply, Failure)]
            return Failure(f"region '{self.name}': {reasons[0] if reasons else 'nobody sent scores'}")
        return sum(given[1:], given[0])

    def model(self, round: int) -> Tensors:
        """The node's own model after a round of its parent."""
        memory = self.memory.recall(round + 1)
        return Tensors(self.keys.layout, memory[MODEL]) if MODEL in memory else self.start

    # ── the lines of a round ──────────────────────────────────────────────────────────────────────────────────────

    def _client_opt(self, model: Tensors, turn: Turn) -> Update | Failure | None:
        """Train on data of its own, in place; without any, or where that fails, the model stays."""
        if self.own is None or self.tree.order == "parallel":
            return None
        probe = Record(turn.number, [self.name])
        for answer in self.link.ask({self.name: self._own_work(model, turn)}, turn.end):
            update = admit(answer, model.layout, probe)
            if update is not None:  # while the link still holds its tensors
                model.flat.sub_(update.gradient.flat)
        return probe.updates.get(self.name) or Failure(probe.lost[self.name])

    def _own_work(self, model: Tensors, turn: Turn) -> Train:
        return Train(turn.number, model, turn.durable, turn.begin, turn.total)

    def _note_own(self, record: Record, trained: Update | Failure | None) -> None:
        if isinstance(trained, Update):
            record.updates[self.name] = trained
        elif isinstance(trained, Failure):
            record.lost[self.name] = f"its own training: {trained.reason}"

    def _cohort(self, moving: ServerState, model: Tensors, number: int) -> dict[NodeId, "Sent"]:
        """Who takes part, and from which model: this one, or an older one where nobody waits for all."""
        settings, pace = self.settings, self.method.participation
        if isinstance(participation, BufferedRegions) and self.name == ROOT:
            arrived = participation.land(self.members, settings, moving)
            keep_versions(moving, arrived)
            return {f.node: Sent(moving.state[f"{VERSION}{f.version}"], moving.round - f.version) for f in arrived}
        cohort = choose(self.members, settings.participation, settings.seed, number, self.name)
        moving.clock += together(self.members, cohort, number, settings)
        return dict.fromkeys(cohort, Sent(model))

    def _route(
        self, moving: ServerState, cohort: Sequence[NodeId], residuals: Sequence[Residual], base: Layers
    ) -> dict[NodeId, list[Residual]]:
        """By what the children's key layers were when they last came; before that, they have their parent's."""
        known = {name: moving.state.get(f"{KEY}{name}") for name in cohort}
        children = {name: tensors.named() if tensors is not None else base for name, tensors in known.items()}
        return self.tree.route(residuals, children, base) if residuals else {}

    def _asks(
        self,
        sent: Mapping[NodeId, "Sent"],
        model: Tensors,
        routed: Mapping[NodeId, Sequence[Residual]],
        turn: Turn,
        deadline: float | None,
    ) -> dict[NodeId, Request]:
        sequential = self.tree.order == "sequential"
        begin = turn.begin + (self.own.steps if self.own and sequential else 0)
        within = 0.0 if deadline is None else max(AT_ONCE, deadline - monotonic())
        given = self._travelling(model)
        plain = Fit(turn.number, self.name, given, nothing(), turn.durable, begin, turn.total, within)
        asks: dict[NodeId, Request] = {}
        for node, theirs in sent.items():  # whoever gets the same is asked with the same request: it is written once
            alike = theirs.model is model and node not in routed
            given = self._travelling(theirs.model)
            asks[node] = plain if alike else replace(plain, model=given, residuals=pack(routed.get(node, ())))
        if self.own and (not sequential or self.tree.filter is not None):
            asks[self.name] = replace(self._own_work(model, turn), probe=sequential)
        return asks

    def _travelling(self, model: Tensors) -> Tensors:
        return model if self.tree.keys_travel else model.only(self.keys.backbone.names)

    def _server_opt(self, moving: ServerState, model: Tensors, gradient: Tensors, number: int) -> None:
        state = {n.removeprefix(SERVER): t for n, t in moving.state.items() if n.startswith(SERVER)}
        backbone = model.only(self.keys.backbone.names)
        server = self.settings.server
        rate = schedule_factor(server.schedule, number, self.settings.rounds) if server else 1.0
        self.method.server.step(backbone, gradient, state, number, rate)
        model.write(backbone)

    # ── what a region remembers ───────────────────────────────────────────────────────────────────────────────────

    def _revive(self, memory: Mapping[str, Tensor], model: Tensors) -> ServerState:
        fresh = self.method.server.begin(self.keys.backbone)
        state = {f"{SERVER}{n}": t for n, t in fresh.items()}
        for name, flat in memory.items():
            if name.startswith((SERVER, KEY)):
                layout = self.keys.backbone if name.startswith(SERVER) else self.keys.flat
                state[name] = Tensors(layout, flat)
        return ServerState(model, state)

    def _waiting(self, moving: ServerState) -> Tensors:
        waiting = {n.removeprefix(RESIDUAL): t.flat for n, t in moving.state.items() if n.startswith(RESIDUAL)}
        return Tensors.of(waiting)

    def _reply(
        self, request: Fit, model: Tensors, records: list[Record], upwards: list[Residual], loaded: Loaded
    ) -> Update:
        given, sent = [u for record in records for u in record.updates.values()], request.model.layout
        attention = {f"down {self.name}": loaded.weights} if loaded.weights else {}
        refused = {self.name: loaded.refused} if loaded.refused else {}
        lost: dict[str, str] = {}
        for record in records:
            attention |= record.attention
            refused |= record.refused
            lost |= record.lost
        for update in given:
            lost |= update.lost
        return Update(
            gradient=Tensors(sent, request.model.flat - model.only(sent.names).flat),
            samples=sum(u.samples for u in records[-1].updates.values()),
            seen=sum(u.seen for u in given),
            steps=sum(u.steps for u in given),
            loss=sum(u.loss * u.samples for u in given) / max(1, sum(u.samples for u in given)),
            seconds=sum(u.seconds for u in given),
            lost=lost,
            sent=summed(*(record.bytes("sent", self.name) for record in records)),
            received=summed(*(record.bytes("received", self.name) for record in records)),
            residuals=pack(upwards),
            attention=attention,
            refused=refused,
        )


@dataclass(frozen=True)
class Sent:
    """What a child works from, and how many versions ago that was the newest."""

    model: Tensors
    stale: int = 0


@dataclass
class Heard:
    """What children send in one round: backbones are handed on to the aggregate, key layers and residuals kept."""

    region: Region
    sent: Mapping[NodeId, Sent]
    record: Record
    keys: dict[NodeId, dict[str, Tensor]] = field(default_factory=dict)
    residuals: list[Residual] = field(default_factory=list)

    def updates(self, answers: Iterator[Answer]) -> Iterator[tuple[Update, float]]:
        region, keys, record = self.region, self.region.keys, self.record
        for answer in answers:
            update = admit(answer, keys.layout, record, partial=not region.tree.keys_travel)
            if update is None:
                continue
            gradient = update.gradient
            if gradient.layout != keys.layout:  # what a child did not send has not moved
                gradient = Tensors.zeros(keys.layout)
                gradient.write(update.gradient)
            sent = self.sent[answer.node]
            began, moved = keys.read(sent.model), keys.read(gradient)
            theirs = {layer: began[layer].sub_(moved[layer]) for layer in began}
            self.keys[answer.node] = self._damped(theirs, sent.stale)
            found, reason = unpack(update.residuals, keys)
            self.residuals += [replace(r, origin=f"{answer.node}/{r.origin}") for r in found]
            record.attention |= update.attention
            record.refused |= update.refused | ({answer.node: reason} if reason else {})
            update = replace(update, gradient=gradient.only(keys.backbone.names), stale=sent.stale)
            yield update, region.method.weighting.weight(update)

    def _damped(self, theirs: dict[str, Tensor], stale: int) -> dict[str, Tensor]:
        """K_c ← K_q + s(τ)·(K_c − K_q): key layers that come late count less, as backbones do."""
        participation = self.region.method.participation
        if not stale or not isinstance(participation, BufferedRegions):
            return theirs
        share, here = (1 + stale) ** -participation.power, self.region.keys.read(self.sent[self.region.name].model)
        return {layer: torch.lerp(here[layer], values, share) for layer, values in theirs.items()}
