"""A silo's privacy budget: every release with noise, across rounds, runs and restarts, and a limit on their total ε.

The file has one JSON object per line, written and synced *before* the noise that it pays for is drawn. Its last field
chains the lines (SHA-256 over the previous hash and the line), so that a changed, removed or moved line is found; then
nothing more is released. A crash can leave an incomplete last line; what it would have paid for was never released, and
the next charge removes it. A user who can write the file can also replace it: it protects the silo from its
coordinator, not from its own administrator.

A repeated request gets the stored reply, which is not computed and not charged again (`hansa.deploy.reply_store`). What
is computed again draws new noise, which is another release and is charged again: a crash may waste budget but never
releases more than was paid for.

The limit is on everything together: charges of different units (a silo, a patient) are added up as if they had one. For
a unit that every charge protects this is an upper bound; what a charge does not protect has no ε at all.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from hansa.core.errors import RunFailed, UserError
from hansa.core.mechanism import Event, GaussianEvent, Mechanism, ZCdpEvent
from hansa.privacy.dp.accounting import composed

BUDGET_FILE = "budget.jsonl"
FIRST_HASH = "0" * 64
KINDS: dict[str, type[GaussianEvent] | type[ZCdpEvent]] = {"gaussian": GaussianEvent, "zcdp": ZCdpEvent}


class BudgetExceeded(UserError):
    """A release would exceed the budget. Its message is for the silo; ``public`` may be sent to the coordinator."""

    public = "its privacy budget does not allow this release"


class BudgetDamaged(RunFailed):
    """The file of the budget cannot be read or written, so nothing may be released."""


@dataclass(frozen=True)
class Charge:
    """What is charged for a release: when, for which run and round, by which mechanism, and the event to be priced."""

    federation: str
    run: str
    round: int
    purpose: str  # what is released: "update", "knowledge" …
    mechanism: str  # in words
    unit: str
    event: Event
    delta: float  # the δ at which the mechanism states its own price
    time: str = ""

    @staticmethod
    def of(mechanism: Mechanism, federation: str, run: str, round: int, purpose: str) -> "Charge":
        """The charge for one round of a mechanism."""
        event = mechanism.event(1)
        words = f"{type(mechanism).__name__}: {_words(event)}"
        return Charge(federation, run, round, purpose, words, mechanism.unit, event, mechanism.delta)


def _words(event: Event) -> str:
    if isinstance(event, ZCdpEvent):
        return f"{event.count} × {event.rho:.6g}-zCDP"
    sampled = f", each unit with probability {event.sampling:g}" if event.sampling < 1 else ""
    return f"{event.count} × noise multiplier {event.noise_multiplier:.6g}{sampled}"


@dataclass(frozen=True)
class PrivacyBudget:
    """A limit on the ε, at δ = ``delta``, of everything that a silo has released with noise."""

    file: Path
    epsilon: float
    delta: float

    def spent(self) -> float:
        """The ε of all charges together; raises `BudgetDamaged` if the file is damaged."""
        return total((charge.event for charge in charges(self.file)), self.delta)

    def refusal(self, event: Event) -> str:
        """Why an event would exceed the budget, in a sentence for the silo's administrator; empty if it would not."""
        return self._refusal([charge.event for charge in charges(self.file)], event)

    def charge(self, charge: Charge) -> float:
        """Write a charge to the file before its noise is released; return the ε spent with it.

        Raises `BudgetExceeded`, and writes nothing, if the limit would be exceeded; `BudgetDamaged` if the file is
        damaged or cannot be written. Then nothing may be released.
        """
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.file) as handle:
                found, last, end = _read(self.file)
                events = [one.event for one in found]
                if why := self._refusal(events, charge.event):
                    raise BudgetExceeded(why)
                os.ftruncate(handle, end)
                os.lseek(handle, end, os.SEEK_SET)
                line = _line(charge, last)
                if os.write(handle, line) < len(line):
                    raise OSError("the disk is full")
                os.fsync(handle)
        except OSError as error:
            raise BudgetDamaged(
                f"{self.file}: the charge cannot be written ({error.strerror or error}), so nothing is released; make "
                "room, or the disk writable"
            ) from None
        return total([*events, charge.event], self.delta)

    def _refusal(self, before: list[Event], event: Event) -> str:
        spent, then = total(before, self.delta), total([*before, event], self.delta)
        if isfinite(then) and then <= self.epsilon:
            return ""
        return (
            f"{self.file}: a release would bring the privacy spent from ε = {spent:.4g} to {then:.4g} at δ = "
            f"{self.delta:g}, and the policy allows {self.epsilon:g}; it is refused: end the run, or decide on another "
            "budget in the policy"
        )


def total(events: Iterable[Event], delta: float) -> float:
    """The ε of many events; equal ones are counted together, so that a long history is priced quickly."""
    counts: dict[tuple[Any, ...], tuple[Event, int]] = {}
    for event in events:
        key = (event.rho,) if isinstance(event, ZCdpEvent) else (event.noise_multiplier, event.sampling, event.error)
        counts[key] = (event, counts.get(key, (event, 0))[1] + event.count)
    merged: list[Event] = [
        ZCdpEvent(one.rho, n)
        if isinstance(one, ZCdpEvent)
        else GaussianEvent(one.noise_multiplier, n, one.sampling, one.error)
        for one, n in counts.values()
    ]
    return composed(merged, delta)


@dataclass(frozen=True)
class RunTotal:
    """What one run was charged; ``epsilon``: of this run alone."""

    run: str
    charges: int
    first: str
    last: str
    unit: str
    mechanism: str
    epsilon: float


def by_run(held: Sequence[Charge], delta: float) -> list[RunTotal]:
    """The charges of each run together."""
    found = []
    for federation, run in dict.fromkeys((one.federation, one.run) for one in held):
        some = [one for one in held if (one.federation, one.run) == (federation, run)]
        units = "; ".join(dict.fromkeys(one.unit for one in some))
        mechanisms = "; ".join(dict.fromkeys(one.mechanism for one in some))
        cost = total((one.event for one in some), delta)
        found.append(RunTotal(f"{federation}/{run}", len(some), some[0].time, some[-1].time, units, mechanisms, cost))
    return found


def charges(file: Path) -> list[Charge]:
    """All charges in a file, oldest first; none if there is no file. Raises `BudgetDamaged` if it is damaged."""
    try:
        return _read(file)[0]
    except OSError as error:
        raise BudgetDamaged(f"{file}: the privacy budget cannot be read ({error.strerror or error})") from None


def _line(charge: Charge, last: str) -> bytes:
    kind = "zcdp" if isinstance(charge.event, ZCdpEvent) else "gaussian"
    now = charge.time or datetime.now(UTC).isoformat(timespec="seconds")
    entry = asdict(charge) | {"time": now, "event": {"kind": kind} | asdict(charge.event)}
    text = json.dumps(entry, ensure_ascii=False)
    return json.dumps(entry | {"hash": _hash(last, text)}, ensure_ascii=False).encode() + b"\n"


def _hash(last: str, text: str) -> str:
    return sha256(f"{last}{text}".encode()).hexdigest()


def _read(file: Path) -> tuple[list[Charge], str, int]:
    """The charges, the last hash, and the length of the complete lines."""
    data = file.read_bytes() if file.exists() else b""
    end = data.rfind(b"\n") + 1
    found: list[Charge] = []
    last = FIRST_HASH
    for number, line in enumerate(data[:end].splitlines(), 1):
        try:
            entry = json.loads(line)
            claimed = entry.pop("hash")
            if claimed != _hash(last, json.dumps(entry, ensure_ascii=False)):
                raise ValueError("its hash does not follow from the line before it")
            event = entry.pop("event")
            found.append(Charge(**entry, event=KINDS[event.pop("kind")](**event)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BudgetDamaged(
                f"{file}, line {number}: the privacy budget is damaged ({error}), so nothing is released; restore the "
                "file from a backup"
            ) from None
        last = claimed
    return found, last, end


@contextmanager
def _locked(file: Path) -> Iterator[int]:
    """Open a file that only its owner can read, and hold a lock on it: two processes never charge at once."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)
