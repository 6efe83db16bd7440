"""Secure aggregation in a round: updates meet under masks, and nobody sees more than their sum. See privacy/secagg.py.

    before training   Advertise → public keys; Entrust → sealed shares           `Veil.draw`
    with Train        who is still there                                         `Veil.brief`
    after it          the sum of masked updates; Reveal → shares; the mean       `Veil.combine`

With its keys a silo says how many samples it has and of which model it was told; everybody on the list reads that, and
weighs itself: no server chooses weights, nor sends two silos different models. Between organisations silos sign what
they say (deploy/vouch.py), and do everything in a round once; in a simulation, a round may be resumed.

A silo keeps the secrets of a round in a file of its own until the next round, so that it may be restarted in between,
and opens what was entrusted to it once: for one list of who answered. The run's ledger, the training losses and the
sample counts are as without masks.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from hansa.config import Secure
from hansa.messages import (
    Advertise,
    Advertised,
    Entrust,
    Entrusted,
    Lost,
    NodeId,
    Reply,
    Request,
    Reveal,
    Revealed,
    Train,
    Update,
)
from hansa.method import Weighing
from hansa.methods.fedavg import BySamples
from hansa.pace import Asker, until
from hansa.privacy import secagg
from hansa.privacy.secagg import Keys, Refused, Secrets, Words
from hansa.tensors import Layout, Tensors

if TYPE_CHECKING:
    from hansa.round import Record

FILE = "veil.json"
MOST_SAMPLES = 10**12
Roster = Mapping[NodeId, tuple[str, ...]]  # as messages carry it: what every silo said, see `Said`


@dataclass(frozen=True)
class Said:
    """What a silo says of itself before a round: its keys, its samples, the digest of the model it was told of."""

    keys: Keys
    samples: int
    model: str
    vouch: str = ""  # its signature, between organisations

    @staticmethod
    def read(words: tuple[str, ...]) -> "Said":
        if len(words) != 5 or not all(re.fullmatch("[0-9a-f]{64}", key) for key in (words[0], words[1], words[3])):
            raise Refused("a silo's keys are no keys")
        if not re.fullmatch("[0-9]{1,13}", words[2]) or not 0 < int(words[2]) <= MOST_SAMPLES:
            raise Refused("a silo claims a number of samples that none has")
        return Said(Keys(words[0], words[1]), int(words[2]), words[3], words[4])

    @staticmethod
    def heard(reply: Advertised) -> "Said":
        return Said.read((reply.seal, reply.mask, str(reply.samples), reply.model, reply.vouch))

    @property
    def words(self) -> tuple[str, ...]:
        return self.keys.seal, self.keys.mask, str(self.samples), self.model, self.vouch


class Vouching(Protocol):
    """Between organisations: a silo stands for what it says, and knows whom to believe."""

    def sign(self, round: int, said: Said) -> str: ...

    def check(self, round: int, roster: Mapping[NodeId, Said]) -> None:
        """`Refused` if somebody on the list is not who it seems."""


def read(roster: Roster) -> dict[NodeId, Said]:
    return {name: Said.read(tuple(words)) for name, words in roster.items()}


def keys_of(roster: Roster) -> dict[NodeId, Keys]:
    return {name: said.keys for name, said in read(roster).items()}


def label_of(federation: str, round: int, roster: Roster, threshold: int) -> str:
    """What masks and seals are made for: they fit together among silos that were shown the very same list."""
    shown = [federation, round, threshold, sorted((name, *words) for name, words in roster.items())]
    return f"{federation} {round} {sha256(json.dumps(shown).encode()).hexdigest()}"


def weights_of(roster: Roster, weigh: Weighing) -> dict[NodeId, float]:
    """Every silo's share of the sum, as anybody who has the list can tell."""
    assert isinstance(weigh, BySamples), "checked when the method was built"
    weights = {name: weigh.of(said.samples) for name, said in sorted(read(roster).items())}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def digest_of(model: Tensors) -> str:
    values: Any = model.flat.contiguous().numpy()
    found = sha256(model.layout.text.encode())
    found.update(values)
    return found.hexdigest()


# ── at the silo ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Wearer:
    """A silo's side: its name, the federation's, where it keeps its secrets, how many samples it has."""

    name: NodeId
    federation: str
    home: Path
    samples: int
    vouching: Vouching | None = None

    def answer(self, request: Advertise | Entrust | Reveal) -> Reply:
        try:
            match request:
                case Advertise():
                    return self._advertise(request)
                case Entrust():
                    return self._entrust(request)
                case Reveal():
                    return self._reveal(request)
        except Refused as why:
            return Lost(f"it refuses: {why}")

    def cover(self, request: Train, update: Tensors, weigh: Weighing, bound: float) -> tuple[Tensors, int]:
        """The update under the silo's masks, and how many of its values were beyond the bound."""
        note = self._recall(request.round)
        roster, shown = keys_of(request.roster), keys_of(note.get("roster", {}))
        if not roster.items() <= shown.items() or len(roster) <= note.get("threshold", 0) or self.name not in roster:
            raise Refused("the list of silos is not the one that this silo entrusted its secrets to")
        if self.vouching is not None and "masked with" in note:
            raise Refused("it has sent its update of this round, and sends no other under the same masks")
        weight = weights_of(note["roster"], weigh)[self.name]
        values, cut = secagg.to_fixed(update.flat.numpy(), weight, bound)
        masked = secagg.mask(self.name, Secrets(**note["secrets"]), roster, values, note["label"])
        self._keep(request.round, note | {"masked with": {n: list(words) for n, words in request.roster.items()}})
        return Tensors(update.layout, torch.from_numpy(masked.view(np.float32))), cut

    def check(self, request: Train) -> None:
        """Before the work: is this what everybody else on the list was told, too?"""
        if self.vouching is None:
            return
        note = self._recall(request.round)
        if digest_of(request.model) != note["model"]:
            raise Refused("the model is not the one that the silos were told of before the round")
        if request.total or request.begin or request.room or request.probe:
            raise Refused("under masks every silo does the same plain round")

    def _advertise(self, request: Advertise) -> Advertised:
        note = self._note() if self.vouching is not None else {}
        if note.get("round", 0) > request.round:
            raise Refused(f"it has come to round {note['round']}, and does not go back")
        if note.get("round") == request.round and note["model"] != request.model:
            raise Refused("it was told of another model in this round")
        secrets = Secrets(**note["secrets"]) if note.get("round") == request.round else Secrets.fresh()
        if note.get("round") != request.round:
            self._keep(request.round, {"secrets": secrets.as_dict(), "model": request.model})
        said = Said(secrets.keys, self.samples, request.model)
        vouch = self.vouching.sign(request.round, said) if self.vouching is not None else ""
        return Advertised(said.keys.seal, said.keys.mask, said.samples, said.model, vouch)

    def _entrust(self, request: Entrust) -> Entrusted:
        note, listed = self._recall(request.round), {name: list(words) for name, words in request.roster.items()}
        roster = read(request.roster)
        if self.vouching is not None:
            if "roster" in note:
                raise Refused("it has entrusted its secrets of this round to a list of silos, and does so once")
            if 2 * request.threshold <= len(roster) - 1:
                raise Refused(
                    f"{request.threshold} of {len(roster) - 1} others are no more than half: two lists would do"
                )
            self.vouching.check(request.round, roster)
        if {said.model for said in roster.values()} != {note["model"]}:
            raise Refused("the silos on the list were told of different models")
        label = label_of(self.federation, request.round, request.roster, request.threshold)
        keys = {name: said.keys for name, said in roster.items()}
        sealed = secagg.share(self.name, Secrets(**note["secrets"]), keys, request.threshold, label)
        self._keep(request.round, note | {"roster": listed, "threshold": request.threshold, "label": label})
        return Entrusted(sealed)

    def _reveal(self, request: Reveal) -> Revealed:
        note = self._recall(request.round)
        if "masked with" not in note:
            raise Refused("it has sent no update in this round")
        answered = sorted(request.answered)
        if note.get("answered", answered) != answered:
            raise Refused("it was told before that others had answered, and both lists together would unmask a silo")
        self._keep(request.round, note | {"answered": answered})
        shares = secagg.reveal(
            self.name,
            Secrets(**note["secrets"]),
            keys_of(note["masked with"]),
            request.sealed,
            answered,
            note["threshold"],
            note["label"],
        )
        return Revealed({name: (f"{x:x}", f"{y:x}") for name, (x, y) in shares.items()})

    def _recall(self, round: int) -> dict[str, Any]:
        note = self._note()
        if note.get("round") != round:
            raise Refused(f"it has no secrets for round {round}")
        return note

    def _note(self) -> dict[str, Any]:
        """Of the newest round it took part in."""
        file = self.home / FILE
        try:
            note: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        except ValueError:
            raise Refused(f"{FILE} is damaged, and nobody knows what it has sent; begin a new run") from None
        return note

    def _keep(self, round: int, note: dict[str, Any]) -> None:
        """On the disk, before anything that it tells of leaves."""
        self.home.mkdir(parents=True, exist_ok=True)
        draft = self.home / f"{FILE}.draft"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
            json.dump(note | {"round": round}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, self.home / FILE)


# ── at the server ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Veil:
    """One round's masks, as the server sees them."""

    asker: Asker
    settings: Secure
    number: int
    record: "Record"
    threshold: int = 0
    shown: dict[NodeId, tuple[str, ...]] = field(default_factory=dict)  # the list: who said what of itself
    sealed: dict[NodeId, dict[NodeId, str]] = field(default_factory=dict)  # shares of whoever entrusted its secrets
    weights: dict[NodeId, float] = field(default_factory=dict)

    @classmethod
    def draw(cls, asker: Asker, settings: Secure, weigh: Weighing, record: "Record", model: Tensors) -> "Veil":
        """Keys of the cohort, then shares of its secrets. Who is silent is left out from here on."""
        veil = cls(asker, settings, record.round, record)
        announced = digest_of(model)
        told = veil._ask(dict.fromkeys(record.cohort, Advertise(record.round, announced)), Advertised)
        veil.shown = veil._usable(told, announced)
        others = len(veil.shown) - 1
        veil.threshold = max(2, ceil(settings.threshold * others))
        if others >= veil.threshold:
            veil.weights = weights_of(veil.shown, weigh)
            entrusted = veil._ask(
                dict.fromkeys(veil.shown, Entrust(record.round, veil.shown, veil.threshold)), Entrusted
            )
            for node, reply in entrusted.items():
                if set(reply.sealed) == set(veil.shown) - {node}:
                    veil.sealed[node] = reply.sealed
                else:
                    record.lost[node] = "its shares are not for those on the list"
        return veil

    @property
    def roster(self) -> dict[NodeId, tuple[str, ...]]:
        """Whose masks will cancel."""
        return {node: self.shown[node] for node in self.sealed}

    def brief(self, node: NodeId, plain: Train | None) -> Train | None:
        """Only who is on the roster, and only if enough are, is asked for an update."""
        if plain is None or node not in self.sealed or len(self.sealed) <= self.threshold:
            return None
        return replace(plain, roster=self.roster)

    def combine(self, layout: Layout, updates: Iterator[Update]) -> Tensors:
        """The mean of the updates that came, from their masked sum; if that must stay masked, the round has failed."""
        total = np.zeros(layout.size, np.uint32)
        for update in updates:
            total += update.gradient.flat.numpy().view(np.uint32)
        answered = sorted(self.record.updates)
        try:
            plain = self._unmask(total, answered)
        except Refused as why:
            reasons = "; ".join(f"{node}: {reason}" for node, reason in self.record.lost.items())
            self.record.failed = f"round {self.number}: nothing is unmasked, because {why} ({reasons})"
            return Tensors.zeros(layout)
        weight = sum(self.weights[node] for node in answered)
        return Tensors(layout, torch.from_numpy(secagg.from_fixed(plain, weight, self.settings.bound)))

    def _usable(self, told: Mapping[NodeId, Advertised], announced: str) -> dict[NodeId, tuple[str, ...]]:
        """What silos said of themselves, where it makes sense: the others would refuse the whole list otherwise."""
        found = {}
        for node, reply in told.items():
            try:
                said = Said.heard(reply)
                if said.model != announced:
                    raise Refused("it speaks of another model than it was told of")
                found[node] = said.words
            except Refused as why:
                self.record.lost[node] = str(why)
        return found

    def _unmask(self, total: Words, answered: list[NodeId]) -> Words:
        if len(answered) <= self.threshold:
            raise Refused(f"{len(answered)} silos answered, and more than {self.threshold} must hide in the sum")
        asks: dict[NodeId, Request] = {}
        for node in answered:
            inbox = {sender: sealed[node] for sender, sealed in self.sealed.items() if sender != node}
            asks[node] = Reveal(self.number, inbox, tuple(answered))
        shares: dict[NodeId, list[secagg.Share]] = {}
        for node, reply in self._ask(asks, Revealed).items():
            for silo, point in reply.shares.items():
                place = secagg.place_of(node, silo, self.shown)  # its own is none of its shares
                if place and silo in self.sealed and (value := _point(point, place)) is not None:
                    shares.setdefault(silo, []).append((place, value))
        label = label_of(self.asker.settings.name, self.number, self.shown, self.threshold)
        return secagg.unmask(total, keys_of(self.roster), answered, shares, self.threshold, label)

    def _ask(self, asks: Mapping[NodeId, Request], kind: type[Any]) -> dict[NodeId, Any]:
        """Replies of the right kind; of the others, why there is none."""
        found = {}
        for answer in self.asker.link.ask(asks, until(self.asker.settings.participation)):
            for counted, count in ((self.record.sent, answer.sent), (self.record.received, answer.received)):
                counted[answer.node] = counted.get(answer.node, 0) + count
            reply = answer.reply
            if isinstance(reply, kind):
                found[answer.node] = reply
            elif answer.node not in self.record.updates:
                said = reply.reason if isinstance(reply, Lost) else f"it sent a {type(reply).__name__}"
                self.record.lost[answer.node] = said
        return found


def _point(point: tuple[str, ...], place: int) -> int | None:
    """The value of a share at the place where it should be; None if it is no such share."""
    try:
        x, y = (int(number, 16) for number in point)
    except ValueError:
        return None
    return y if x == place and 0 <= y < secagg.PRIME else None
