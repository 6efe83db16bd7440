"""Secure aggregation at the silo: makes keys, splits secrets, masks the update, reveals shares.

A silo keeps its progress of a round, with the secrets, in a file of its own until the next round, so that it can be
restarted in between. It reveals the shares that it holds once: for one list of silos that answered.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hansa.core.messages import (
    AdvertisedKeys,
    AdvertiseKeys,
    Evaluate,
    Failure,
    MaskedPart,
    NodeId,
    Reply,
    RevealedShares,
    RevealShares,
    SecretShares,
    ShareSecrets,
    Train,
)
from hansa.core.method import Weighting
from hansa.core.tensors import Layout, Tensors
from hansa.privacy.secure_aggregation import protocol
from hansa.privacy.secure_aggregation.announcement import (
    SECRETS_FILE,
    Announcement,
    AnnouncementSigner,
    Roster,
    evaluation_digest,
    mask_label,
    model_digest,
    read_roster,
    roster_keys,
    roster_weights,
)
from hansa.privacy.secure_aggregation.numbers import to_words
from hansa.privacy.secure_aggregation.protocol import Refused, Secrets

EVALUATIONS = ("", "valid", "test", "valid-in-parts", "test-in-parts")  # `Evaluate.masked_as`; empty: updates
PLAIN = ("schedule", "capacity", "reference", "subtree", "shared_state")  # what a masked `Train` must not have


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


class NoiseShare(Protocol):
    """Differential privacy of the sum, as the silo's side of secure aggregation sees it."""

    def encode(self, update: NDArray[np.float32], round: int, smallest: int, /) -> protocol.Words:
        """The update with the silo's share of the noise; ``smallest``: the fewest silos that can be in the sum."""


def _as_tensors(words: protocol.Words) -> Tensors:
    """Masked words as a message carries them."""
    return Tensors(Layout(("words",), ((len(words),),)), torch.from_numpy(words.view(np.float32)))


@dataclass(frozen=True)
class MaskingClient:
    """A silo's side of secure aggregation.

    ``home``: the folder where it keeps its secrets; ``signer``: between organisations, signs and verifies
    announcements.
    """

    name: NodeId
    federation: str
    home: Path
    samples: int
    signer: AnnouncementSigner | None = None
    scores: str = ""  # of which evaluation the sum is; empty: of updates

    @property
    def file(self) -> Path:
        """The file with the silo's progress of the newest round; raises `Refused` for an evaluation of other data."""
        if self.scores not in EVALUATIONS:
            raise Refused("it is asked for a masked sum of data that are not for evaluation")
        return self.home / (SECRETS_FILE if not self.scores else f"secure_aggregation-{self.scores}.json")

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

    def mask(
        self,
        request: Train,
        update: Tensors,
        weighting: Weighting,
        bound: float,
        noise: NoiseShare | None = None,
        metrics: Sequence[float] = (),
    ) -> tuple[Tensors, MaskedPart]:
        """Return the update under the silo's masks, and what is said beside it.

        Its values are clipped to the bound; ``noise``: clips it as a whole and adds the silo's share of the noise,
        instead; ``metrics``: numbers that are masked with it. Raises `Refused` if the request does not match what the
        silo agreed to before, or if a number cannot be masked.
        """
        roster = request.masking.roster if request.masking is not None else {}
        progress = self._agreed(request.round, roster)
        try:
            if noise is None:
                weight = roster_weights(progress.roster or {}, weighting)[self.name]
                values, clipped = protocol.to_fixed(update.flat.numpy(), weight, bound)
            else:
                # How many values were clipped is not said: the noise does not cover it.
                values, clipped = noise.encode(update.flat.numpy(), request.round, progress.threshold + 1), 0
            extra = to_words(metrics)
        except ValueError as error:
            raise Refused(str(error)) from None
        masked = self._cover(progress, roster, np.concatenate([values, extra]) if len(extra) else values)
        cut = len(values)
        numbers = _as_tensors(masked[cut:]) if len(extra) else None
        return Tensors(update.layout, torch.from_numpy(masked[:cut].view(np.float32))), MaskedPart(clipped, numbers)

    def mask_scores(self, request: Evaluate, sums: Sequence[float]) -> Tensors:
        """Return sums of scores under the silo's masks; raises `Refused` as `mask` does."""
        roster = request.masking.roster if request.masking is not None else {}
        progress = self._agreed(request.round, roster)
        try:
            words = to_words(sums)
        except ValueError as error:
            raise Refused(str(error)) from None
        return _as_tensors(self._cover(progress, roster, words))

    def _agreed(self, round: int, roster: Roster) -> RoundProgress:
        """The silo's progress of a round; raises `Refused` unless it shared its secrets with those on the roster."""
        progress = self._recall(round)
        keys, known = roster_keys(roster), roster_keys(progress.roster or {})
        if not keys.items() <= known.items() or len(keys) <= progress.threshold or self.name not in keys:
            raise Refused("the roster of the request is not the one that this silo shared its secrets with")
        if self.signer is not None and progress.masked_with is not None:
            raise Refused("it has sent its update of this round, and sends no other under the same masks")
        return progress

    def _cover(self, progress: RoundProgress, roster: Roster, values: protocol.Words) -> protocol.Words:
        """Add the masks; the silo remembers, before anything leaves, with whom it was masked."""
        masked = protocol.mask(self.name, progress.secrets, roster_keys(roster), values, progress.label)
        replace(progress, masked_with=roster).save(self.file)
        return masked

    def check(self, request: Train) -> None:
        """Before training: raise `Refused` unless the request is the round that all silos on the roster agreed to."""
        if self.signer is None:
            return
        progress = self._recall(request.round)
        if model_digest(request.model) != progress.model:
            raise Refused("the model is not the one that was announced to the silos before the round")
        extra = next((name for name in PLAIN if getattr(request, name)), None)
        if extra is not None:
            raise Refused(f"under masks every silo does the same plain round, and the request has '{extra}'")

    def check_scores(self, request: Evaluate) -> None:
        """Before an evaluation: raise `Refused` unless it is what all silos on the roster were announced."""
        if self.signer is None:
            return
        if evaluation_digest(request) != self._recall(request.round).model or request.own or request.by_node:
            raise Refused("the evaluation is not the one that was announced to the silos")

    def _advertise(self, request: AdvertiseKeys) -> AdvertisedKeys:
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
        replace(progress, answered=answered).save(self.file)
        keys = roster_keys(progress.masked_with)
        shares = protocol.reveal(
            self.name, progress.secrets, keys, request.sealed, answered, progress.threshold, progress.label
        )
        return RevealedShares({name: (f"{x:x}", f"{y:x}") for name, (x, y) in shares.items()})

    def _recall(self, round: int) -> RoundProgress:
        """The silo's progress of a round; raises `Refused` if it has none."""
        progress = RoundProgress.load(self.file)
        if progress is None or progress.round != round:
            raise Refused(f"it has no secrets for round {round}")
        return progress
