"""A silo's privacy budget: priced as by dp-accounting, kept across restarts, refused when it is spent or damaged."""

import json
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import inf, sqrt
from pathlib import Path
from threading import Barrier
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as some

from hansa.config.sections import Privacy
from hansa.core.mechanism import Event, GaussianEvent, ZCdpEvent
from hansa.privacy.dp.accounting import concentrated_epsilon, price
from hansa.privacy.dp.budget import BUDGET_FILE, BudgetDamaged, BudgetExceeded, Charge, PrivacyBudget, charges, total
from hansa.privacy.dp.updates import UpdateMechanism
from tests.privacy.commands import ok

ONE = GaussianEvent(2.0, 1)


def charge(event: Event = ONE, round: int = 1, run: str = "r1") -> Charge:
    return Charge("notes", run, round, "update", "Gaussian noise", "all data of the silo", event, 1e-5)


def budget(folder: Path, epsilon: float = 8.0, delta: float = 1e-5) -> PrivacyBudget:
    return PrivacyBudget(folder / BUDGET_FILE, epsilon, delta)


def test_the_spent_epsilon_is_dp_accountings_across_runs_and_restarts(tmp_path: Path) -> None:
    for run in ("monday", "tuesday"):
        for round in (1, 2, 3):
            budget(tmp_path).charge(charge(round=round, run=run))  # a new object each time: a restarted process
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_accounting.GaussianDpEvent(2.0), 6)
    found = budget(tmp_path).spent()
    assert found == pytest.approx(dp_accounting.get_epsilon_gaussian(2.0 / sqrt(6), 1e-5))
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    budget(tmp_path).charge(charge(GaussianEvent(1.0, 50, sampling=0.05)))
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.0)), 50)
    assert budget(tmp_path).spent() == pytest.approx(accountant.get_epsilon(1e-5), rel=5e-3)


def test_the_charge_of_a_mechanism_is_its_price(tmp_path: Path) -> None:
    mechanism = UpdateMechanism(Privacy(noise_multiplier=3.0))
    limit = budget(tmp_path)
    for round in range(1, 5):
        limit.charge(Charge.of(mechanism, "notes", "r1", round, "update"))
    assert limit.spent() == pytest.approx(price(mechanism, 4).epsilon)
    [first, *_] = charges(limit.file)
    assert (first.unit, first.round, first.delta) == ("all data of the silo", 1, 1e-5)
    assert "noise multiplier 3" in first.mechanism


def test_an_exhausted_budget_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    limit = budget(tmp_path, epsilon=6.0)
    spent = 0.0
    for round in range(1, 100):
        if limit.refusal(ONE):
            break
        spent = limit.charge(charge(round=round))
    assert spent <= 6.0 < total([GaussianEvent(2.0, round)], 1e-5)
    before = limit.file.read_bytes()
    with pytest.raises(BudgetExceeded, match=rf"from ε = {spent:.4g} to .* the policy allows 6") as refused:
        limit.charge(charge(round=round, run="another"))
    assert limit.file.read_bytes() == before
    assert str(tmp_path) not in refused.value.public
    assert not any(character.isdigit() for character in refused.value.public), "how much is left stays at the silo"
    budget(tmp_path, epsilon=20.0).charge(charge())  # the administrator's decision, not the coordinator's


def test_runs_that_charge_at_the_same_time_do_not_exceed_the_budget(tmp_path: Path) -> None:
    """Each charge is checked and written under one lock."""
    together = Barrier(8)

    def spend(run: int) -> int:
        together.wait(60)
        done = 0
        for round in range(4):
            with suppress(BudgetExceeded):
                budget(tmp_path, epsilon=6.0).charge(charge(round=round, run=str(run)))
                done += 1
        return done

    with ThreadPoolExecutor(8) as threads:
        paid = sum(threads.map(spend, range(8)))
    assert paid == len(charges(tmp_path / BUDGET_FILE))
    assert budget(tmp_path).spent() <= 6.0 < total([GaussianEvent(2.0, paid + 1)], 1e-5)


@pytest.mark.parametrize("event", [GaussianEvent(0.0, 1), ZCdpEvent(inf, 1)])
def test_a_release_without_noise_is_never_within_a_budget(tmp_path: Path, event: Any) -> None:
    with pytest.raises(BudgetExceeded):
        budget(tmp_path, epsilon=1e300).charge(charge(event))


def test_a_repeated_computation_is_charged_again(tmp_path: Path) -> None:
    limit = budget(tmp_path)
    once, twice = limit.charge(charge()), limit.charge(charge())
    assert twice > once
    assert len(charges(limit.file)) == 2


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    budget(tmp_path / "home").charge(charge())
    assert stat.S_IMODE((tmp_path / "home" / BUDGET_FILE).stat().st_mode) == 0o600


def test_damage_is_found_and_nothing_is_released(tmp_path: Path) -> None:
    limit = budget(tmp_path)
    for round in (1, 2, 3):
        limit.charge(charge(round=round))
    whole = limit.file.read_text().splitlines()
    changed = json.loads(whole[1])
    changed["event"]["noise_multiplier"] = 200.0
    damaged = {
        2: [whole[0], json.dumps(changed, ensure_ascii=False), whole[2]],
        1: [whole[1], whole[2]],
        3: [*whole[:2], "}{"],
    }
    for line, lines in damaged.items():
        limit.file.write_text("\n".join(lines) + "\n")
        for action in (limit.spent, lambda: limit.charge(charge()), lambda: limit.refusal(ONE)):
            with pytest.raises(BudgetDamaged, match=f"line {line}: the privacy budget is damaged"):
                action()
    limit.file.unlink()
    limit.file.mkdir()
    with pytest.raises(BudgetDamaged, match="cannot be"):
        limit.charge(charge())


def test_an_incomplete_last_line_paid_for_nothing(tmp_path: Path) -> None:
    limit = budget(tmp_path)
    limit.charge(charge(round=1))
    before = limit.file.read_bytes()
    limit.file.write_bytes(before + b'{"federation": "no')
    assert len(charges(limit.file)) == 1
    limit.charge(charge(round=2))
    assert [one.round for one in charges(limit.file)] == [1, 2]
    assert limit.file.read_bytes().startswith(before)


KILLED = """
import os, signal, sys
from pathlib import Path
from hansa.core.mechanism import GaussianEvent
from hansa.privacy.dp.budget import Charge, PrivacyBudget
budget = PrivacyBudget(Path(sys.argv[1]), 1e6, 1e-5)
for round in range(1, 1000):
    budget.charge(Charge("notes", sys.argv[2], round, "update", "noise", "silo", GaussianEvent(2.0, 1), 1e-5))
    print(round, flush=True)
    if round == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_two_processes_and_a_kill_lose_no_charge(tmp_path: Path) -> None:
    file = tmp_path / BUDGET_FILE
    started = [
        subprocess.Popen([sys.executable, "-c", KILLED, str(file), name, "7"], stdout=subprocess.PIPE)
        for name in ("one", "two")
    ]
    printed = [len(process.communicate(timeout=120)[0].splitlines()) for process in started]
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2
    assert printed == [7, 7]
    held = charges(file)
    assert [sum(one.run == name for one in held) for name in ("one", "two")] == printed
    assert os.path.getsize(file) > 0


@settings(max_examples=20, deadline=None)
@given(some.lists(some.tuples(some.sampled_from([1.0, 2.0, 5.0]), some.integers(1, 4)), min_size=1, max_size=8))
def test_the_total_does_not_depend_on_the_order_and_only_grows(parts: list[tuple[float, int]]) -> None:
    events: list[Event] = [GaussianEvent(noise, count) for noise, count in parts]
    assert total(events, 1e-5) == pytest.approx(total(events[::-1], 1e-5))
    assert total(events[:-1], 1e-5) < total(events, 1e-5)
    assert total([ZCdpEvent(0.1, 2), ZCdpEvent(0.1, 3)], 1e-5) == pytest.approx(concentrated_epsilon(0.5, 1e-5))


def test_the_command_line_shows_the_budget(tmp_path: Path) -> None:
    limit = budget(tmp_path / "home")
    limit.charge(charge())
    spent = limit.charge(charge(run="r2"))
    shown = ok("audit", "budget", str(tmp_path / "home"))
    assert f"ε = {spent:.4g} at δ = 1e-05 after 2 charges" in shown
    assert "notes/r1" in shown
    assert "all data of the silo" in shown
