"""Secure aggregation at the silo: makes keys, splits secrets, masks the update, reveals shares.

A silo keeps its progress of a round, with the secrets, in a file of its own until the next round, so that it can be
restarted in between. It reveals the shares that it holds once: for one list of silos that answered. It judges the
roster, the silos that it masks with and those that answered by limits of its own (limits.py), and remembers across runs
with whom it was summed (memory.py). A node is a silo or a region: a region masks the mean of its children.
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

from hansa.config.sections import MAX_MASKED_SHARE
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
from hansa.methods.fedavg import BySamples
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
    scores_digest,
)
from hansa.privacy.secure_aggregation.limits import MaskingLimits
from hansa.privacy.secure_aggregation.memory import CohortMemory
from hansa.privacy.secure_aggregation.numbers import to_words
from hansa.privacy.secure_aggregation.protocol import Refused, Secrets

EVALUATIONS = ("valid", "test", "valid-in-parts", "test-in-parts")  # `Evaluate.masked_as`
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
    summed_as: str = ""  # of scores: the digest under which it remembers the sum; empty: the model's

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


@dataclass(frozen=True)
class MaskingClient:
    """A silo's side of secure aggregation.

    ``home``: the folder where it keeps its secrets; ``signer``: between organisations, signs and verifies
    announcements; ``weighting`` and ``cap``: the weights of the sum, as the settings have them; ``limits``: what the
    silo accepts of a sum; ``memory``: with whom it was summed before; ``refusal``: why it takes part in no masked round
    under these settings at all; ``own_models``: on a tree, nodes have models of their own; ``scores``: of which
    evaluation the sum is (`Evaluate.masked_as`), empty: of updates.
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
    scores: str = ""

    @property
    def file(self) -> Path:
        """The file with the silo's progress of the newest round; raises `Refused` for an evaluation of other data."""
        if not self.scores:
            return self.home / SECRETS_FILE
        if self.scores not in EVALUATIONS:
            raise Refused("it is asked for a masked sum of data that are not for evaluation")
        return self.home / f"secure_aggregation-{self.scores}.json"

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
        progress, weights = self._agreed(request.round, roster)
        try:
            if noise is None:
                values, clipped = protocol.to_fixed(update.flat.numpy(), weights[self.name], bound)
            else:
                # How many values were clipped is not said: the noise does not cover it. The threshold, which all silos
                # share, says how few silos a sum can have; a limit of this silo alone does not.
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
        progress, weights = self._agreed(request.round, roster)
        summed_as = scores_digest(request)
        if self.memory is not None:
            self.memory.check(summed_as, weights)
        try:
            words = to_words(sums)
        except ValueError as error:
            raise Refused(str(error)) from None
        return _as_tensors(self._cover(replace(progress, summed_as=summed_as), roster, words))

    def _agreed(self, round: int, roster: Roster) -> tuple[RoundProgress, dict[NodeId, float]]:
        """The silo's progress of a round, and the weights of the silos on the roster.

        Raises `Refused` unless it shared its secrets with them and they may be summed.
        """
        progress = self._recall(round)
        keys, known = roster_keys(roster), roster_keys(progress.roster or {})
        if not keys.items() <= known.items() or len(keys) <= progress.threshold or self.name not in keys:
            raise Refused("the roster of the request is not the one that this silo shared its secrets with")
        if self.signer is not None and progress.masked_with is not None:
            raise Refused("it has sent its update of this round, and sends no other under the same masks")
        weights = self._weights(progress.roster or {})
        summed = {name: weights[name] for name in keys}
        self.limits.check_sum(summed, "are masked with it")
        return progress, summed

    def _cover(self, progress: RoundProgress, roster: Roster, values: protocol.Words) -> protocol.Words:
        """Add the masks; the silo remembers, before anything leaves, with whom it was masked."""
        masked = protocol.mask(self.name, progress.secrets, roster_keys(roster), values, progress.label)
        replace(progress, masked_with=roster).save(self.file)
        return masked

    def _weights(self, roster: Roster) -> dict[NodeId, float]:
        """Silo → its weight in the sum; scores are added up as they are."""
        if self.scores:
            return dict.fromkeys(sorted(roster), 1.0 / max(1, len(roster)))
        return roster_weights(roster, self.weighting, self.cap)

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

    def check_scores(self, request: Evaluate) -> None:
        """Before an evaluation: raise `Refused` unless it is what all silos on the roster were announced."""
        if self.signer is None:
            return
        if evaluation_digest(request) != self._recall(request.round).model or request.own or request.by_node:
            raise Refused("the evaluation is not the one that was announced to the silos")

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
        weights = self._weights(request.roster)
        self.limits.check_roster(weights, request.threshold)
        if self.memory is not None and not self.scores:  # which scores are asked for is known with the request for them
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
        weights = self._weights(progress.roster or {})
        summed = {name: weights[name] for name in answered}
        self.limits.check_sum(summed, "answered")
        if self.memory is not None:
            model = progress.summed_as or progress.model
            self.memory.check(model, summed)
            self.memory.note(model, summed)

    def _recall(self, round: int) -> RoundProgress:
        """The silo's progress of a round; raises `Refused` if it has none."""
        progress = RoundProgress.load(self.file)
        if progress is None or progress.round != round:
            raise Refused(f"it has no secrets for round {round}")
        return progress


def _as_tensors(words: protocol.Words) -> Tensors:
    """Masked words as a message carries them."""
    return Tensors(Layout(("words",), ((len(words),),)), torch.from_numpy(words.view(np.float32)))
