"""Every rule of a verdict: a claim that keeps all of them holds, and breaking any single one takes that away."""

from dataclasses import replace

import pytest

from hansa.experiments.reproduce import Claim
from hansa.experiments.reproduce.verdict import FAILS, HOLDS, OPEN, Evidence, judge

GOOD = Evidence(
    better="high",
    ours=(0.80, 0.81, 0.82),
    rival=(0.70, 0.71, 0.72),
    start=0.20,
    grid={1e-4: 0.6, 1e-3: 0.7, 1e-2: 0.5},
    chance=0.05,
    has_chance=True,
    published=True,
)
# The same for a figure of which less is better.
LOW = Evidence(
    better="low", ours=(1.0, 1.1, 1.05), rival=(2.0, 2.1, 2.05), start=4.0, grid={1: 3, 2: 2, 3: 3}, published=True
)


def test_a_claim_that_keeps_every_rule_holds() -> None:
    for evidence in (GOOD, LOW):
        assert judge(evidence).state == HOLDS
        assert judge(evidence).why == ""


BROKEN = {
    "difference": replace(GOOD, rival=(0.795, 0.805, 0.815)),
    "seeds": replace(GOOD, ours=(0.80, 0.81)),
    "baseline: it gains": replace(GOOD, start=0.705),
    "baseline: its figure before": replace(GOOD, start=None),
    "baseline: it was not tuned": replace(GOOD, grid=None),
    "baseline: the best value": replace(GOOD, grid={1e-4: 0.6, 1e-3: 0.7, 1e-2: 0.8}),
    "chance: ours": replace(GOOD, chance=0.805),
    "chance: its level": replace(GOOD, chance=None),
    "published": replace(GOOD, published=False),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_breaking_one_rule_alone_is_named_and_the_claim_is_not_shown(rule: str) -> None:
    verdict = judge(BROKEN[rule])
    assert verdict.state == OPEN
    assert verdict.why.startswith(rule)
    assert ";" not in verdict.why, "the other rules are kept"


def test_a_baseline_below_its_start_is_not_healthy_in_either_direction() -> None:
    worse = replace(LOW, rival=(4.2, 4.1, 4.3))  # as central training was, worse than the untouched base
    assert judge(worse).why.startswith("baseline: it gains -")
    assert judge(replace(LOW, grid={1: 1, 2: 2, 3: 3})).why.startswith("baseline: the best value of its grid, 1,")


def test_ours_clearly_worse_does_not_hold_whatever_else_is_missing() -> None:
    turned = replace(GOOD, ours=GOOD.rival, rival=GOOD.ours, published=False)
    assert judge(turned).state == FAILS
    assert "ours is worse than the rival by 0.1" in judge(turned).why
    assert "published" in judge(turned).why
    assert judge(replace(turned, ours=(0.7,), rival=(0.8,))).state == OPEN, "one seed decides nothing"
    slightly = replace(GOOD, ours=(0.70, 0.71, 0.72), rival=(0.705, 0.715, 0.725))
    assert judge(slightly).state == OPEN, "worse within the spread: undecided"


def test_a_margin_is_kept_by_more_than_the_spread() -> None:
    close = Evidence("low", (2.02, 2.021, 2.022), (2.0, 2.001, 2.002), 4.0, LOW.grid, published=True, margin=0.02)
    assert judge(close).state == HOLDS
    assert judge(replace(close, margin=0.0)).state == FAILS
    assert judge(replace(close, margin=0.0102)).state == OPEN, "1.0% worse, and the bound is within the spread"


def test_without_evidence_no_claim_holds() -> None:
    assert judge(None).state == OPEN
    assert judge(replace(GOOD, rival=())).why == "its runs are not finished"
    claim = Claim("better", True, "2", "3")
    assert claim.line == "not shown: better (ours: 2; paper: 3; the evidence for the rules was not recorded)"
    lost = Claim("better", False, "2", "3").verdict
    assert lost.state == OPEN, "one seed refutes nothing either"
    assert lost.why == "our figures do not have its shape; the evidence for the rules was not recorded"
    assert Claim("better", False, "2", "3", GOOD).verdict.state == OPEN, "evidence on the mean, but not its shape"
    worse = replace(GOOD, ours=GOOD.rival, rival=GOOD.ours)
    assert Claim("better", False, "2", "3", worse).verdict.state == FAILS, "worse by more than three seeds differ"
    control = Claim("better", True, "2", "3", GOOD, undecided="its control failed").verdict
    assert (control.state, control.why) == (OPEN, "its control failed"), "whatever the other figures"
    assert Claim("better", False, "2", "3", worse, undecided="its control failed").verdict.state == OPEN
    assert Claim.of("better", GOOD, "2", "3").line == "holds: better (ours: 2; paper: 3)"
