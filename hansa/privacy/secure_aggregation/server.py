"""Secure aggregation in a round: updates meet under masks, and nobody sees more than their sum. See privacy/secagg.py.

    before training   Advertise → public keys; Entrust → sealed shares           `MaskingServer.draw`
    with Train        who is still there                                         `MaskingServer.brief`
    after it          the sum of masked updates; Reveal → shares; the mean       `MaskingServer.combine`

With its keys a silo says how many samples it has and of which model it was told; everybody on the list reads that, and
weighs itself: no server chooses weights, nor sends two silos different models. Between organisations silos sign what
they say (deploy/vouch.py), and do everything in a round once; in a simulation, a round may be resumed.

A silo keeps the secrets of a round in a file of its own until the next round, so that it may be restarted in between,
and opens what was entrusted to it once: for one list of who answered. The run's ledger, the training losses and the
sample counts are as without masks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hansa.config.sections import Secure
from hansa.core.messages import (
    AdvertisedKeys,
    AdvertiseKeys,
    Failure,
    NodeId,
    Request,
    RevealedShares,
    RevealShares,
    SecretShares,
    ShareSecrets,
    Train,
    Update,
)
from hansa.core.method import Weighting
from hansa.core.participation import Asker, until
from hansa.core.tensors import Layout, Tensors
from hansa.privacy.secure_aggregation import protocol as secagg
from hansa.privacy.secure_aggregation.protocol import Refused, Words

if TYPE_CHECKING:
    from hansa.core.round import Record
from hansa.privacy.secure_aggregation.announcement import Announcement, digest_of, keys_of, label_of, weights_of

# ── at the server ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class MaskingServer:
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
    def draw(
        cls, asker: Asker, settings: Secure, weighting: Weighting, record: "Record", model: Tensors
    ) -> "MaskingServer":
        """Keys of the cohort, then shares of its secrets. Who is silent is left out from here on."""
        veil = cls(asker, settings, record.round, record)
        announced = digest_of(model)
        told = veil._ask(dict.fromkeys(record.cohort, AdvertiseKeys(record.round, announced)), AdvertisedKeys)
        veil.shown = veil._usable(told, announced)
        others = len(veil.shown) - 1
        veil.threshold = max(2, ceil(settings.threshold * others))
        if others >= veil.threshold:
            veil.weights = weights_of(veil.shown, weighting)
            entrusted = veil._ask(
                dict.fromkeys(veil.shown, ShareSecrets(record.round, veil.shown, veil.threshold)), SecretShares
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

    def _usable(self, told: Mapping[NodeId, AdvertisedKeys], announced: str) -> dict[NodeId, tuple[str, ...]]:
        """What silos said of themselves, where it makes sense: the others would refuse the whole list otherwise."""
        found = {}
        for node, reply in told.items():
            try:
                said = Announcement.heard(reply)
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
            asks[node] = RevealShares(self.number, inbox, tuple(answered))
        shares: dict[NodeId, list[secagg.Share]] = {}
        for node, reply in self._ask(asks, RevealedShares).items():
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
                said = reply.reason if isinstance(reply, Failure) else f"it sent a {type(reply).__name__}"
                self.record.lost[answer.node] = said
        return found


def _point(point: tuple[str, ...], place: int) -> int | None:
    """The value of a share at the place where it should be; None if it is no such share."""
    try:
        x, y = (int(number, 16) for number in point)
    except ValueError:
        return None
    return y if x == place and 0 <= y < secagg.PRIME else None
