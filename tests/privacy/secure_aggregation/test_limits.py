"""A silo's limits on masked sums: the algebra of capped weights and of differencing, and each limit at each step."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.core.messages import (
    AdvertiseKeys,
    Failure,
    MaskingPart,
    RevealedShares,
    RevealShares,
    ShareSecrets,
    SubtreePart,
    Train,
)
from hansa.core.tensors import Layout, Tensors
from hansa.methods.fedavg import BySamples
from hansa.privacy.secure_aggregation import memory, protocol
from hansa.privacy.secure_aggregation.announcement import (
    Announcement,
    mask_label,
    model_digest,
    roster_keys,
    roster_weights,
)
from hansa.privacy.secure_aggregation.client import MaskingClient
from hansa.privacy.secure_aggregation.limits import MaskingLimits, capped, required_threshold
from hansa.privacy.secure_aggregation.memory import MEMORY_FILE, CohortMemory, exposed
from hansa.privacy.secure_aggregation.protocol import Refused

MODEL, OTHER = "0" * 64, "1" * 64
LAYOUT = Layout(("w",), ((4,),))
Weights = dict[str, float]


# ── capped weights ────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=9), st.floats(0.05, 1.0))
def test_capped_weights_are_weights(raw: list[float], cap: float) -> None:
    weights = {str(i): value for i, value in enumerate(raw)}
    found = capped(weights, cap)
    assert sum(found.values()) == pytest.approx(1.0)
    assert max(found.values()) <= max(cap, 1 / len(raw)) + 1e-9
    by_size = sorted(weights, key=lambda name: weights[name])
    assert all(found[a] <= found[b] + 1e-9 for a, b in pairwise(by_size)), "order is kept"
    free = [name for name in weights if found[name] < cap - 1e-6]
    if len(free) > 1 and cap * len(raw) > 1.0:
        first, *rest = free
        for name in rest:
            assert found[name] * weights[first] == pytest.approx(found[first] * weights[name], rel=1e-6, abs=1e-12)


def test_weights_below_the_cap_are_the_plain_ones() -> None:
    assert capped({"a": 2.0, "b": 3.0, "c": 3.0}, 0.4) == pytest.approx({"a": 0.25, "b": 0.375, "c": 0.375})
    assert capped({"a": 98.0, "b": 1.0, "c": 1.0}, 0.4) == pytest.approx({"a": 0.4, "b": 0.3, "c": 0.3})
    assert capped({"a": 98.0, "b": 1.9, "c": 0.1}, 0.4) == pytest.approx({"a": 0.4, "b": 0.4, "c": 0.2})
    assert capped({"a": 9.0, "b": 1.0}, 0.4) == {"a": 0.5, "b": 0.5}, "too few for the cap: all weigh the same"


# ── the protocol from end to end ──────────────────────────────────────────────────────────────────────────────────────


class Round:
    """Clients without signatures, and a server that adds up what they send."""

    def __init__(self, folder: Path, samples: dict[str, int], threshold: float = 0.6, **given: Any) -> None:
        self.samples, self.bound = samples, 2.0
        limits = given.pop("limits", MaskingLimits(threshold=threshold))
        self.clients = {
            name: MaskingClient(name, "fed", folder / name, count, limits=limits, **given)
            for name, count in samples.items()
        }
        self.threshold = required_threshold(threshold, len(samples) - 1)

    def ask(self, name: str, request: Any) -> Any:
        return self.clients[name].answer(request)

    def share(self, model: str = MODEL, number: int = 1) -> dict[str, Any]:
        replies = {name: self.ask(name, AdvertiseKeys(number, model)) for name in self.clients}
        self.number = number
        self.roster = {name: Announcement.from_reply(reply).words for name, reply in replies.items()}
        request = ShareSecrets(number, self.roster, self.threshold)
        return {name: self.ask(name, request) for name in self.clients}

    def mask(self, name: str, values: Any) -> Any:
        request = Train(self.number, Tensors.zeros(LAYOUT), masking=MaskingPart(self.roster))
        update = Tensors(LAYOUT, torch.tensor(np.asarray(values, np.float32)))
        return self.clients[name].mask(request, update, self.bound)[0].flat.numpy().view(np.uint32)

    def reveal(self, shared: Any, answered: list[str]) -> dict[str, Any]:
        replies = {}
        for name in answered:
            inbox = {sender: reply.sealed[name] for sender, reply in shared.items() if sender != name}
            replies[name] = self.ask(name, RevealShares(self.number, inbox, tuple(answered)))
        return replies


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_the_secure_sum_is_the_plain_one_within_the_stated_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Case 5: any sizes, any updates, any silos that drop out down to the threshold."""
    count = data.draw(st.integers(3, 6))
    samples = {name: data.draw(st.integers(1, 10**6)) for name in "abcdef"[:count]}
    loose = MaskingLimits(max_share_answered=1.0, min_rest=0.0)  # the algebra alone
    round = Round(tmp_path_factory.mktemp("round"), samples, limits=loose)
    shared = round.share()
    rows = st.lists(st.floats(-2, 2, width=32), min_size=4, max_size=4)
    values = {name: data.draw(rows) for name in samples}
    least = max(3, round.threshold + 1)
    answered = sorted(data.draw(st.lists(st.sampled_from(sorted(samples)), unique=True, min_size=least)))
    total = sum((round.mask(name, values[name]) for name in answered), np.zeros(4, np.uint32))
    shares: dict[str, list[protocol.Share]] = {}
    for reply in round.reveal(shared, answered).values():
        assert isinstance(reply, RevealedShares)
        for silo, (x, y) in reply.shares.items():
            shares.setdefault(silo, []).append((int(x, 16), int(y, 16)))
    label = mask_label("fed", 1, round.roster, round.threshold)
    plain = protocol.unmask(total, roster_keys(round.roster), answered, shares, round.threshold, label)
    weights = roster_weights(round.roster, BySamples())
    summed = sum(weights[name] for name in answered)
    expected = sum(weights[name] * np.array(values[name], np.float64) for name in answered) / summed
    error = len(answered) * round.bound * 2**-31 / summed
    np.testing.assert_allclose(protocol.from_fixed(plain, summed, round.bound), expected, atol=error + 3e-7)


@pytest.mark.parametrize("count", [1, 2])
def test_a_cohort_of_one_or_two_is_refused(tmp_path: Path, count: int) -> None:
    round = Round(tmp_path, dict.fromkeys("abc"[:count], 10))
    for reply in round.share().values():
        assert isinstance(reply, Failure)
        assert f"{count} silos are on the roster, and this silo requires at least 3" in reply.reason


def test_each_limit_is_judged_at_each_step(tmp_path: Path) -> None:
    samples = dict.fromkeys("abcde", 10)
    strict = MaskingLimits(min_cohort=5)
    round = Round(tmp_path / "cohort", samples, limits=strict)
    shared = round.share()
    for name in samples:
        round.mask(name, [0.1] * 4)
    assert "4 silos answered" in round.reveal(shared, list("abcd"))["a"].reason
    round.roster = {name: round.roster[name] for name in "abcd"}
    with pytest.raises(Refused, match="4 silos are masked with it, and this silo requires at least 5"):
        round.mask("a", [0.1] * 4)
    lower = Round(tmp_path / "threshold", samples, limits=MaskingLimits(threshold=0.9))
    lower.threshold = 3
    assert "the threshold is 3 of 4 other silos, and this silo requires 4" in lower.share()["a"].reason
    heavy = Round(tmp_path / "share", {"a": 100, "b": 1, "c": 1, "d": 1}, cap=1.0)
    assert "one silo would have 97% of the weight on the roster" in heavy.share()["b"].reason, "another's weight"
    assert "97%" in heavy.share(number=2)["a"].reason, "and its own"


def test_a_silo_that_outweighs_those_that_remain_is_not_revealed(tmp_path: Path) -> None:
    """Of five silos the two that dropped out had most of the weight beside a."""
    samples = {"a": 40, "b": 25, "c": 25, "d": 5, "e": 5}
    round = Round(tmp_path, samples, threshold=0.5)
    shared = round.share()
    for name in samples:
        round.mask(name, [0.1] * 4)
    replies = round.reveal(shared, ["a", "d", "e"])
    assert all("80% of the weight of those that answered" in reply.reason for reply in replies.values())
    assert isinstance(round.reveal(shared, ["a", "b", "c", "d"])["a"], RevealedShares)


def test_the_stricter_of_two_limits_holds() -> None:
    file, policy = MaskingLimits(threshold=0.9, max_share=0.3), MaskingLimits(min_cohort=7, min_rest=0.1)
    assert file.within(policy) == policy.within(file) == MaskingLimits(7, 0.9, 0.3, 0.7, 0.1)


def test_residuals_for_one_silo_are_refused(tmp_path: Path) -> None:
    class Signer:
        def sign(self, round: int, announcement: Announcement) -> str:
            return ""

        def check(self, round: int, roster: Any) -> None:
            return None

    client = MaskingClient("a", "fed", tmp_path, 10, Signer(), own_models=True)
    model = Tensors.zeros(LAYOUT)
    client.answer(AdvertiseKeys(1, model_digest(model)))
    honest = Train(1, model, subtree=SubtreePart("west", Tensors.zeros(Layout((), ()))))
    client.check(honest)
    residual = SubtreePart("west", Tensors.of({"0|block.1|b": torch.zeros(3)}))
    with pytest.raises(Refused, match="a residual for it"):
        client.check(replace(honest, subtree=residual))
    with pytest.raises(Refused, match="the request has 'subtree'"):
        replace(client, own_models=False).check(honest)


# ── differencing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def rows(*cohorts: str) -> list[Weights]:
    return [dict.fromkeys(cohort, 1 / len(cohort)) for cohort in cohorts]


@pytest.mark.parametrize(
    ("cohorts", "shown"),
    [
        (("abcd", "abc"), True),
        (("abc", "abcd"), True),
        (("abcde", "abc"), True),
        (("abcd", "abce"), True),
        (("abcdef", "abc"), False),
        (("abcdef", "abcghi"), False),
        (("abc", "def"), False),
        (("abc", "cde", "abde"), True),
        (("abcdef", "abc", "def"), False),
    ],
)
def test_sums_that_show_too_few_silos_together(cohorts: tuple[str, ...], shown: bool) -> None:
    """Each pair of the eighth case differs by three silos or more, and all three sums together isolate c."""
    assert bool(exposed(rows(*cohorts), 3)) == shown


@settings(max_examples=60, deadline=None)
@given(st.lists(st.frozensets(st.sampled_from("abcdefg"), min_size=3), min_size=2, max_size=4, unique=True))
def test_whatever_linear_algebra_isolates_is_refused(cohorts: list[frozenset[str]]) -> None:
    """The oracle: a combination that is zero outside of two silos exists if their columns raise the rank."""
    names, matrix = sorted("abcdefg"), np.array([[name in cohort for name in "abcdefg"] for cohort in cohorts], float)
    rank = np.linalg.matrix_rank(matrix)
    pairs = [(i, j) for i in range(len(names)) for j in range(i)]
    isolating = any(np.linalg.matrix_rank(np.delete(matrix, pair, axis=1)) < rank for pair in pairs)
    if isolating:
        assert exposed(rows(*("".join(sorted(cohort)) for cohort in cohorts)), 3)


def test_almost_the_same_weights_are_equations_too() -> None:
    even = {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}
    assert exposed([even, {"a": 0.334, "b": 0.333, "c": 0.333}], 3)
    ten = {str(i): 0.1 for i in range(10)}
    tilted = {str(i): 0.1 + (i - 4.5) / 100 for i in range(10)}
    assert not exposed([ten, tilted], 3), "two equations with ten unknowns show no two of them"
    rng = np.random.default_rng(0)
    assert exposed([dict(zip(ten, rng.dirichlet(np.ones(10)), strict=True)) for _ in range(9)], 3)


def test_the_memory_outlives_a_restart_and_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    four, three = dict.fromkeys("abcd", 1.0), dict.fromkeys("abc", 1.0)

    def silo(data: str = "mine", covered: str = "") -> CohortMemory:
        return CohortMemory(tmp_path, data, 3, frozenset(covered))

    silo().check(MODEL, four)
    silo().note(MODEL, four)
    silo().note(MODEL, four)
    assert len((tmp_path / MEMORY_FILE).read_text().splitlines()) == 1, "the same sum is written once"
    assert (tmp_path / MEMORY_FILE).stat().st_mode & 0o077 == 0
    silo().check(MODEL, dict.fromkeys("abcd", 7.0))
    with pytest.raises(Refused, match=r"take the same silos again, a cohort that differs by 3 silos or more"):
        silo().check(MODEL, three)
    silo().check(OTHER, three)
    silo("other data").check(MODEL, three)
    silo(covered="abcd").check(MODEL, three)
    with pytest.raises(Refused, match="fewer than 3"):
        silo(covered="abc").check(MODEL, three)
    monkeypatch.setattr(memory, "MAX_SUMS", 3)
    for number in range(5):
        silo().note(f"{number:064x}", four)
    kept = [json.loads(line)["model"] for line in (tmp_path / MEMORY_FILE).read_text().splitlines()]
    assert kept == [f"{number:064x}" for number in (2, 3, 4)]


@pytest.mark.parametrize("damage", ["{", "[]\n", '{"model": 1}\n', '{"model": "", "data": "", "weights": 3}\n'])
def test_a_damaged_memory_refuses(tmp_path: Path, damage: str) -> None:
    (tmp_path / MEMORY_FILE).write_text(damage)
    with pytest.raises(Refused, match="is damaged, so it is not known with whom"):
        CohortMemory(tmp_path, "", 3).check(MODEL, dict.fromkeys("abc", 1.0))


def test_a_silo_takes_part_in_one_cohort_for_a_model(tmp_path: Path) -> None:
    def one(folder: str, names: str, number: int, remember: bool = True) -> dict[str, Any]:
        """A round of another run: the silos' homes are new, their memory is not."""
        round = Round(tmp_path / folder, dict.fromkeys(names, 10))
        for name, client in round.clients.items():
            kept = CohortMemory(tmp_path / f"memory of {name}", "data", 3) if remember else None
            round.clients[name] = replace(client, memory=kept)
        shared = round.share(number=number)
        if any(isinstance(reply, Failure) for reply in shared.values()):
            return shared
        for name in names:
            round.mask(name, [0.1] * 4)
        return round.reveal(shared, list(names))

    assert all(isinstance(reply, RevealedShares) for reply in one("first", "abcd", 1).values())
    refused = one("second", "abc", 1)
    assert all("with another cohort before" in reply.reason for reply in refused.values())
    assert all(isinstance(reply, RevealedShares) for reply in one("third", "abcd", 1).values()), "the same silos may"
    assert all(isinstance(reply, RevealedShares) for reply in one("off", "abc", 1, remember=False).values())
