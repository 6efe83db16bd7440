"""Secure aggregation at the silo: makes keys, splits secrets, masks the update, reveals shares.

A silo keeps its progress of a round, with the secrets, in a file of its own until the next round, so that it can be
restarted in between. It reveals the shares that it holds once: for one list of silos that answered. It judges the
roster, the silos that it masks with and those that answered by limits of its own (limits.py), and remembers across runs
with whom it was summed (memory.py). A node is a silo or a region: a region masks the mean of its children.
"""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from hansa.config.sections import MAX_MASKED_SHARE
from hansa.core.messages import (
    AdvertisedKeys,
    AdvertiseKeys,
    Failure,
    NodeId,
    Reply,
    RevealedShares,
    RevealShares,
    SecretShares,
    ShareSecrets,
    Train,
)
from hansa.core.method import Weighting
from hansa.core.tensors import Tensors
from hansa.methods.fedavg import BySamples
from hansa.privacy.secure_aggregation import protocol
from hansa.privacy.secure_aggregation.announcement import (
    SECRETS_FILE,
    Announcement,
    AnnouncementSigner,
    Roster,
    mask_label,
    model_digest,
    read_roster,
    roster_keys,
    roster_weights,
)
from hansa.privacy.secure_aggregation.limits import MaskingLimits
from hansa.privacy.secure_aggregation.memory import CohortMemory
from hansa.privacy.secure_aggregation.protocol import Refused, Secrets

PLAIN = ("schedule", "capacity", "reference", "subtree", "shared_state")  # what a masked `Train` must not have
DEFAULT_WEIGHTS, DEFAULT_LIMITS = BySamples(), MaskingLimits()
ON_TREES = ("schedule", "subtree")  # what it may have where nodes have models of their own, at a constant rate


@dataclass(frozen=True)
class RoundProgress:
    """What a silo has done in a round; the silo writes it to disk before anything that depends on it leaves."""

    round: int
    model: str  # the digest of the model that was announced
    secrets: Secrets
    roster: Roster | None = None  # the silos that it shared its secrets with; None: not yet
    threshold: int = 0
    label: str = ""
    masked_with: Roster | None = None  # the silos that its update was masked with; None: no update was sent
    answered: list[NodeId] | None = None  # the list that it revealed shares for; None: none was revealed

    @staticmethod
    def load(file: Path) -> "RoundProgress | None":
        """The progress in a file; None if there is no file. Raises `Refused` if the file is damaged."""
        if not file.is_file():
            return None
        try:
            raw = json.loads(file.read_text())
            return RoundProgress(**raw | {"secrets": Secrets(**raw["secrets"])})
        except (ValueError, TypeError, KeyError):
            raise Refused(
                f"{file.name} is damaged, so it is not known what the silo has sent; start a new run"
            ) from None

    def save(self, file: Path) -> None:
        """Write the progress to disk, readable by the owner alone."""
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.draft")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
            json.dump(asdict(self), stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, file)


@dataclass(frozen=True)
class MaskingClient:
    """A silo's side of secure aggregation.

    ``home``: the folder where it keeps its secrets; ``signer``: between organisations, signs and verifies
    announcements; ``weighting`` and ``cap``: the weights of the sum, as the settings have them; ``limits``: what the
    silo accepts of a sum; ``memory``: with whom it was summed before; ``refusal``: why it takes part in no masked round
    under these settings at all; ``own_models``: on a tree, nodes have models of their own.
    """

    name: NodeId
    federation: str
    home: Path
    samples: int
    signer: AnnouncementSigner | None = None
    weighting: Weighting = DEFAULT_WEIGHTS
    cap: float = MAX_MASKED_SHARE
    limits: MaskingLimits = DEFAULT_LIMITS
    memory: CohortMemory | None = None
    refusal: str = ""
    own_models: bool = False

    @property
    def file(self) -> Path:
        """The file with the silo's progress of the newest round."""
        return self.home / SECRETS_FILE

    def answer(self, request: AdvertiseKeys | ShareSecrets | RevealShares) -> Reply:
        """The reply to a request of the protocol; a `Failure` with the reason where the silo refuses."""
        try:
            match request:
                case AdvertiseKeys():
                    return self._advertise(request)
                case ShareSecrets():
                    return self._share(request)
                case RevealShares():
                    return self._reveal(request)
        except Refused as why:
            return Failure(f"it refuses: {why}")

    def mask(self, request: Train, update: Tensors, bound: float) -> tuple[Tensors, int]:
        """Return the update under the silo's masks, and how many of its values were clipped to the bound.

        Raises `Refused` if the request does not match what the silo agreed to before.
        """
        progress, roster = self._recall(request.round), request.masking.roster if request.masking is not None else {}
        shared_with = progress.roster or {}
        keys, known = roster_keys(roster), roster_keys(shared_with)
        if not keys.items() <= known.items() or len(keys) <= progress.threshold or self.name not in keys:
            raise Refused("the roster of the request is not the one that this silo shared its secrets with")
        if self.signer is not None and progress.masked_with is not None:
            raise Refused("it has sent its update of this round, and sends no other under the same masks")
        weights = roster_weights(shared_with, self.weighting, self.cap)
        self.limits.check_sum({name: weights[name] for name in keys}, "are masked with it")
        values, clipped = protocol.to_fixed(update.flat.numpy(), weights[self.name], bound)
        masked = protocol.mask(self.name, progress.secrets, keys, values, progress.label)
        replace(progress, masked_with=roster).save(self.file)
        return Tensors(update.layout, torch.from_numpy(masked.view(np.float32))), clipped

    def check(self, request: Train) -> None:
        """Before training: raise `Refused` unless the request is the round that all silos on the roster agreed to."""
        if self.signer is None:
            return
        progress = self._recall(request.round)
        if model_digest(request.model) != progress.model:
            raise Refused("the model is not the one that was announced to the silos before the round")
        allowed = ON_TREES if self.own_models else ()
        extra = next((name for name in PLAIN if getattr(request, name) and name not in allowed), None)
        if extra is not None:
            raise Refused(f"under masks every silo does the same plain round, and the request has '{extra}'")
        if request.subtree is not None and request.subtree.residuals.layout.names:
            raise Refused("under masks every silo starts from the same layers, and the request has a residual for it")

    def _advertise(self, request: AdvertiseKeys) -> AdvertisedKeys:
        if self.refusal:
            raise Refused(self.refusal)
        progress = RoundProgress.load(self.file) if self.signer is not None else None
        if progress is not None and progress.round > request.round:
            raise Refused(f"it has reached round {progress.round}, and does not go back to round {request.round}")
        if progress is None or progress.round != request.round:
            progress = RoundProgress(request.round, request.model, Secrets.fresh())
            progress.save(self.file)
        elif progress.model != request.model:
            raise Refused("another model was announced to it in this round")
        announcement = Announcement(progress.secrets.keys, self.samples, request.model)
        signature = self.signer.sign(request.round, announcement) if self.signer is not None else ""
        keys = announcement.keys
        return AdvertisedKeys(keys.seal, keys.mask, announcement.samples, announcement.model, signature)

    def _share(self, request: ShareSecrets) -> SecretShares:
        progress, roster = self._recall(request.round), read_roster(request.roster)
        if self.signer is not None:
            if progress.roster is not None:
                raise Refused("it has shared its secrets of this round with the silos on a roster, and does so once")
            if 2 * request.threshold <= len(roster) - 1:
                raise Refused(
                    f"a threshold of {request.threshold} is no more than half of the {len(roster) - 1} other silos, so "
                    "two different lists of silos could both reconstruct a secret"
                )
            self.signer.check(request.round, roster)
        if {announcement.model for announcement in roster.values()} != {progress.model}:
            raise Refused("different models were announced to the silos on the roster")
        weights = roster_weights(request.roster, self.weighting, self.cap)
        self.limits.check_roster(weights, request.threshold)
        if self.memory is not None:
            self.memory.check(progress.model, weights)
        label = mask_label(self.federation, request.round, request.roster, request.threshold)
        keys = {name: announcement.keys for name, announcement in roster.items()}
        sealed = protocol.share_secrets(self.name, progress.secrets, keys, request.threshold, label)
        replace(progress, roster=request.roster, threshold=request.threshold, label=label).save(self.file)
        return SecretShares(sealed)

    def _reveal(self, request: RevealShares) -> RevealedShares:
        progress = self._recall(request.round)
        if progress.masked_with is None:
            raise Refused("it has sent no update in this round")
        answered = sorted(request.answered)
        if progress.answered not in (None, answered):
            raise Refused(
                "it has revealed shares for another list of silos that answered, and both lists together would unmask "
                "the update of a silo"
            )
        self._check_answered(progress, answered)
        replace(progress, answered=answered).save(self.file)
        keys = roster_keys(progress.masked_with)
        shares = protocol.reveal(
            self.name, progress.secrets, keys, request.sealed, answered, progress.threshold, progress.label
        )
        return RevealedShares({name: (f"{x:x}", f"{y:x}") for name, (x, y) in shares.items()})

    def _check_answered(self, progress: RoundProgress, answered: list[NodeId]) -> None:
        """Raise `Refused` unless the silos that answered may be summed, by the limits and by what was summed before."""
        if not set(answered) <= set(progress.masked_with or {}):
            raise Refused("the list of silos that answered names silos that are not on the roster")
        weights = roster_weights(progress.roster or {}, self.weighting, self.cap)
        summed = {name: weights[name] for name in answered}
        self.limits.check_sum(summed, "answered")
        if self.memory is not None:
            self.memory.check(progress.model, summed)
            self.memory.note(progress.model, summed)

    def _recall(self, round: int) -> RoundProgress:
        """The silo's progress of a round; raises `Refused` if it has none."""
        progress = RoundProgress.load(self.file)
        if progress is None or progress.round != round:
            raise Refused(f"it has no secrets for round {round}")
        return progress
