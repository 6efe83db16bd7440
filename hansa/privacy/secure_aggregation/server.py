"""Secure aggregation at the server: the part of a round that adds up masked updates and learns only their sum.

    before training   AdvertiseKeys → public keys; ShareSecrets → encrypted shares      `MaskingServer.prepare`
    with Train        the silos whose masks will cancel                                 `MaskingServer.extend`
    after it          the sum of masked updates; RevealShares → shares; the mean        `MaskingServer.combine`

The protocol is that of Bonawitz et al. (2017), in protocol.py; client.py has the silo's side. Between organisations
the silos sign their announcements (deploy/signatures.py) and take every step of a round once; in a simulation, a round
may be resumed. Training losses and counts are masked where ``secure_aggregation.metrics`` says so; the same steps with
another question then add up scores (runs/masked_evaluation.py). Numbers of samples are not masked.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from hansa.config.sections import SecureAggregation
from hansa.core.link import Answer
from hansa.core.messages import (
    AdvertisedKeys,
    AdvertiseKeys,
    Failure,
    MaskingPart,
    NodeId,
    Request,
    RevealedShares,
    RevealShares,
    SecretShares,
    ShareSecrets,
    Train,
    Update,
)
from hansa.core.participation import Assignment
from hansa.core.round import Round, RoundPart
from hansa.core.tensors import Layout, Tensors
from hansa.core.totals import RoundTotals
from hansa.privacy.dp.distributed import DistributedMechanism
from hansa.privacy.dp.rotation import Rotation
from hansa.privacy.secure_aggregation import protocol
from hansa.privacy.secure_aggregation.announcement import (
    Announcement,
    mask_label,
    model_digest,
    roster_keys,
    roster_weights,
)
from hansa.privacy.secure_aggregation.limits import required_threshold
from hansa.privacy.secure_aggregation.numbers import LIMBS, from_words
from hansa.privacy.secure_aggregation.protocol import Refused, Words

METRICS = ("loss", "seen", "steps", "seconds")  # of an update: the numbers that are masked with it


@dataclass
class MaskingServer(RoundPart):
    """One round of secure aggregation, as the server sees it; ``noise``: what the silos add to their updates."""

    settings: SecureAggregation
    noise: DistributedMechanism | None = None
    scores: str = ""  # of which evaluation the sum is (`Evaluate.masked_as`); empty: of updates
    digest: str = ""  # of what the silos are asked for; default: of the model that the round starts from
    threshold: int = 0
    announced: dict[NodeId, tuple[str, ...]] = field(default_factory=dict)  # silo → its announcement
    sealed: dict[NodeId, dict[NodeId, str]] = field(default_factory=dict)  # silo → its encrypted shares for the others
    weights: dict[NodeId, float] = field(default_factory=dict)

    def prepare(self, round: Round) -> None:
        """Collect the keys of the cohort, then shares of its secrets.

        A silo that does not answer one of the two requests is left out of the round.
        """
        self._round = round
        round.masked, round.combine = True, self.combine
        # On a tree whose key layers stay at their node, the backbone alone travels.
        start = round.start.only(round.aggregated.names) if round.partial else round.start
        digest = self.digest or model_digest(start)
        round.expected, round.partial = round.aggregated, False
        announce = AdvertiseKeys(round.number, digest, self.scores)
        keys = self._ask(dict.fromkeys(round.record.cohort, announce), AdvertisedKeys)
        self.announced = self._usable(keys, digest)
        others = len(self.announced) - 1
        self.threshold = required_threshold(self.settings.threshold, others)
        if others < self.threshold or others + 1 < self.settings.min_cohort:
            return
        try:
            self.weights = roster_weights(self.announced, round.server.method.weighting, self.settings.max_share)
        except Refused as why:
            round.record.failures |= dict.fromkeys(self.announced, str(why))
            return
        request = ShareSecrets(round.number, self.announced, self.threshold, self.scores)
        for node, reply in self._ask(dict.fromkeys(self.announced, request), SecretShares).items():
            if set(reply.sealed) == set(self.announced) - {node}:
                self.sealed[node] = reply.sealed
            else:
                round.record.failures[node] = "its shares are not for the silos on the roster"

    @property
    def fewest(self) -> int:
        """The smallest number of silos whose sum can be unmasked."""
        return max(self.threshold + 1, self.settings.min_cohort)

    @property
    def roster(self) -> dict[NodeId, tuple[str, ...]]:
        """The announcements of the silos whose masks will cancel."""
        return {node: self.announced[node] for node in self.sealed}

    def extend(self, assignment: Assignment, request: Train) -> Train | None:
        """Add the roster to the request; None for a silo that is not on it, or if too few silos are."""
        if assignment.node not in self.sealed or not self.ready:
            return None
        return replace(request, masking=MaskingPart(self.roster))

    @property
    def ready(self) -> bool:
        """Whether enough silos are on the roster for a sum that can be unmasked."""
        return len(self.sealed) >= self.fewest

    def sift(self, answers: Iterator[Answer]) -> Iterator[Answer]:
        """Refuse updates that state figures of their own beside the masked ones, or lack those."""
        for answer in answers:
            if isinstance(answer.reply, Update) and (reason := self._unmasked_figures(answer.reply)):
                answer = replace(answer, reply=Failure(reason))
            yield answer

    def _unmasked_figures(self, update: Update) -> str:
        masked = update.masked.metrics if update.masked is not None else None
        if not self.settings.metrics:
            return "" if masked is None else "it sent masked figures, and none were asked for"
        if masked is None or masked.layout.size != LIMBS * len(METRICS):
            return "its loss and counts are not masked, and secure_aggregation.metrics asks for it"
        return ""

    def total(self, masked: Mapping[NodeId, Words]) -> Words:
        """The sum of masked words of the silos that answered; raises `Refused` if it cannot be unmasked."""
        words = list(masked.values())
        if not words:
            raise Refused("no silo answered")
        return self._unmask(np.sum(words, axis=0, dtype=np.uint32), sorted(masked))

    def combine(self, layout: Layout, updates: Iterator[Update]) -> Tensors:
        """The mean of the updates, from their masked sum; if the sum cannot be unmasked, the round fails."""
        numbers = LIMBS * len(METRICS) if self.settings.metrics else 0
        total = np.zeros(layout.size + numbers, np.uint32)
        for update in updates:
            total[: layout.size] += update.gradient.flat.numpy().view(np.uint32)
            if update.masked is not None and update.masked.metrics is not None:
                total[layout.size :] += update.masked.metrics.flat.numpy().view(np.uint32)
        record = self._round.record
        answered = sorted(record.updates)
        try:
            plain = self._unmask(total, answered)
        except Refused as why:
            reasons = "; ".join(f"{node}: {reason}" for node, reason in record.failures.items())
            record.failed = f"round {record.round}: the sum cannot be unmasked, because {why} ({reasons})"
            return Tensors.zeros(layout)
        if numbers:
            loss, seen, steps, seconds = from_words(plain[layout.size :])
            record.hidden = RoundTotals(loss, round(seen), round(steps), seconds)
            plain = plain[: layout.size]
        if self.noise is not None:
            rotation = Rotation(layout.size, self._round.server.settings.seed, self._round.number)
            return Tensors(layout, torch.from_numpy(self.noise.decode(plain, len(answered), rotation)))
        weight = sum(self.weights[node] for node in answered)
        return Tensors(layout, torch.from_numpy(protocol.from_fixed(plain, weight, self.settings.bound)))

    def _usable(self, keys: Mapping[NodeId, AdvertisedKeys], digest: str) -> dict[NodeId, tuple[str, ...]]:
        """The announcements that are well formed and for this model: the silos would refuse a roster with others."""
        found = {}
        for node, reply in keys.items():
            try:
                announcement = Announcement.from_reply(reply)
                if announcement.model != digest:
                    raise Refused("it announced another model than the one of this round")
                found[node] = announcement.words
            except Refused as why:
                self._round.record.failures[node] = str(why)
        return found

    def _unmask(self, total: Words, answered: list[NodeId]) -> Words:
        if len(answered) < self.fewest:
            raise Refused(f"{len(answered)} silos answered, and at least {self.fewest} must be in the sum")
        asks: dict[NodeId, Request] = {}
        for node in answered:
            inbox = {sender: sealed[node] for sender, sealed in self.sealed.items() if sender != node}
            asks[node] = RevealShares(self._round.number, inbox, tuple(answered), self.scores)
        shares: dict[NodeId, list[protocol.Share]] = {}
        for node, reply in self._ask(asks, RevealedShares).items():
            for silo, point in reply.shares.items():
                place = protocol.share_index(node, silo, self.announced)  # 0: a silo holds no share of its own secret
                if place and silo in self.sealed and (value := _point(point, place)) is not None:
                    shares.setdefault(silo, []).append((place, value))
        federation = self._round.server.settings.federation
        label = mask_label(federation, self._round.number, self.announced, self.threshold)
        return protocol.unmask(total, roster_keys(self.roster), answered, shares, self.threshold, label)

    def _ask(self, asks: Mapping[NodeId, Request], kind: type[Any]) -> dict[NodeId, Any]:
        """The replies of the expected ``kind``; the record gets the reason for every silo without one."""
        found, record = {}, self._round.record
        for answer in self._round.link.ask(asks, self._round.deadline()):
            record.count_bytes(answer)
            reply = answer.reply
            if isinstance(reply, kind):
                found[answer.node] = reply
            elif answer.node not in record.updates:
                reason = (
                    reply.reason
                    if isinstance(reply, Failure)
                    else f"it sent a {type(reply).__name__} instead of {kind.__name__}"
                )
                record.failures[answer.node] = reason
        return found


def _point(point: tuple[str, ...], place: int) -> int | None:
    """The y of a revealed share, if its x is ``place`` and both are valid; else None."""
    try:
        x, y = (int(number, 16) for number in point)
    except ValueError:
        return None
    return y if x == place and 0 <= y < protocol.PRIME else None
