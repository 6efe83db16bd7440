"""Differencing of scores: two sums over n and n − 1 silos would show the scores of one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hansa.core.messages import (
    AdvertiseKeys,
    Evaluate,
    Failure,
    MaskingPart,
    RevealedShares,
    RevealShares,
    ShareSecrets,
)
from hansa.core.tensors import Layout, Tensors
from hansa.privacy.secure_aggregation import protocol
from hansa.privacy.secure_aggregation.announcement import Announcement, evaluation_digest, mask_label, roster_keys
from hansa.privacy.secure_aggregation.client import MaskingClient
from hansa.privacy.secure_aggregation.limits import required_threshold
from hansa.privacy.secure_aggregation.memory import CohortMemory
from hansa.privacy.secure_aggregation.numbers import from_words
from hansa.privacy.secure_aggregation.protocol import Refused

MODEL = Tensors.zeros(Layout(("w",), ((4,),)))
ASKED = Evaluate(1, MODEL, "test", 1.0)
SCORES = {"a": 3.0, "b": 5.0, "c": 7.0, "d": 11.0}


def total(folder: Path, names: str, memory: Path | None, asked: Evaluate = ASKED) -> float:
    """The unmasked sum of the scores of some silos in a run of its own; raises `Refused` if one of them refuses."""
    clients, threshold = {}, required_threshold(0.6, len(names) - 1)
    for name in names:
        kept = CohortMemory(memory / name, "data", 3) if memory is not None else None
        clients[name] = MaskingClient(name, "fed", folder / name, 1, memory=kept, scores=asked.masked_as)
    announce = AdvertiseKeys(1, evaluation_digest(asked), asked.masked_as)
    keys: Any = {name: client.answer(announce) for name, client in clients.items()}
    roster = {name: Announcement.from_reply(reply).words for name, reply in keys.items()}
    share = ShareSecrets(1, roster, threshold, asked.masked_as)
    shared: Any = {name: client.answer(share) for name, client in clients.items()}
    assert not any(isinstance(reply, Failure) for reply in shared.values())
    words, request = np.zeros(6, np.uint32), replace(asked, masking=MaskingPart(roster))
    for name, client in clients.items():
        words += client.mask_scores(request, [SCORES[name]]).flat.numpy().view(np.uint32)
    shares: dict[str, list[protocol.Share]] = {}
    for name, client in clients.items():
        inbox = {sender: reply.sealed[name] for sender, reply in shared.items() if sender != name}
        reply = client.answer(RevealShares(1, inbox, tuple(names), asked.masked_as))
        assert isinstance(reply, RevealedShares), reply
        for silo, (x, y) in reply.shares.items():
            shares.setdefault(silo, []).append((int(x, 16), int(y, 16)))
    label = mask_label("fed", 1, roster, threshold)
    return from_words(protocol.unmask(words, roster_keys(roster), sorted(names), shares, threshold, label))[0]


def test_without_memory_two_sums_show_the_scores_of_one_silo(tmp_path: Path) -> None:
    """The attack, with its defence switched off."""
    assert total(tmp_path / "1", "abcd", None) - total(tmp_path / "2", "abc", None) == SCORES["d"]


@pytest.mark.parametrize("change", [{}, {"parts": 4}, {"share": 0.99}, {"decode": True}])
def test_a_silo_remembers_with_whom_its_scores_were_summed(tmp_path: Path, change: Any) -> None:
    memory = tmp_path / "memory"
    assert total(tmp_path / "1", "abcd", memory) == sum(SCORES.values())
    with pytest.raises(Refused, match="with another cohort before"):
        total(tmp_path / "2", "abc", memory, replace(ASKED, **change))
    assert total(tmp_path / "3", "abcd", memory) == sum(SCORES.values()), "the same silos may be summed again"


@pytest.mark.parametrize("change", [{"split": "valid"}, {"model": Tensors(MODEL.layout, torch.ones(4))}])
def test_another_model_or_other_data_is_another_question(tmp_path: Path, change: Any) -> None:
    memory = tmp_path / "memory"
    total(tmp_path / "1", "abcd", memory)
    assert total(tmp_path / "2", "abc", memory, replace(ASKED, **change)) == 15.0
