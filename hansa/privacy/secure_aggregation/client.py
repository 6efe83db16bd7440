"""Secure aggregation at the silo: makes keys, splits secrets, masks the update, reveals shares.

A silo keeps the secrets of a round in a file of its own until the next round, so that it may be restarted in between,
and reveals the shares it holds once: for one list of silos that answered.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
from hansa.privacy.secure_aggregation import protocol as secagg
from hansa.privacy.secure_aggregation.announcement import (
    SECRETS_FILE,
    Announcement,
    AnnouncementSigner,
    model_digest,
    roster_keys,
    mask_label,
    read_roster,
    roster_weights,
)
from hansa.privacy.secure_aggregation.protocol import Refused, Secrets


@dataclass(frozen=True)
class MaskingClient:
    """A silo's side of secure aggregation.

    ``home``: the folder where it keeps its secrets; ``signer``: between organisations, signs and checks announcements.
    """

    name: NodeId
    federation: str
    home: Path
    samples: int
    signer: AnnouncementSigner | None = None

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

    def mask(self, request: Train, update: Tensors, weighting: Weighting, bound: float) -> tuple[Tensors, int]:
        """The update under the silo's masks, and how many of its values were clipped to the bound.

        Raises `Refused` if the request does not fit what the silo agreed to before.
        """
        note, listed = self._recall(request.round), request.masking.roster if request.masking is not None else {}
        roster, shown = roster_keys(listed), roster_keys(note.get("roster", {}))
        if not roster.items() <= shown.items() or len(roster) <= note.get("threshold", 0) or self.name not in roster:
            raise Refused("the list of silos is not the one among which this silo split its secrets")
        if self.signer is not None and "masked with" in note:
            raise Refused("it has sent its update of this round, and sends no other under the same masks")
        weight = roster_weights(note["roster"], weighting)[self.name]
        values, clipped = secagg.to_fixed(update.flat.numpy(), weight, bound)
        masked = secagg.mask(self.name, Secrets(**note["secrets"]), roster, values, note["label"])
        self._keep(request.round, note | {"masked with": {n: list(words) for n, words in listed.items()}})
        return Tensors(update.layout, torch.from_numpy(masked.view(np.float32))), clipped

    def check(self, request: Train) -> None:
        """Before training: raise `Refused` unless every other silo on the list was told the same."""
        if self.signer is None:
            return
        note = self._recall(request.round)
        if model_digest(request.model) != note["model"]:
            raise Refused("the model is not the one that the silos were told of before the round")
        if request.schedule or request.capacity or request.reference or request.subtree or request.shared_state:
            raise Refused("under masks every silo does the same plain round")

    def _advertise(self, request: AdvertiseKeys) -> AdvertisedKeys:
        note = self._note() if self.signer is not None else {}
        if note.get("round", 0) > request.round:
            raise Refused(f"it has come to round {note['round']}, and does not go back")
        if note.get("round") == request.round and note["model"] != request.model:
            raise Refused("it was told of another model in this round")
        secrets = Secrets(**note["secrets"]) if note.get("round") == request.round else Secrets.fresh()
        if note.get("round") != request.round:
            self._keep(request.round, {"secrets": secrets.as_dict(), "model": request.model})
        said = Announcement(secrets.keys, self.samples, request.model)
        signature = self.signer.sign(request.round, said) if self.signer is not None else ""
        return AdvertisedKeys(said.keys.seal, said.keys.mask, said.samples, said.model, signature)

    def _share(self, request: ShareSecrets) -> SecretShares:
        note, listed = self._recall(request.round), {name: list(words) for name, words in request.roster.items()}
        roster = read_roster(request.roster)
        if self.signer is not None:
            if "roster" in note:
                raise Refused("it has split its secrets of this round among a list of silos, and does so once")
            if 2 * request.threshold <= len(roster) - 1:
                raise Refused(
                    f"{request.threshold} of {len(roster) - 1} others are no more than half: two lists would do"
                )
            self.signer.check(request.round, roster)
        if {said.model for said in roster.values()} != {note["model"]}:
            raise Refused("the silos on the list were told of different models")
        label = mask_label(self.federation, request.round, request.roster, request.threshold)
        keys = {name: said.keys for name, said in roster.items()}
        sealed = secagg.share_secrets(self.name, Secrets(**note["secrets"]), keys, request.threshold, label)
        self._keep(request.round, note | {"roster": listed, "threshold": request.threshold, "label": label})
        return SecretShares(sealed)

    def _reveal(self, request: RevealShares) -> RevealedShares:
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
            roster_keys(note["masked with"]),
            request.sealed,
            answered,
            note["threshold"],
            note["label"],
        )
        return RevealedShares({name: (f"{x:x}", f"{y:x}") for name, (x, y) in shares.items()})

    def _recall(self, round: int) -> dict[str, Any]:
        note = self._note()
        if note.get("round") != round:
            raise Refused(f"it has no secrets for round {round}")
        return note

    def _note(self) -> dict[str, Any]:
        """What it noted of the newest round it took part in."""
        file = self.home / SECRETS_FILE
        try:
            note: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        except ValueError:
            raise Refused(f"{FILE} is damaged, so that it is not known what was sent; begin a new run") from None
        return note

    def _keep(self, round: int, note: dict[str, Any]) -> None:
        """Write to disk before anything that depends on it leaves."""
        self.home.mkdir(parents=True, exist_ok=True)
        draft = self.home / f"{SECRETS_FILE}.draft"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
            json.dump(note | {"round": round}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, self.home / SECRETS_FILE)
