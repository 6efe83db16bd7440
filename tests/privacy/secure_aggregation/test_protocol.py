"""The protocol of secure aggregation: the server learns the sum and nothing else, with any drop-outs, or nothing."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.privacy.secure_aggregation import protocol
from hansa.privacy.secure_aggregation.protocol import Refused, Secrets

NAMES = ["a", "b", "c", "d", "e"]
LABEL = "run 1"


def begin(names: Any, threshold: Any) -> Any:
    """The first two phases: secrets, public keys, and the encrypted shares by receiver."""
    mine = {name: Secrets.fresh() for name in names}
    roster = {name: secret.keys for name, secret in mine.items()}
    sealed = {name: protocol.share_secrets(name, mine[name], roster, threshold, LABEL) for name in names}
    inboxes = {name: {sender: sealed[sender][name] for sender in names if sender != name} for name in names}
    return mine, roster, inboxes


def finish(mine: Any, roster: Any, inboxes: Any, sums: Any, answered: Any, revealing: Any, threshold: Any) -> Any:
    shares: dict[str, list[protocol.Share]] = {}
    for name in revealing:
        revealed = protocol.reveal(name, mine[name], roster, inboxes[name], answered, threshold, LABEL)
        for silo, share in revealed.items():
            shares.setdefault(silo, []).append(share)
    return protocol.unmask(sums, roster, answered, shares, threshold, LABEL)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_whoever_drops_out_down_to_the_threshold_the_sum_is_right(data: st.DataObject) -> None:
    threshold = data.draw(st.integers(2, 4))
    mine, roster, inboxes = begin(NAMES, threshold)
    answered = data.draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=threshold + 1))
    revealing = data.draw(st.permutations(answered))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = {name: rng.integers(0, 2**32, 7, dtype=np.uint32) for name in NAMES}
    sent = {name: protocol.mask(name, mine[name], roster, values[name], LABEL) for name in NAMES}
    total = np.sum([sent[name] for name in answered], axis=0, dtype=np.uint32)
    plain = finish(mine, roster, inboxes, total, answered, revealing, threshold)
    np.testing.assert_array_equal(plain, np.sum([values[name] for name in answered], axis=0, dtype=np.uint32))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.floats(-2, 2, width=32), min_size=4, max_size=4), min_size=2, max_size=6), st.data())
def test_fixed_point_is_as_near_as_stated(rows: Any, data: st.DataObject) -> None:
    bound = 2.0
    raw = data.draw(st.lists(st.floats(0.1, 5.0), min_size=len(rows), max_size=len(rows)))
    weights = [w / sum(raw) for w in raw]
    total = np.zeros(4, np.uint32)
    for row, weight in zip(rows, weights, strict=True):
        fixed, clipped = protocol.to_fixed(np.array(row, np.float32), weight, bound)
        assert clipped == 0
        total += fixed
    plain = np.average(np.array(rows, np.float32).astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(protocol.from_fixed(total, 1.0, bound), plain, atol=len(rows) * bound * 2**-31 + 1e-7)


def test_clipped_values_are_counted() -> None:
    fixed, clipped = protocol.to_fixed(np.array([0.5, -3.0, 9.0], np.float32), 1.0, 1.0)
    assert clipped == 2
    np.testing.assert_allclose(protocol.from_fixed(fixed, 1.0, 1.0), [0.5, -1.0, 1.0], atol=1e-6)


def test_one_masked_update_looks_random() -> None:
    mine, roster, _ = begin(NAMES, 3)
    zeros = np.zeros(20_000, np.uint32)
    sent = protocol.mask("a", mine["a"], roster, zeros, LABEL)
    assert abs(sent.mean() / 2**32 - 0.5) < 0.02, "uniform"
    assert len(np.unique(sent)) > 19_900


def test_one_below_the_threshold_nothing_is_unmasked() -> None:
    mine, roster, inboxes = begin(NAMES, 3)
    with pytest.raises(Refused, match="only 3 silos answered"):
        protocol.reveal("a", mine["a"], roster, inboxes["a"], ["a", "b", "c"], 3, LABEL)
    total = np.zeros(3, np.uint32)
    with pytest.raises(Refused, match="2 silos revealed their share"):
        finish(mine, roster, inboxes, total, NAMES, ["b", "c"], 3)


def test_fewer_shares_than_the_threshold_do_not_reconstruct_the_secret() -> None:
    shares = protocol.split_secret(12345, range(1, 6), 3)
    assert protocol.reconstruct_secret(shares[1:4]) == 12345
    assert protocol.reconstruct_secret(shares[:2]) != 12345


def test_shares_are_decrypted_by_their_receiver_alone() -> None:
    mine, roster, inboxes = begin(NAMES, 3)
    for label, inbox in (("run 2", inboxes["b"]), (LABEL, inboxes["c"])):
        with pytest.raises(Refused, match="not for this silo and this round"):
            protocol.decrypt_shares("b", mine["b"], "a", roster["a"].seal, inbox["a"], label)


def test_a_silo_checks_the_roster() -> None:
    mine = {name: Secrets.fresh() for name in NAMES}
    roster = {name: secret.keys for name, secret in mine.items()}
    with pytest.raises(Refused, match="does not contain this silo's own keys"):
        protocol.share_secrets("a", mine["a"], {**roster, "a": roster["b"]}, 3, LABEL)
    with pytest.raises(Refused, match="same key twice"):
        protocol.share_secrets("a", mine["a"], {**roster, "c": roster["b"]}, 3, LABEL)
    with pytest.raises(Refused, match="at least 2"):
        protocol.share_secrets("a", mine["a"], {name: roster[name] for name in "ab"}, 1, LABEL)


def test_inconsistent_shares_are_found() -> None:
    mine, roster, inboxes = begin(NAMES, 2)
    answered = ["a", "b", "c", "d"]
    shares: dict[str, list[protocol.Share]] = {}
    for name in answered:
        for silo, (x, y) in protocol.reveal(name, mine[name], roster, inboxes[name], answered, 2, LABEL).items():
            shares.setdefault(silo, []).append((x, y + 1 if silo == "e" else y))
    with pytest.raises(Refused, match="do not reconstruct it"):
        protocol.unmask(np.zeros(3, np.uint32), roster, answered, shares, 2, LABEL)
