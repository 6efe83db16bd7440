"""START HERE: one federated round.

1 who takes part          a cohort, drawn from the seed, or whoever is done first: see pace.py
2 trade knowledge         methods that exchange something before training: see exchange.py
3 local work              every silo starts from the model and minimises its objective
4 what leaves a silo      the pseudo-gradient of the tensors in scope, or a part of it, or a code: see upload.py
5 where updates meet      a running sum, or each by each for robust rules, tensor by tensor; nonsense never gets in;
                          or under masks, where nobody sees more than the sum: see veil.py
6 move the model          the server optimiser takes the step
7 look                    evaluate, record, checkpoint: see run.py, which repeats this round
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from time import perf_counter
from typing import Literal

from hansa.config.federation import Federation
from hansa.core.downlink import NarrowLink
from hansa.core.encoding import EncodingError
from hansa.core.errors import printable
from hansa.core.exchange import ExchangeOutcome, Sizes, trade
from hansa.core.link import Answer, Link
from hansa.core.messages import Failure, NodeId, Reply, Train, Update, nothing
from hansa.core.method import Method
from hansa.core.participation import Asker, BufferedRegions, Child, Participation, ServerState
from hansa.core.schedules import schedule_factor
from hansa.core.tensors import Layout, Tensors, is_finite
from hansa.privacy.secure_aggregation.server import MaskingServer

HIGHEST = 1e4  # no loss of a model that learns anything: weights that follow from losses must stay numbers
LARGEST = 1e12  # no silo has more samples than this: a larger figure is a lie or a bug


@dataclass
class Record:
    """What happened in a round."""

    round: int
    cohort: list[NodeId]
    updates: dict[NodeId, Update] = field(default_factory=dict)  # without their tensors
    lost: dict[NodeId, str] = field(default_factory=dict)
    sent: dict[NodeId, int] = field(default_factory=dict)
    received: dict[NodeId, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    clock: float = 0.0  # virtual time at its end
    tensors: dict[NodeId, dict[str, None]] = field(default_factory=dict)  # that each sent
    failed: str = ""
    attention: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)  # on a tree: see `Update`
    refused: dict[NodeId, str] = field(default_factory=dict)
    traded: ExchangeOutcome = field(default_factory=ExchangeOutcome)  # in its exchange, if it had one

    def bytes(self, way: Literal["sent", "received"], own: NodeId) -> dict[NodeId, int]:
        """What went to, or came from, every node below; ``own`` work stays where it is."""
        here = {node: count for node, count in getattr(self, way).items() if node != own}
        return summed(here, *(getattr(update, way) for update in self.updates.values()))

    @property
    def loss(self) -> float:
        samples = sum(u.samples for u in self.updates.values())
        return sum(u.loss * u.samples for u in self.updates.values()) / max(1, samples)


def federated_round(
    name: NodeId,
    members: Mapping[NodeId, Child],
    link: Link,
    method: Method,
    settings: Federation,
    moving: ServerState,
    durable: int,
    sizes: Sizes | None = None,
) -> Record:
    """Run round ``moving.round + 1`` among ``members``. If too few answer, the model stays and the record says so."""
    number = moving.round + 1
    began = perf_counter()
    before = moving.clock, list(moving.flights), dict(moving.state)

    # 1 who takes part
    if method.upload.both:
        link = NarrowLink(link, moving.sent)
    asker = Asker(name, members, link, settings, durable)
    assert not isinstance(method.participation, BufferedRegions), "the children of a tree are asked to fit: see fit.py"
    cohort, ask = method.participation.gather(asker, moving)
    record = Record(number, cohort, clock=moving.clock)

    # 2 trade knowledge
    if method.exchange is not None:
        record.traded = trade(method.exchange, cohort, asker, moving, sizes)
        record.sent, record.received = dict(record.traded.sent), dict(record.traded.received)
        record.seconds["trade"] = perf_counter() - began
        began = perf_counter()

    # 3, 4 local work, what leaves a silo; 5 where updates meet
    veil = None
    if settings.secure_aggregation is not None:
        veil = MaskingServer.draw(asker, settings.secure_aggregation, method.weighting, record, moving.model)
    answers = ask(lambda node, plain: brief(node, plain, record.traded, veil))
    accepted = screen(answers, moving.model.layout, record, method.upload.selects, veil is not None)
    if veil is not None:
        gradient = veil.combine(moving.model.layout, accepted)
    else:
        gradient = method.aggregate.combine(moving.model.layout, ((u, method.weighting.weight(u)) for u in accepted))
    record.seconds["work"] = perf_counter() - began
    record.failed = record.failed or too_few(record, settings.participation) or astray(record, gradient)
    if record.failed:
        moving.clock, moving.flights, moving.state = before
        return record

    # 6 move the model
    began = perf_counter()
    rate = schedule_factor(settings.server.schedule, number, settings.rounds) if settings.server else 1.0
    with unmoved(moving, {name for names in record.tensors.values() for name in names}):
        method.server.step(moving.model, gradient, moving.state, number, rate)
    moving.round = number
    if method.upload.both:
        moving.sent = {n: s for n, s in moving.sent.items() if n not in record.lost}
        moving.sent |= {node: list(names) for node, names in record.tensors.items()}
    record.seconds["move"] = perf_counter() - began
    return record


def brief(node: NodeId, plain: Train, traded: ExchangeOutcome, veil: MaskingServer | None) -> Train | None:
    """What a member of the cohort is asked; None if it is not."""
    told = traded.brief(node, plain)
    return told if veil is None else veil.brief(node, told)


@contextmanager
def unmoved(moving: ServerState, sent: set[str]) -> Iterator[None]:
    """Tensors that nobody sent stay as they are, and so does what the server optimiser remembers of them: a zero in
    the pseudo-gradient would still let its momentum move them."""
    missing = [name for name in moving.model.layout.names if name not in sent]
    changing = [moving.model, *moving.state.values()] if missing else []
    before = [tensors.only(missing).copy() for tensors in changing]
    yield
    for tensors, old in zip(changing, before, strict=True):
        tensors.write(old)


def too_few(record: Record, participation: Participation) -> str:
    """Why the round does not count; empty if enough answered."""
    asked = len(set(record.cohort))
    needed = max(1, ceil(participation.quorum * asked))
    if len(record.updates) >= needed:
        return ""
    reasons = "; ".join(f"{node}: {reason}" for node, reason in record.lost.items())
    return f"round {record.round}: {len(record.updates)} of {asked} answered, {needed} needed ({reasons})"


def astray(record: Record, gradient: Tensors) -> str:
    """Why the model must not take this step; empty if it may. Updates were finite: how they were combined was not."""
    if is_finite(gradient.flat):
        return ""
    return f"round {record.round}: the combined update has values that are not finite (look at 'method', 'aggregate')"


def screen(
    answers: Iterator[Answer], layout: Layout, record: Record, partial: bool = False, masked: bool = False
) -> Iterator[Update]:
    """Let through updates that make sense, opened; note the others as lost, with a reason. ``partial``: tensors may be
    left out; ``masked``: they must be under masks."""
    for answer in answers:
        update = admit(answer, layout, record, partial, masked)
        if update is not None:
            yield update


def admit(answer: Answer, layout: Layout, record: Record, partial: bool = False, masked: bool = False) -> Update | None:
    """The update of an answer, if it makes sense."""
    record.sent[answer.node] = record.sent.get(answer.node, 0) + answer.sent
    record.received[answer.node] = record.received.get(answer.node, 0) + answer.received
    reply = opened(answer.reply, layout)
    reason = flaw(reply, layout, partial, masked)
    if reason:
        record.lost[answer.node] = reason
        return None
    assert isinstance(reply, Update)
    record.tensors.setdefault(answer.node, {}).update(dict.fromkeys(reply.gradient.layout.names))
    if layout.names and not reply.gradient.layout.names:
        record.refused[answer.node] = "no tensor is small enough for what 'upload' lets it send: raise upload.keep"
    _note(record, answer.node, reply)
    return reply


def opened(reply: Reply, layout: Layout) -> Reply:
    """An update as it was before it was coded."""
    if not isinstance(reply, Update) or reply.coded is None:
        return reply
    try:
        return replace(reply, gradient=reply.coded.open(layout), coded=None)
    except EncodingError as error:
        return Failure(str(error))


def _note(record: Record, node: NodeId, update: Update) -> None:
    """Remember an update without its tensors; of a silo that gave two, both."""
    noted = replace(update, gradient=nothing(), residuals=nothing())
    before = record.updates.get(node)
    if before is not None:
        both = {key: getattr(before, key) + getattr(noted, key) for key in ("seen", "steps", "seconds")}
        both |= {way: summed(getattr(before, way), getattr(noted, way)) for way in ("sent", "received")}
        noted = replace(noted, **both)
    record.updates[node] = noted


def summed(*counts: Mapping[str, int]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for key, count in one.items():
            total[key] = total.get(key, 0) + count
    return total


def flaw(reply: object, layout: Layout, partial: bool = False, masked: bool = False) -> str:
    """Why a reply must not enter the model; empty if it may."""
    if isinstance(reply, Failure):
        return reply.reason
    if not isinstance(reply, Update):
        return f"it sent a {type(reply).__name__} instead of an update"
    sent = reply.gradient.layout
    if sent != layout:
        known = dict(zip(layout.names, layout.shapes, strict=True))
        for name, shape in zip(sent.names, sent.shapes, strict=True):
            if known.get(name) != shape:
                return f"its update has {printable(name)} {list(shape)[:9]}, which the model does not have"
        missing = [name for name in layout.names if name not in sent.spans]
        if missing and not partial:
            return f"its update lacks {missing[0]}, and the federation's 'upload' leaves no tensors out"
    if not 0 < reply.samples <= LARGEST:
        return f"it claims {reply.samples} samples"
    if not abs(reply.loss) <= HIGHEST:  # nor is it NaN
        return f"its training loss is {reply.loss:g}"
    if reply.masked != masked:
        return (
            "its update is under a mask, and none was asked for" if reply.masked else "its update is not under a mask"
        )
    if not masked and not is_finite(reply.gradient.flat):
        return "its update has values that are not finite (NaN or Inf)"
    return ""
