"""Secure aggregation in a round: updates meet under masks, and nobody sees more than their sum. See privacy/secagg.py.

    before training   Advertise → public keys; Entrust → sealed shares           `Veil.draw`
    with Train        who is still there, and the silo's weight                  `Veil.brief`
    after it          the sum of masked updates; Reveal → shares; the mean       `Veil.combine`

A silo keeps the secrets of a round in a file of its own until the next round, so that it may be restarted in between,
and opens what was entrusted to it once: for one list of who answered. The run's ledger, the training losses and the
sample counts are as without masks.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
Roster = Mapping[NodeId, tuple[str, ...]]


def keys_of(roster: Roster) -> dict[NodeId, Keys]:
    if any(len(keys) != 2 for keys in roster.values()):
        raise Refused("the list of keys does not have two for every silo")
    return {name: Keys(*keys) for name, keys in roster.items()}


# ── at the silo ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Wearer:
    """A silo's side: its name, the federation's, and where it keeps its secrets."""

    name: NodeId
    federation: str
    home: Path

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

    def cover(self, request: Train, update: Tensors, bound: float) -> tuple[Tensors, int]:
        """The update under the silo's masks, and how many of its values were beyond the bound."""
        note = self._recall(request.round)
        roster = keys_of(request.roster)
        if not roster.items() <= keys_of(note["roster"]).items() or len(roster) <= note["threshold"]:
            raise Refused("the list of silos is not the one that this silo entrusted its secrets to")
        values, cut = secagg.to_fixed(update.flat.numpy(), request.weight, bound)
        masked = secagg.mask(self.name, Secrets(**note["secrets"]), roster, values, self._label(request.round))
        self._keep(request.round, note | {"masked with": {n: list(keys) for n, keys in request.roster.items()}})
        return Tensors(update.layout, torch.from_numpy(masked.view(np.float32))), cut

    def _advertise(self, request: Advertise) -> Advertised:
        secrets = Secrets.fresh()
        self._keep(request.round, {"secrets": secrets.as_dict()})
        return Advertised(secrets.keys.seal, secrets.keys.mask)

    def _entrust(self, request: Entrust) -> Entrusted:
        note = self._recall(request.round)
        secrets, roster = Secrets(**note["secrets"]), keys_of(request.roster)
        sealed = secagg.share(self.name, secrets, roster, request.threshold, self._label(request.round))
        listed = {name: list(keys) for name, keys in request.roster.items()}
        self._keep(request.round, note | {"roster": listed, "threshold": request.threshold})
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
            self._label(request.round),
        )
        return Revealed({name: (f"{x:x}", f"{y:x}") for name, (x, y) in shares.items()})

    def _label(self, round: int) -> str:
        return f"{self.federation} {round}"

    def _recall(self, round: int) -> dict[str, Any]:
        file = self.home / FILE
        note: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        if note.get("round") != round:
            raise Refused(f"it has no secrets for round {round}")
        return note

    def _keep(self, round: int, note: dict[str, Any]) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        draft = self.home / f"{FILE}.draft"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
            json.dump(note | {"round": round}, stream)
        os.replace(draft, self.home / FILE)


# ── at the server ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Veil:
    """One round's masks, as the server sees them."""

    asker: Asker
    settings: Secure
    number: int
    record: "Record"
    threshold: int
    roster: dict[NodeId, tuple[str, ...]]  # who entrusted shares of its secrets, and its public keys
    sealed: dict[NodeId, dict[NodeId, str]]
    weights: dict[NodeId, float]

    @classmethod
    def draw(cls, asker: Asker, settings: Secure, weigh: Weighing, record: "Record") -> "Veil":
        """Keys of the cohort, then shares of its secrets. Who is silent is left out from here on."""
        assert isinstance(weigh, BySamples), "checked when the method was built"
        number = record.round
        weights = {node: weigh.of(asker.members[node].samples) for node in record.cohort}
        weights = {node: weight / sum(weights.values()) for node, weight in weights.items()}
        veil = cls(asker, settings, number, record, 0, {}, {}, weights)
        told = veil._ask(dict.fromkeys(record.cohort, Advertise(number)), Advertised)
        public: dict[NodeId, tuple[str, ...]] = {node: (reply.seal, reply.mask) for node, reply in told.items()}
        veil.threshold = max(2, ceil(settings.threshold * (len(public) - 1)))
        if len(public) > veil.threshold:
            entrusted = veil._ask(dict.fromkeys(public, Entrust(number, public, veil.threshold)), Entrusted)
            veil.sealed = {node: reply.sealed for node, reply in entrusted.items()}
        veil.roster = {node: public[node] for node in veil.sealed}
        return veil

    def brief(self, node: NodeId, plain: Train | None) -> Train | None:
        """Only who is on the roster, and only if enough are, is asked for an update."""
        if plain is None or node not in self.roster or len(self.roster) <= self.threshold:
            return None
        return replace(plain, roster=self.roster, weight=self.weights[node])

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

    def _unmask(self, total: Words, answered: list[NodeId]) -> Words:
        if len(answered) <= self.threshold:
            raise Refused(f"{len(answered)} silos answered, and more than {self.threshold} must hide in the sum")
        asks: dict[NodeId, Request] = {}
        for node in answered:
            inbox = {sender: sealed[node] for sender, sealed in self.sealed.items() if sender != node}
            asks[node] = Reveal(self.number, inbox, tuple(answered))
        shares: dict[NodeId, list[secagg.Share]] = {}
        for reply in self._ask(asks, Revealed).values():
            for silo, point in reply.shares.items():
                shares.setdefault(silo, []).append((int(point[0], 16), int(point[1], 16)))
        label = f"{self.asker.settings.name} {self.number}"
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
