"""The time, bytes, memory, disk and broker load of a round with many silos, from measured constants.

A round of a parent with n children, each on a machine of its own:

    prepare    n·r + p                        r: processor seconds of the parent for a child's request and reply,
                                              p: for a round
    down       max(n·D/L, D/l, n·D·d/c)       D: bytes to a child; L, l: links of the parent and of a child
    work       D·d′ + s·t/v + U·u′            s samples of t seconds on this machine, v times as fast at a silo
    up         max(n·U/L, U/l, n·U·u/c + n·M·a)   U: bytes of an update; M: of the model; a: to add one byte up
    step       3·M·a + f                      f: what a round takes with one child and no bytes

d, u and d′, u′ are the processor seconds for a byte at the parent and at the child; c is the parent's processors. Links
are full duplex. A child that is a region has its own round in place of ``work``, level by level; where regions train on
data of their own, they do so before their children. ``shared``: all nodes share this machine, as in a rehearsal: the
processor seconds of all nodes are added up and divided by its processors; heartbeats go on while the round lasts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, sqrt

WAITING_BYTES = 2 << 30  # of updates that wait for their turn at most; beyond that silos pause
HEARTBEAT_SECONDS = 5.0
PAYS = 0.9  # a measure pays where a round takes at most this part of the time without it
MOST_SILOS = 1_000_000
DILOCO_STEPS = 10  # local steps for one of the plan's, where DiLoCo is compared


@dataclass(frozen=True)
class Constants:
    """Processor seconds, measured on one machine; see the module."""

    request: float  # of a parent, for each child
    send: float  # of a parent, for each byte down
    receive: float  # of a parent, for each byte up
    child_request: float
    child_receive: float  # of a child, for each byte down
    child_send: float  # for each byte up
    broker_request: float  # of the broker, for each child
    add: float  # of a parent, to add a byte of an update to the sum
    decode: float  # to turn an int8 update into a byte of plain numbers
    envelope: float  # bytes of a request or a reply in the broker
    fixed: float  # seconds that a round with one child and next to no bytes waits, beside its processor seconds
    cores: int = 1
    stretch: float = 1.0  # seconds that a processor second took while the constants were measured
    round: float = 0.0  # of a parent and its broker for a round, beside what is done for each child
    idle: float = 0.0  # of a child, its parent and the broker together, for each second that it is connected


@dataclass(frozen=True)
class Work:
    """What silos do in a round: ``model`` bytes, ``update`` bytes, training seconds of a silo on this machine."""

    model: int
    update: int
    training: float
    encoded: bool = False  # the update is compressed, and has to be decoded before it is added
    regions_train: bool = False  # every region and the root train as long as a silo, before their children


@dataclass(frozen=True)
class Links:
    """Bytes per second: of the coordinator and regions, and of a silo; and how fast silos are against this machine."""

    parent: float
    silo: float
    speed: float = 1.0
    cores: int = 1  # of the coordinator and of each region


@dataclass(frozen=True)
class RoundPlan:
    """A round: its parts in seconds, and what it needs."""

    silos: int
    regions: tuple[int, ...]  # of each level, from the root down; empty for a flat federation
    parts: dict[str, float]
    down: int  # bytes that leave the coordinator
    up: int  # bytes that reach it
    memory: int  # of the coordinator
    disk: int
    messages: float  # through the coordinator's broker, per second
    compute: float  # seconds of training, over all silos

    @property
    def seconds(self) -> float:
        """The length of the round."""
        return sum(self.parts.values())

    @property
    def limit(self) -> str:
        """The longest part."""
        return max(self.parts, key=lambda part: self.parts[part])


def plan_round(constants: Constants, work: Work, links: Links, silos: int, regions: Sequence[int] = ()) -> RoundPlan:
    """The plan of a round with each node on a machine of its own.

    ``regions``: how many there are on each level, from the root down; empty for a flat federation.
    """
    counts = [1, *regions, silos]
    children = counts[1]
    plain = replace(work, update=work.model, encoded=False)  # a region's mean goes up as it is
    training = work.training / links.speed
    parts = {"training at the slowest silo": training}
    if work.regions_train:
        _add(parts, {"training at the root and the regions": training * (len(counts) - 1)})
    for level in range(len(counts) - 1):
        leaves, root = level == len(counts) - 2, level == 0
        moved, link = (work, links.silo) if leaves else (plain, links.parent)
        below = ceil(counts[level + 1] / counts[level])
        _add(parts, _exchange(constants, moved, links, below, link, "" if root else "a region's"))
    up = work.model if regions else work.update
    seconds = sum(parts.values())
    return RoundPlan(
        silos,
        tuple(regions),
        parts,
        down=children * work.model,
        up=children * up,
        memory=3 * work.model + min(WAITING_BYTES, children * up),
        disk=2 * children * up + 4 * work.model,
        messages=children * (2 / seconds + 1 / HEARTBEAT_SECONDS),
        compute=(silos + (1 + sum(regions) if work.regions_train else 0)) * work.training,
    )


def _exchange(
    constants: Constants, work: Work, links: Links, children: int, child_link: float, of: str
) -> dict[str, float]:
    """The parts of a round beside training, of a parent with so many children."""
    parent = of or "the coordinator's"
    cores = max(1, links.cores)
    decoding = constants.decode * work.model if work.encoded else 0.0
    handling = children * (work.update * constants.receive / cores + work.model * constants.add + decoding)
    parts: dict[str, float] = {}
    down = {
        f"{parent} link": children * work.model / links.parent,
        "the silos' links" if child_link == links.silo else "the regions' links": work.model / child_link,
        f"{parent} processors": children * work.model * constants.send / cores,
    }
    up = {
        f"{parent} link": children * work.update / links.parent,
        "the silos' links" if child_link == links.silo else "the regions' links": work.update / child_link,
        f"{parent} aggregation": handling,
    }
    for ways in (down, up):
        longest = max(ways, key=lambda way: ways[way])
        _add(parts, {longest: ways[longest]})
    child = work.model * constants.child_receive + work.update * constants.child_send + constants.child_request
    _add(parts, {"the silos' processors, for transfers": child / links.speed})
    _add(parts, {f"{parent} requests and replies": constants.fixed + constants.round + children * constants.request})
    _add(parts, {"the server step": 3 * work.model * constants.add})
    return parts


def _add(parts: dict[str, float], more: dict[str, float]) -> None:
    for name, seconds in more.items():
        parts[name] = parts.get(name, 0.0) + seconds


def processor_seconds(
    constants: Constants, work: Work, silos: int, regions: Sequence[int] = (), seconds: float = 0.0
) -> float:
    """The processor seconds of all nodes together, in a round that lasts so many ``seconds``."""
    plain = replace(work, update=work.model, encoded=False)
    trained = silos + (1 + sum(regions) if work.regions_train else 0)
    total = trained * work.training
    for children, moved in ((silos, work), *((count, plain) for count in regions)):
        requests = constants.request + constants.child_request + constants.broker_request + seconds * constants.idle
        down = moved.model * (constants.send + constants.child_receive)
        up = moved.update * (constants.receive + constants.child_send) + moved.model * constants.add
        total += children * (requests + down + up)
    return total + (1 + sum(regions)) * (constants.round + 3 * work.model * constants.add)


def shared_seconds(constants: Constants, work: Work, silos: int, regions: Sequence[int] = ()) -> float:
    """The length of a round whose nodes all share this machine, as in a rehearsal.

    Infinite if heartbeats and polling of so many nodes take all of its processors.
    """
    of_it = constants.stretch / constants.cores
    idle = (silos + sum(regions)) * constants.idle * of_it  # of each second
    busy = processor_seconds(constants, work, silos, regions) * of_it
    in_order = constants.stretch * _in_order(constants, work, silos, regions)
    waiting = (len(regions) + 1) * constants.fixed
    return inf if idle >= 1.0 else max(busy, in_order) / (1.0 - idle) + waiting


def _in_order(constants: Constants, work: Work, silos: int, regions: Sequence[int]) -> float:
    """Processor seconds that follow one another: of each level, all work of a parent and that of one child."""
    counts, plain = [1, *regions, silos], replace(work, update=work.model, encoded=False)
    total = work.training * (len(counts) if work.regions_train else 1)
    for level in range(len(counts) - 1):
        moved = work if level == len(counts) - 2 else plain
        below = ceil(counts[level + 1] / counts[level])
        parent = constants.request + moved.model * (constants.send + constants.add) + moved.update * constants.receive
        child = constants.child_request + moved.model * constants.child_receive + moved.update * constants.child_send
        total += below * parent + child + constants.round
    return total


def first_silos(pays: Callable[[int], bool]) -> int | None:
    """The smallest number of silos from which a measure pays; None if it does not up to a million."""
    high = 2
    while not pays(high):
        high *= 2
        if high > MOST_SILOS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def last_silos(pays: Callable[[int], bool], first: int) -> int | None:
    """The largest number of silos up to which a measure pays from ``first`` on; None if it does up to a million."""
    low, high = first, 2 * first
    while pays(high):
        low, high = high, 2 * high
        if high > MOST_SILOS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class Paying:
    """From how many silos on, and up to how many, a measure pays; ``last`` None: without an end."""

    first: int
    last: int | None


@dataclass(frozen=True)
class Thresholds:
    """For how many silos each measure shortens a round by a tenth; None: for none."""

    regions: Paying | None
    upload: Paying | None
    diloco: Paying | None


def thresholds(constants: Constants, work: Work, links: Links, ratio: float) -> Thresholds:
    """When regions, an upload rule with ``ratio`` of the bytes, and DiLoCo pay; each against the flat federation."""
    smaller = replace(work, update=round(work.update * ratio), encoded=True)
    longer = replace(work, training=DILOCO_STEPS * work.training)

    def flat(silos: int) -> float:
        """Seconds of a round without regions."""
        return plan_round(constants, work, links, silos).seconds

    def tree(silos: int) -> float:
        """Seconds of a round with about √n regions, at least two."""
        return plan_round(constants, work, links, silos, [max(2, round(sqrt(silos)))]).seconds

    def compressed(silos: int) -> float:
        """Seconds of a round with smaller updates."""
        return plan_round(constants, smaller, links, silos).seconds

    def diloco(silos: int) -> float:
        """Seconds of a round with `DILOCO_STEPS` times the local steps, divided by that factor."""
        return plan_round(constants, longer, links, silos).seconds / DILOCO_STEPS

    def threshold(other: Callable[[int], float]) -> Paying | None:
        """The range of silos in which an alternative is faster than the flat federation; None if there is none."""

        def pays(silos: int) -> bool:
            """Whether the alternative takes at most the fraction `PAYS` of the flat federation's time."""
            return other(silos) <= PAYS * flat(silos)

        first = first_silos(pays)
        return None if first is None else Paying(first, last_silos(pays, first))

    return Thresholds(threshold(tree), threshold(compressed), threshold(diloco))
